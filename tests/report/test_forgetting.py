"""Page, card and advice on what a model has forgotten: about the model that is released, and by figures of this run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.report.forgetting import Advice, advice_on_forgetting
from anadil.report.measures_view import measures_view
from anadil.report.next_steps import next_steps
from anadil.report.read import Facts, read_facts
from anadil.report.retained import changes_of, name_of_text, source_of_text
from anadil.report.run import run
from anadil.report.scores_view import scores_view
from anadil.report.verdict import verdict
from tests.kit import report_run

HUB = {"base": {"model": "Qwen/Qwen3-0.6B"}}
PLAIN: dict[str, Any] = {
    "language": "az",
    "base": {"model": "tiny"},
    "clean": {"inputs": ["texts/web.jsonl", "/data/secret/law.jsonl"]},
    "pretrain": {
        "phases": [
            {"trains": "embeddings", "steps": 60, "lr": 0.0032},
            {"trains": "all", "steps": 300, "lr": 0.0024},
        ]
    },
    "finetune": {"inputs": ["chats.jsonl"], "trains": "all", "lr": 0.003},
}


def mixed(**shares: float) -> dict[str, Any]:
    """A recipe with two sources in Azerbaijani, and one in English where it has a share."""
    sources: dict[str, Any] = {"web": {"inputs": ["w.jsonl"]}, "law": {"inputs": ["l.jsonl"]}}
    if "news" in shares:
        sources["news"] = {"inputs": ["n.jsonl"], "language": "en"}
    return PLAIN | {
        "clean": {},
        "sources": sources,
        "pretrain": {"phases": [{"trains": "all", "steps": 9, "lr": 1e-3, "mix": shares}]},
    }


def scored(released: str | None, *, text: str = "en", half: float = 0.02, **bits: float) -> dict[str, Any]:
    """Scores with bits per byte of each candidate on a retained text; the intervals reach as far as `half` of the base's."""
    scores = report_run.scores()
    scores["gate"] |= {"released": released, "passed": released is not None}
    for name, value in bits.items():
        scores["candidates"].setdefault(name, dict(scores["candidates"]["adapted"]))["retained"] = {
            text: value
        }
        change = value - bits["base"]
        scores["differences"][f"{name} - base, retained {text}"] = {
            "value": change, "low": change - half * bits["base"], "high": change + half * bits["base"], "num_documents": 16,
        }  # fmt: skip
    return scores


def facts_of(root: Path, scores: dict[str, Any], recipe: dict[str, Any] = PLAIN, **changed: Any) -> Facts:
    return read_facts(report_run.job(root, Recipe.model_validate(recipe), scores=scores, **changed))


def card_of(root: Path, scores: dict[str, Any]) -> str:
    job = report_run.job(root, Recipe.model_validate(PLAIN), scores=scores)
    run(job)
    return (job.out / "model_card.md").read_text(encoding="utf-8")


