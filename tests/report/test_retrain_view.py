"""The section of a retraining."""

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.report.run import run
from anadil.runtime.job import Stream
from tests.kit import report_run
from tests.report.test_page import Page

Json = dict[str, Any]
GAIN = {"value": -0.021, "low": -0.034, "high": -0.008, "num_documents": 120, "significant": True}
LOSS = {"value": 0.012, "low": -0.004, "high": 0.029, "num_documents": 40, "significant": False}


ADMISSION = {
    "admitted": True, "documents": 800, "earlier_weeks": 3, "notes": ["corpus.en: no earlier text."],
    "checks": [
        {"name": "personal_data", "source": "", "value": 0.041, "usual": 0.012, "limit": 0.062, "passed": True,
         "words": "4.10 % of 800 documents hold personal data"},
        {"name": "growth", "source": "web", "value": 1.2, "usual": 1.0, "limit": 4.0, "passed": True,
         "words": "host a.az is 1.2 times as large"},
    ],
}  # fmt: skip


def recipe_of(*keeps: str) -> Recipe:
    """A derived recipe."""
    champion = {
        "name": "anadil-az", "version": "3", "uri": "/srv/model/1", "digest": "0a" * 32,
        "artifacts": {word: f"/srv/{word}/1" for word in ("tokenizer", "corpus", "model")},
    }  # fmt: skip
    data = {"base": {"model": "tiny"}, "retrain": {"champion": champion, "keeps": list(keeps)}}
    return parse_recipe(json.dumps(data), "derived")


def compared() -> Json:
    """Scores that compare with a champion, which answers worse."""
    scores = report_run.scores()
    scores["candidates"]["champion"] = report_run.candidate("finetuned") | {"bits_per_byte": 1.8231}
    scores["differences"] |= {
        "finetuned - champion": GAIN,
        "finetuned - champion, retained en": LOSS,
        "finetuned - champion, answers": GAIN | {"value": -0.11, "low": -0.19, "high": -0.04},
    }
    scores["gate"]["checks"].append(
        {
            "name": "finetuned.answers_to_champion", "value": -0.11, "limit": 0.02, "passed": True,
            "interval": [-0.19, -0.04], "enforced": True,
        }
    )  # fmt: skip
    return scores


