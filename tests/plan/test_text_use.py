"""Epochs of each source, before anything runs."""

import pytest

from anadil.core.errors import RecipeError
from anadil.plan.text_use import TextSize, TextUse, plan_text
from anadil.recipe.sections import Recipe

MIXTURE = {
    "language": "az",
    "sources": {
        "web": {"inputs": ["web"]},
        "en": {"inputs": ["en"], "language": "en"},
        "code": {"inputs": ["code"], "language": "en"},
    },
    "pretrain": {
        "phases": [
            {"trains": "all", "steps": 20_000, "lr": 1e-3, "mix": {"web": 0.8, "en": 0.1, "code": 0.1}}
        ],
        "batch_size": 4,
        "sequence_length": 1_000,
    },
}
LARGE = TextSize(basis="files", tokens=1_000_000_000, text_bytes=3_000_000_000)


def mixture(steps: int = 20_000, **pretrain: object) -> Recipe:
    phase = {**MIXTURE["pretrain"]["phases"][0], "steps": steps}  # type: ignore[index]
    return Recipe.model_validate(
        {**MIXTURE, "pretrain": {**MIXTURE["pretrain"], "phases": [phase], **pretrain}}  # type: ignore[dict-item]
    )


def uses(recipe: Recipe, **text: TextSize) -> dict[str, TextUse]:
    return {each.name: each for each in plan_text(recipe, text)[1].uses}


def plain(**pretrain: object) -> Recipe:
    settings = {"sequence_length": 1_000, "batch_size": 4, **pretrain}
    return Recipe.model_validate({"language": "az", "pretrain": settings})


def test_a_source_that_runs_out_is_said_with_its_epochs_and_heirs() -> None:
    web = TextSize(basis="corpus", tokens=1_391_000, text_bytes=4_173_000, words=580_000)

    found = uses(mixture(), web=web, en=LARGE, code=LARGE)

    assert found["web"].line() == (
        "web: 580,000 words, about 1.391 M tokens (by the size of its corpus) at share 0.8 for 20,000 steps is 46 epochs; "
        "after 4 (max_epochs), from step 1,740 on, its share goes to en and code"
    )
    assert found["web"].remedy() == ("lower its share, raise sources.web.max_epochs, or give more text")
    assert found["en"].line() == (
        "en: about 1 B tokens (by the sizes of its files, before cleaning) at share 0.1 for 20,000 steps is 0.01 epochs"
    )
    assert found["en"].remedy() == ""
    assert found["en"].epochs > found["en"].asked_epochs  # with its part of the share


def test_sources_that_run_out_together_are_refused_where_no_tokenizer_could_help() -> None:
    small = TextSize(basis="files", tokens=10_000, text_bytes=30_000)

    with pytest.raises(
        RecipeError, match=r"all its sources are used up after 30 of 20,000 steps.*make the phases 30 steps"
    ):
        plan_text(mixture(), {"web": small, "en": small, "code": small})


def test_an_estimate_alone_refuses_nothing_and_is_said() -> None:
    some = TextSize(basis="files", tokens=10_000, text_bytes=30_000)

    _, plan = plan_text(mixture(steps=60), {"web": some, "en": some, "code": some})

    assert "all its sources are used up after 30 of 60 steps" in plan.fault
    assert plan.uses[0].epochs == 4
    assert "(tokens by the sizes of its files, before cleaning)" in plan.fault


def test_counted_tokens_refuse_what_training_would() -> None:
    some = TextSize(basis="tokens", tokens=10_000, text_bytes=30_000, sequences=10)

    with pytest.raises(RecipeError, match="used up after 30 of 60 steps"):
        plan_text(mixture(steps=60), {"web": some, "en": some, "code": some})


def test_without_sources_many_epochs_get_a_remedy() -> None:
    (use,) = uses(plain(), **{"": TextSize(basis="files", tokens=3_000_000, text_bytes=9_000_000)}).values()

    assert use.line() == (
        "text: about 3 M tokens (by the sizes of its files, before cleaning) for 20,000 steps is 27 epochs"
    )
    assert use.remedy() == (
        "more than 4 add little: set pretrain.max_epochs: 4, which leaves about 3,000 steps, or give more text"
    )


@pytest.mark.parametrize("sources", [False, True])
def test_the_limit_of_pretrain_shortens_the_phases(*, sources: bool) -> None:
    size = TextSize(basis="given", tokens=1_000_000)
    recipe = mixture(max_epochs=2) if sources else plain(max_epochs=2)

    shortened, plan = plan_text(recipe, {"web": size, "en": LARGE, "code": LARGE} if sources else {"": size})

    steps = 625 if sources else 500  # web has 4 of 5 tokens
    assert shortened.pretrain.steps == steps
    assert plan.uses[0].line().endswith(f"for {steps} of 20,000 steps is 2.00 epochs (pretrain.max_epochs)")
    assert plan.uses[0].remedy() == ""


def test_the_stage_that_encodes_is_planned() -> None:
    size = TextSize(
        basis="tokens", tokens=1_000_000, text_bytes=118_800_000, documents=1_000, sequences=1_000
    )

    _, plan = plan_text(plain(), {"": size})

    assert plan.encode is not None
    assert plan.encode.cpu_hours == pytest.approx(0.001)
    assert plan.encode.disk_bytes == 4_000_000 + 12 * 1_000 + 24 * 2_000 + 8 * 1_000


def test_text_that_is_not_known_shortens_nothing() -> None:
    recipe = plain(max_epochs=2)

    assert plan_text(recipe, {})[0] == recipe
    assert plan_text(recipe, {})[1].epoch_tokens is None