def merged(recipe: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the keys of some advice written over its own."""
    both = dict(recipe)
    for key, value in changes.items():
        both[key] = (
            merged(recipe[key], value)
            if isinstance(recipe.get(key), dict) and isinstance(value, dict)
            else value
        )
    return both


def followed(recipe: dict[str, Any], advice: Advice) -> Recipe:
    return parse_recipe(
        yaml.safe_dump(merged(recipe, yaml.safe_load(advice.snippet)), sort_keys=False), "recipe"
    )


@pytest.mark.parametrize(
    ("released", "bits", "said", "other"),
    [
        ("adapted", {"base": 2.0, "adapted": 2.2, "finetuned": 3.8}, "10 %", "90 %"),
        ("finetuned", {"base": 2.0, "adapted": 3.8, "finetuned": 2.2}, "10 %", "90 %"),
        ("merged", {"base": 2.0, "adapted": 3.8, "finetuned": 3.6, "merged": 2.2}, "10 %", "90 %"),
    ],
)
def test_every_sentence_is_about_the_model_that_is_released(
    tmp_path: Path, released: str, bits: dict[str, float], said: str, other: str
) -> None:
    facts = facts_of(tmp_path, scored(released, text="en", half=0.02, **bits))

    (warning,) = (each for each in verdict(facts).warnings if each.startswith("Forgetting"))
    steps = " ".join(f"{each.action} {each.why}" for each in next_steps(facts))
    assert (
        warning
        == f"Forgetting: en costs the {released} model {said} more bits per byte than the base (95 % interval 8.0 % to 12 %)."
    )
    assert other not in f"{warning} {steps}"
    assert {each.of for each in scores_view(facts).headlines} == {released}
    assert f"{released}, released" in measures_view(facts)[0].table.columns


def test_where_none_is_released_each_model_is_named(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored(None, base=2.0, adapted=2.4, finetuned=3.8))

    warnings = " ".join(verdict(facts).warnings)
    assert "en costs the adapted model 20 % more" in warnings
    assert "en costs the finetuned model 90 % more" in warnings
    assert not any("released" in column for column in measures_view(facts)[0].table.columns)


@pytest.mark.parametrize(
    ("adapted", "said"),
    [
        (3.2, "English costs it 60 % more bits per byte than the base (95 % interval 58 % to 62 %): it has forgotten part of"),
        (2.08, "English costs it 4.0 % more bits per byte than the base (95 % interval 2.0 % to 6.0 %).\n"),
        (2.02, "English costs it 1.0 % more bits per byte than the base, and the 95 % interval holds 0 (−1.0 % to 3.0 %).\n"),
        (1.8, "English costs it 10 % fewer bits per byte than the base (95 % interval 8.0 % to 12 %).\n"),
    ],
)  # fmt: skip
def test_the_card_says_of_the_released_model_what_its_table_shows(
    tmp_path: Path, adapted: float, said: str
) -> None:
    card = card_of(tmp_path, scored("adapted", base=2.0, adapted=adapted, finetuned=9.0))

    assert said.replace("−", "\N{MINUS SIGN}") in card
    assert ("forgotten" in card) == (adapted == 3.2)
    assert "keeps" not in card


def test_a_plain_recipe_gets_replay_a_lower_rate_and_lora_each_as_keys_that_parse(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored("finetuned", base=2.0, adapted=3.2, finetuned=3.6))

    replay, rate, lora = advice_on_forgetting(facts)

    recipe = followed(PLAIN, replay)
    assert {name: source.language for name, source in recipe.sources.items()} == {"text": None, "en": "en"}
    assert [phase.mix for phase in recipe.pretrain.phases] == [{"text": 0.75, "en": 0.25}] * 2
    assert "/data/secret" not in replay.snippet
    assert "25 % of replay took back 88 % of such a rise, for 4.5 % more loss on the new text" in replay.why
    assert "the rise of 60 % here would be about 6.9 %" in replay.why
    assert recipe.sources["en"].inputs == ("builtin:en/prose.jsonl",)
    assert [phase.lr for phase in followed(PLAIN, rate).pretrain.phases] == [0.0032, 0.0012]
    assert (followed(PLAIN, lora).finetune.trains, followed(PLAIN, lora).finetune.lr) == ("adapter", 1e-4)


def test_replay_for_a_base_of_the_hub_asks_for_files_of_ones_own(tmp_path: Path) -> None:
    recipe = PLAIN | HUB
    facts = facts_of(tmp_path, scored("adapted", base=2.0, adapted=3.2, finetuned=3.2), recipe)

    replay, written = (followed(recipe, each) for each in advice_on_forgetting(facts)[:2])

    assert replay.sources["en"].inputs == ("text/en/*.jsonl",)
    own = written.sources["self"]
    # A quarter of 1,228,800 tokens.
    assert (own.written_by, own.tokens, own.language) == ("base", 307_200, "en")


def test_a_short_run_asks_the_base_for_enough_to_be_cleaned(tmp_path: Path) -> None:
    scores = scored("adapted", base=2.0, adapted=3.2, finetuned=3.2)
    facts = facts_of(tmp_path, scores, PLAIN | HUB, summary={"tokens": 30_000})

    assert followed(PLAIN | HUB, advice_on_forgetting(facts)[1]).sources["self"].tokens == 50_000


def test_thousands_of_files_are_counted_and_not_listed(tmp_path: Path) -> None:
    recipe = PLAIN | {"clean": {"inputs": [f"crawl/{place:05}.warc.gz" for place in range(3_000)]}}
    facts = facts_of(tmp_path, scored("adapted", base=2.0, adapted=3.2, finetuned=3.2), recipe)

    replay = advice_on_forgetting(facts)[0]

    assert len(followed(recipe, replay).sources["text"].inputs) == 20
    assert replay.snippet.endswith("# text.inputs: 2,980 more of clean.inputs\n")


def test_a_small_loss_asks_for_little_replay(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored("adapted", base=2.0, adapted=2.12, finetuned=2.12))

    assert "give 1.0 % of the tokens" in advice_on_forgetting(facts)[0].action


def test_a_source_in_the_language_gets_a_larger_share_and_the_others_keep_their_relation(
    tmp_path: Path,
) -> None:
    recipe = mixed(web=0.6, law=0.35, news=0.05)
    trained = {"tokens": 1_000, "sources": {"news": {"tokens": 50}}}
    facts = facts_of(
        tmp_path, scored("adapted", base=2.0, adapted=2.3, finetuned=2.3), recipe, summary=trained
    )

    replay = advice_on_forgetting(facts)[0]

    (phase,) = followed(recipe, replay).pretrain.phases
    assert phase.mix == pytest.approx({"web": 0.4737, "law": 0.2763, "news": 0.25}, abs=1e-3)
    assert replay.action == "Replay: raise mix.news in pretrain.phases to 0.2500, from 0.050."


def test_a_recipe_whose_sources_lack_the_language_gets_one_more(tmp_path: Path) -> None:
    recipe = mixed(web=0.6, law=0.4) | HUB
    facts = facts_of(tmp_path, scored("adapted", base=2.0, adapted=2.3, finetuned=2.3), recipe)

    changed, written = (followed(recipe, each) for each in advice_on_forgetting(facts)[:2])

    assert list(changed.sources) == ["web", "law", "en"]
    assert written.pretrain.phases[0].mix == pytest.approx({"web": 0.57, "law": 0.38, "self": 0.05})
    assert changed.pretrain.phases[0].mix == pytest.approx({"web": 0.57, "law": 0.38, "en": 0.05})


def test_replay_at_the_largest_published_share_is_not_asked_for_again(tmp_path: Path) -> None:
    recipe = mixed(web=0.5, news=0.5)
    recipe["sources"].pop("law")
    trained = {"tokens": 1_000, "sources": {"news": {"tokens": 500}}}
    facts = facts_of(
        tmp_path, scored("adapted", base=2.0, adapted=2.3, finetuned=2.3), recipe, summary=trained
    )

    assert [each.action.partition(":")[0] for each in advice_on_forgetting(facts)] == ["Lower rate"]


def test_only_the_stage_that_lost_the_text_gets_advice(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored("finetuned", base=2.0, adapted=2.02, finetuned=3.0))

    assert [each.action.partition(":")[0] for each in advice_on_forgetting(facts)] == ["LoRA"]


def test_a_text_in_no_known_language_gets_no_source_that_would_not_parse(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored("adapted", text="notes-2024", base=2.0, adapted=3.2, finetuned=3.2))

    assert [each.action.partition(":")[0] for each in advice_on_forgetting(facts)] == ["Lower rate"]


def test_nothing_forgotten_is_no_advice(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, scored("adapted", base=2.0, adapted=2.05, finetuned=3.0))

    assert advice_on_forgetting(facts) == ()
    assert measures_view(facts)[0].advice == ()


def test_text_of_the_program_is_told_from_a_source_of_that_name() -> None:
    texts, sources = ("en", "en_source", "code"), ("web", "en", "code")

    assert [source_of_text(text, texts, sources) for text in texts] == ["", "en", "code"]
    assert source_of_text("en", ("en",), sources) == "en"
    assert name_of_text("en", texts, sources) == "English"
    assert name_of_text("en_source", texts, sources) == "the source en"


def test_one_document_has_no_interval() -> None:
    (change,) = changes_of(scored("adapted", half=0.0, base=2.0, adapted=2.5), "adapted")

    assert (change.interval, change.words) == (None, "25 % more bits per byte than the base")
