import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.artifact import Manifest
from anadil.core.stages import FLOW, STAGES, files_of
from anadil.recipe.sections import Recipe
from anadil.report.data_card import (
    base_text_note,
    hub_language_codes,
    licences_by_words,
    stated_licence,
)
from anadil.report.read import recipe_language, sum_stats
from anadil.report.run import run
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job, Stream
from tests.kit import report_run


def streamed(word: str, **figures: Any) -> Stream:
    manifest = Manifest(kind=word.partition(".")[0], key=word, origin={}, files={}, figures=figures)
    return Stream(uri=f"s3://runs/{word}", manifest=manifest)


def training() -> list[dict[str, float]]:
    """Logged lines with figures of each source."""
    return [
        {"step": step, "loss": 9 - step, "loss/web": 9.0 - step, "loss/en": 5.0 + step}
        | {"validation_bits_per_byte/web": 3.0 - step / 2, "validation_bits_per_byte/en": 2.0 + step / 4}
        for step in range(3)
    ]


def job_of_sources(root: Path) -> Job:
    """A job of the report stage on corpora of two sources, `web` and `en`, of which a model has read other shares."""
    recipe = Recipe.model_validate(
        {
            "base": {"model": "tiny"},
            "pretrain": {
                "phases": [{"trains": "all", "steps": 9, "lr": 1e-3, "mix": {"web": 0.9, "en": 0.1}}]
            },
            "sources": {
                "web": {"inputs": ["w.jsonl"]},
                "en": {"inputs": ["e.jsonl"], "language": "en", "clean": {"rules": "none"}},
            },
            "report": {"licences": {"text": "CC BY 4.0", "en": "ODC-By"}},
        }
    )
    counts = {"in": 600, "kept": 500, "words_out": 1_000, "bytes_out": 6_000, "dropped": {"short": 100}}
    english = report_run.corpus() | counts | {"limits": "none"}
    tokens = {"tokens": 1_000, "sources": {"web": {"tokens": 900, "epochs": 0.5}, "en": {"tokens": 100}}}
    made = report_run.job(root, recipe, summary=tokens, training=training(), seconds={"corpus": 60.0})
    second = report_run.artifacts(
        root / "more", corpus=english, rejected={"short": "Too short."}, kept=("A library.",), seconds={"corpus": 30.0}
    )  # fmt: skip
    inputs = {word: path for word, path in made.inputs.items() if word != "corpus"}
    nothing = {"heldout": 0, "duplicate": 0, "near_duplicate": 0}
    figures: dict[str, dict[str, Any]] = {
        "overlap.web": {"documents": 13_000, "remaining": 13_000} | nothing,
        "overlap.en": nothing
        | {"documents": 500, "heldout": 11, "near_duplicate": 3, "in_web": 14, "remaining": 486},
        "tokens.web": {},
        "tokens.en": {},
    }
    streams = {word: streamed(word, seconds=5.0, **each) for word, each in figures.items()}
    corpora = {"corpus.web": made.inputs["corpus"], "corpus.en": second["corpus"]}
    return replace(made, inputs=inputs | corpora, streams=streams)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = job_of_sources(tmp_path_factory.mktemp("run"))
    run(job)
    return job.out


@pytest.mark.parametrize("name", ["report.md", "data_card.md", "model_card.md"])
def test_pages_have_a_row_for_each_source(out: Path, name: str) -> None:
    text = (out / name).read_text(encoding="utf-8")

    assert "| web | az | 18,400 | 13,856 | 4,182,331 | 32.3 MiB | 90.0 % | CC BY 4.0 |" in text
    assert "| en | en | 600 | 500 | 1,000 | 5.9 KiB | 10.0 % | ODC-By |" in text


def test_the_page_shows_the_rules_and_samples_of_every_source(out: Path) -> None:
    page = (out / "report.html").read_text(encoding="utf-8")

    assert "19,000 documents were read, 14,356 were kept" in page
    for name in ("web", "en"):
        assert f"<summary>Source {name}</summary>" in page
    assert '<p class="quote" lang="en" dir="auto">Too short.</p>' in page
    assert page.count("Documents by rule") == 2
    for cell in ("clean-web", "clean-en", "overlap-en", "encode-web", "ODC-By"):
        assert f"{cell}</" in page


def test_the_data_card_has_the_card_of_each_source(out: Path) -> None:
    card = (out / "data_card.md").read_text(encoding="utf-8")

    assert card.count("---\n") == 2
    for line in ("# Text of the mixture", "# web: Azerbaijani corpus", "# en: English corpus"):
        assert line in card
    front = card.split("---")[1]
    assert "- az" in front
    assert "- en" in front


def test_numbers_are_told_together_and_by_source(out: Path) -> None:
    numbers = json.loads((out / "metrics.json").read_text(encoding="utf-8"))

    counts = [numbers[key] for key in ("corpus_kept", "corpus_web_kept", "corpus_en_kept")]
    assert counts == [14_356, 13_856, 500]
    assert numbers["seconds"] == 110