def page_of(root: Path, recipe: Recipe, **changed: Any) -> tuple[str, str]:
    """The page and its Markdown."""
    job = report_run.job(root, recipe, **changed)
    corpus = job.inputs["corpus"]
    files = {f"file /srv/week-4/{number}.jsonl": "0b" * 32 for number in range(2)}
    artifact.seal(
        corpus, kind="corpus", origin=files | {"file /srv/chats.jsonl of finetune.inputs": "0c" * 32}
    )
    admission = root / "admission"
    admission.mkdir()
    (admission / "admission.json").write_text(json.dumps(ADMISSION), encoding="utf-8")
    job.inputs["admission"] = admission
    tokens = root / "tokens"
    tokens.mkdir()
    (tokens / "tokens.json").write_text("{}", encoding="utf-8")
    figures = {
        "tokens": 9_000_000, "new_tokens": 4_100_000, "tokens_per_word_new": 2.238, "tokens_per_word_earlier": 2.209,
        "tokenizer_drift": 0.0131,
    }  # fmt: skip
    manifest = artifact.seal(tokens, kind="tokens", origin={"stage": "encode"}, figures=figures)
    job = replace(job, streams={"tokens": Stream(uri=str(tokens), manifest=manifest)})
    run(job)
    page, short = ((job.out / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    return page, html.unescape(short)


def test_the_page_of_a_week_begins_with_what_changed_since_the_champion(tmp_path: Path) -> None:
    start = {
        "start_from": {"place": "/srv/branch", "digest": "0d" * 32, "step": 260, "run": "/srv/model/1"},
        "average_of": [280, 290, 300],
        "retrain": {
            "begin": "plateau",
            "steps": 40,
            "new": {"documents": 13_163},
            "earlier": {"documents": 90_412},
        },
    }
    page, short = page_of(
        tmp_path,
        recipe_of("tokenizer"),
        scores=compared(),
        summary=start,
        seconds={"model": 3_600.0},
    )

    assert page.index('id="retrain"') < page.index('id="answers"')
    assert '<a href="#retrain">Since the champion</a>' in page
    assert Page(page).mistakes == []
    assert "Since version 3 of anadil-az" in short
    assert (
        "It began with the champion's checkpoint at step 260, with its moments, and took 40 steps." in short
    )
    assert "The model is the mean of 3 checkpoints, steps 280 to 300." in html.unescape(page)
    assert "Its stages took 1 h" in short
    assert "| text | 2 | 18,400 | 13,856 | 4,182,331 |" in short
    assert "4,100,000" in short
    assert "| 2.238, was 2.209 (+1.31 %) |" in short
    assert "It trained on 13,163 new documents beside 90,412 earlier ones." in short
    assert "| held-out text | 1.823 | 1.802 | -0.02100 | -0.03400 to -0.008000 |" in short.replace(
        "\N{MINUS SIGN}", "-"
    )
    assert (
        "| personal data | text | 4.10 % | 1.20 % | 6.20 % | 4.10 % of 800 documents hold personal data |"
        in short
    )
    assert "| growth | web | 1.200 | 1.000 | 4.000 | host a.az is 1.2 times as large |" in short
    assert "Compared with 3 earlier weeks. corpus.en: no earlier text." in short
    assert "| kept text: en |" in short
    assert "| answers |" in short
    assert "Bits per byte of answers, less the champion's is" in short
    assert "passed." in short


def test_what_is_taken_from_the_champion_is_no_new_text_and_costs_nothing(tmp_path: Path) -> None:
    _, short = page_of(
        tmp_path, recipe_of("tokenizer", "corpus"), scores=compared(),
        seconds={"model": 60.0, "corpus": 7_200.0, "tokenizer": 7_200.0},
    )  # fmt: skip

    assert "| text | none |" in short
    assert "It began with the base, on all text, and took 300 steps. Its stages took 1 min" in short


def test_new_chats_are_told_also_where_no_text_is_new(tmp_path: Path) -> None:
    chats = [f"/srv/chats/{number}.xlsx" for number in range(6)]
    told = []
    for folder, keeps in (("chats", ("tokenizer", "corpus", "model")), ("both", ("tokenizer",))):
        recipe = recipe_of(*keeps)
        assert recipe.retrain is not None
        recipe = recipe.model_copy(
            update={"retrain": recipe.retrain.model_copy(update={"new_chats": tuple(chats)})}
        )
        page, short = page_of(tmp_path / folder, recipe, scores=compared())
        assert Page(page).mistakes == []
        told.append(short)

    sentence = "Chats came in 6 files (0.xlsx, 1.xlsx, 2.xlsx, 3.xlsx, 4.xlsx, ...)."
    assert all(sentence in each for each in told)
    assert "Without new text it took the champion's model as it is." in told[0]
    assert "No text was new, so this is the champion's training." in told[0]
    assert "on all text" not in told[0]
    assert "Without new text" not in told[1]
    # A table of dashes would say the same once more.
    assert ["| new files |" in each for each in told] == [False, True]


def test_new_and_earlier_text_have_curves_of_their_own(tmp_path: Path) -> None:
    recipe = recipe_of("tokenizer")
    started = recipe.pretrain.model_copy(update={"start_from": "/srv/model/1"})
    training = [
        {"step": step, "phase": 1, "loss": 3.0, "loss/new": 3.5 - step, "loss/earlier": 2.5}
        for step in (1, 2, 3)
    ]
    summary = {"steps": 3, "tokens": 900, "sources": {name: {"tokens": 450} for name in ("new", "earlier")}}

    page, short = page_of(
        tmp_path, recipe.model_copy(update={"pretrain": started}), training=training, summary=summary
    )

    assert Page(page).mistakes == []
    assert "Loss by source" in page
    assert "| new | 450 | 50.0 % |" in short
    assert "| earlier | 450 | 50.0 % |" in short


def test_weights_alone_and_scores_without_a_champion_are_said(tmp_path: Path) -> None:
    _, short = page_of(tmp_path, recipe_of(), summary={"retrain": {"begin": "weights", "steps": 300}})

    assert (
        "It began with the champion's weights, with new moments, and took 300 steps. No stage recorded"
        in short
    )
    assert (
        "The scores compare with no champion, so the release step makes this model challenger at most."
        in short
    )


@pytest.mark.parametrize("recipe", [None, parse_recipe("{base: {model: tiny}, retrain: {}}", "r")])
def test_a_run_that_retrains_nothing_has_no_such_section(recipe: Recipe | None, tmp_path: Path) -> None:
    page, short = page_of(tmp_path, recipe or parse_recipe("{base: {model: tiny}}", "r"))

    assert "Since the champion" not in page
    assert "Since version" not in short