def test_the_page_says_what_training_leaves_out_of_each_source_and_how_each_was_learned(out: Path) -> None:
    text, page = ((out / name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))

    assert "| web | 13,000 | 0 | 0 | 0 | 13,000 | 0 % | \N{EM DASH} |" in text
    assert "| en | 500 | 11 | 0 | 3 | 486 | 2.80 % | web: 14 |" in text
    assert "| web | 900 | 90.0 % | 0.50 | 9.000 to 7.000 | 3.000 to 2.000 |" in text
    assert "| en | 100 | 10.0 % | \N{EM DASH} | 5.000 to 7.000 | 2.000 to 2.500 |" in text
    for title in ("Loss by source", "Held-out text by source"):
        assert f"<figcaption>{title}</figcaption>" in page
    # The recipe that the page shows can be run again.
    assert "sources:" in page.partition('id="reproduce"')[2]


def test_the_page_reads_what_every_stage_wrote_so_that_no_time_is_missing() -> None:
    report = STAGES["report"]

    # The release comes after the page, which says whether to release.
    missing = {stage.writes for stage in FLOW[: FLOW.index(report)]} - {report.writes} - set(report.words)
    assert not missing, f"add {missing} to what the stage report reads, as optional streams"


def test_the_page_fetches_no_weights() -> None:
    reads = STAGES["report"].reads

    files = {each.kind: files_of(each) for each in reads if each.how == "files"}
    assert files["model"] == ("training.",)
    assert (files["merged"], files["trial"]) == (("merge.json",), ("trial.json",))
    assert all(files.values())


def test_times_of_tokens_lists_and_tasks_are_no_part_of_the_key() -> None:
    parts = {
        word: Manifest(
            kind=word, key=word, origin={"input corpus": "c", "input tokenizer": "t"} if word == "tokens" else {}, files={}
        )
        for word in ("corpus", "tokenizer", "model", "scores", "tokens", "overlap", "tasks")
    }  # fmt: skip
    recipe = Recipe.model_validate({"base": {"model": "tiny"}})
    report = STAGES["report"]
    streamed = {word: each for word, each in parts.items() if report.input(word).how == "files"}

    assert stage_origin(report, recipe, parts, ()) == stage_origin(report, recipe, streamed, ())


@pytest.mark.parametrize("name", ["report.html", "report.md", "data_card.md"])
def test_pages_say_once_of_a_source_without_rules_that_no_rule_judged(out: Path, name: str) -> None:
    text = (out / name).read_text(encoding="utf-8")

    assert text.count("No rule judged the documents (clean.rules: none).") == 1
    if name == "data_card.md":
        assert "| rules that judge documents | none |" in text


def test_text_in_no_language_has_no_lang_on_pages() -> None:
    language = recipe_language({"language": "none"})

    assert (language.code, language.lang, hub_language_codes(language.code)) == ("none", "", [])


def test_only_counts_are_added() -> None:
    one = {"in": 3, "limits": {"min_words": 50}, "dropped": {"short": 1}, "language": "az"}
    other = {"in": 4, "limits": {"min_words": 50}, "dropped": {"short": 2, "long": 1}, "language": "en"}

    assert sum_stats([one, other]) == {"in": 7, "dropped": {"short": 3, "long": 1}}
    assert sum_stats([one]) == one


def test_the_card_of_what_a_base_wrote_names_the_base_its_licence_and_how_it_wrote() -> None:
    recipe: dict[str, object] = {
        "base": {"model": "tiny"},
        "sources": {"self": {"written_by": "base", "tokens": 1000}},
    }
    written: dict[str, object] = {
        "base": "tiny", "revision": None, "seed": 7, "written": 28, "tokens": 4836, "chats": 11,
        "sampling": {"text": {"temperature": 1.0, "top_p": 1.0}, "answer": {"temperature": 0.6, "top_p": 0.9}},
        "dropped": {"chat unended": 2, "text loop": 1},
    }  # fmt: skip

    note = base_text_note(written)
    licences = licences_by_words(recipe, {"written": written, "kept": 25, "words_out": 1_283})

    assert note == (
        "No person wrote this text. The base model tiny did, as replay: 28 documents of 4,836 tokens, with seed 7: "
        "texts at temperature 1.0 and top-p 1.0, answers at temperature 0.6 and top-p 0.9. 3 of them were dropped at once "
        "(empty, loops, chats without an end), and 11 of the others are chats in its own template."
    )
    assert licences.rows[0][0] == "Apache License 2.0 (that of the base, tiny, which wrote the text)"
    # The recipe may state another, by the source's name or as that of the base.
    for name in ("self", "base"):
        assert stated_licence({**recipe, "report": {"licences": {name: "own terms"}}}, "text") == "own terms"
    assert base_text_note({}) == ""
