"""Epochs of each source, before anything runs."""

from typing import Any

import pytest
from pydantic import ValidationError

from anadil.core.errors import DataError, RecipeError
from anadil.encode.need import need
from anadil.estimate.instances import this_machine
from anadil.estimate.schedule import schedule_of, standing
from anadil.estimate.stage_memory import NeedRequest
from anadil.estimate.text_use import (
    TextPart,
    TextSize,
    TextUse,
    part_sizes,
    plan_text,
    split_mix,
    trajectory,
    week_settings,
)
from anadil.recipe.pretrain import Pretrain
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
PHASES: list[dict[str, Any]] = [
    {"trains": "embeddings", "steps": 100, "lr": 0.01},
    {"trains": "all", "steps": 1_000, "lr": 0.005},
]
CHAMPION = {
    "name": "anadil-az",
    "version": "1",
    "uri": "model",
    "digest": "0",
    "artifacts": {"model": "model"},
}
WSD: dict[str, Any] = {"schedule": "wsd", "decay_fraction": 0.1}


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

    _, text = plan_text(plain(), {"": size})

    encode = need(NeedRequest(recipe=plain(), machine=this_machine(), text=text))
    assert encode is not None
    assert encode.cpu_hours == pytest.approx(0.001)
    assert encode.disk_bytes == 4_000_000 + 12 * 1_000 + 24 * 2_000 + 8 * 1_000


def test_text_that_is_not_known_shortens_nothing() -> None:
    recipe = plain(max_epochs=2)

    assert plan_text(recipe, {})[0] == recipe
    assert plan_text(recipe, {})[1].epoch_tokens is None


def recipe_of(
    sources: tuple[str, ...] = (),
    mix: dict[str, float] | None = None,
    retrain: dict[str, Any] | None = None,
    own: dict[str, dict[str, Any]] | None = None,
    **pretrain: Any,
) -> Recipe:
    phases = [{**each, **({"mix": mix} if mix else {})} for each in PHASES]
    return Recipe.model_validate(
        {
            "pretrain": {"phases": phases, "batch_size": 10, "start_from": "step-1", **pretrain},
            "sources": {
                name: {"inputs": [f"{name}.jsonl"], "language": "az" if name == sources[0] else "en"}
                | (own or {}).get(name, {})
                for name in sources
            },
            "language": "az",
            "retrain": {"champion": CHAMPION, **(retrain or {})},
        }
    )


def part(source: str, sequences: int, *, new: bool = False, targets: int | None = None) -> TextPart:
    return TextPart(source=source, is_new=new, sequences=sequences, targets=targets or 100 * sequences)


def test_new_text_has_its_share_and_a_source_without_some_keeps_its_share_of_the_whole() -> None:
    recipe = recipe_of(("web", "books", "en"), {"web": 0.6, "books": 0.2, "en": 0.2}, {"mix": {"new": 0.4}})
    parts = [
        part("web", 50),
        part("web", 5, new=True),
        part("en", 9),
        part("books", 7),
        part("books", 3, new=True),
    ]

    shares = split_mix(recipe, recipe.pretrain.phases[-1].mix, parts)

    assert shares == pytest.approx({"web": 0.3, "books": 0.1, "en": 0.2, "new_web": 0.3, "new_books": 0.1})
    # Where it would have all of the room, earlier text of the others has half of its part.
    largely_english = split_mix(recipe, {"web": 0.2, "en": 0.8}, parts[:3])
    assert largely_english == pytest.approx({"web": 0.06, "en": 0.54, "new_web": 0.4})
    # A source whose text is all new has no earlier part, and one side without text leaves all to the other.
    only_new = [part("web", 5, new=True), part("en", 2, new=True), part("books", 1, new=True)]
    assert split_mix(recipe, {"web": 3, "en": 1}, only_new) == pytest.approx(
        {"new_web": 0.75, "new_en": 0.25, "new_books": 0}
    )
    plain = recipe_of(retrain={"mix": {"new": 0.2}})
    assert split_mix(plain, None, [part("", 90), part("", 10, new=True)]) == {"earlier": 0.8, "new": 0.2}


@pytest.mark.parametrize(
    ("retrain", "steps"),
    [
        ({}, 20),
        ({"epochs": 2}, 40),
        ({"epochs": 0.5}, 10),
        ({"mix": {"new": 1}}, 10),
        ({"mix": {"new": 0.1}}, 100),
    ],
)
def test_steps_are_those_in_which_new_text_is_read_as_often_as_the_recipe_says(
    retrain: dict[str, Any], steps: int
) -> None:
    recipe = recipe_of(retrain=retrain, max_epochs=1)
    parts = [part("", 5_000), part("", 100, new=True)]

    settings = week_settings(recipe, parts)

    assert settings.steps == steps
    # The last phase alone, whose rate rises and falls again.
    assert [(each.trains, each.lr) for each in settings.phases] == [("all", 0.005)]
    sizes = part_sizes(recipe, settings, parts)
    used = dict(zip(sizes, schedule_of(settings, sizes).positions(steps * 10), strict=True))
    assert used["new"] == pytest.approx(100 * recipe.retrain.epochs, abs=1)  # type: ignore[union-attr]


def test_tokens_decide_where_sequences_hold_different_numbers_of_them() -> None:
    # Half as full: half of the tokens at twice the sequences.
    parts = [part("", 5_000), part("", 100, new=True, targets=5_000)]

    assert week_settings(recipe_of(), parts).steps == 15


def test_a_week_of_less_than_a_batch_has_two_steps_and_its_text_comes_no_more_often() -> None:
    recipe = recipe_of()
    parts = [part("", 5_000), part("", 3, new=True)]

    settings = week_settings(recipe, parts)
    sizes = part_sizes(recipe, settings, parts)
    schedule = schedule_of(settings, sizes)

    assert settings.steps == 2
    assert dict(zip(sizes, schedule.positions(20), strict=True)) == {"earlier": 17, "new": 3}


def test_a_source_with_little_new_text_gives_its_share_away_and_earlier_limits_are_those_of_this_run() -> (
    None
):
    own = {"web": {"max_epochs": 1}, "en": {"max_epochs": 2}}
    recipe = recipe_of(("web", "en"), {"web": 0.5, "en": 0.5}, own=own)
    parts = [part("web", 1_000), part("web", 190, new=True), part("en", 30), part("en", 10, new=True)]

    settings = week_settings(recipe, parts)
    stands = {"web": 5_000, "en": 400}
    sizes = part_sizes(recipe, settings, parts, stands)
    schedule = schedule_of(settings, sizes, before=standing(tuple(sizes), stands, 0))

    assert settings.steps == 40
    # 60 of `en`, twice its 30, from where it stood; then its share goes to all others.
    position = dict(zip(sizes, schedule.positions(400), strict=True))
    assert position["new_en"] == 10
    assert position["en"] == 460
    assert sum(position.values()) == 5_400 + 400
    assert set(schedule.exhausted) == {"new_en", "en"}


def test_a_week_ends_with_its_new_text_where_earlier_text_runs_out_and_gives_its_share_away() -> None:
    own = {"web": {"max_epochs": 1}, "en": {"max_epochs": 4}}
    recipe = recipe_of(("web", "en"), {"web": 0.8, "en": 0.2}, own=own)
    parts = [part("web", 10), part("web", 100, new=True), part("en", 1_000)]

    settings = week_settings(recipe, parts)
    sizes = part_sizes(recipe, settings, parts)
    used = dict(zip(sizes, schedule_of(settings, sizes).positions(10 * settings.steps), strict=True))

    assert settings.steps < 20
    assert used["new_web"] == 100
    assert used["en"] < 60


def test_text_that_is_too_little_for_the_steps_makes_fewer_and_never_ends_a_run() -> None:
    own = {"web": {"max_epochs": 1}}
    recipe = recipe_of(("web",), {"web": 1}, {"mix": {"new": 0.1}}, own)
    parts = [part("web", 50), part("web", 100, new=True)]
    settings = week_settings(recipe, parts)
    assert settings.steps == 15  # not 100
    schedule_of(settings, part_sizes(recipe, settings, parts))

    few = [part("web", 2), part("web", 1, new=True)]
    settings = week_settings(recipe, few)
    sizes = part_sizes(recipe, settings, few)
    assert settings.steps == 2
    assert sum(schedule_of(settings, sizes).positions(20)) == 20


def test_a_trajectory_is_that_of_the_champion_up_to_the_checkpoint_and_falls_in_a_share_of_the_new_steps() -> (
    None
):
    own = recipe_of(**WSD).pretrain
    champion = Pretrain.model_validate({"phases": PHASES, **WSD})
    assert champion.plateau_ends == (90, 1_000)

    first = trajectory(own, own.phases[-1], 50, (champion, 1_000))
    assert [each.steps for each in first.phases] == [100, 950]
    assert first.plateau_ends[-1] == 1_045
    second = trajectory(own, own.phases[-1], 31, (first, 1_045))
    assert [each.steps for each in second.phases] == [100, 976]
    assert (second.steps, second.plateau_ends[-1]) == (1_076, 1_072)
    # Every number of steps leaves one on the plateau, or the next week would have nowhere new to begin.
    for steps in range(2, 300):
        week = trajectory(own, own.phases[-1], steps, (second, 1_072))
        assert week.plateau_ends[-1] == 1_072 + steps - max(1, min(-(-steps // 10), steps - 1))


def test_the_steps_of_a_champion_s_other_decay_are_not_planned_anew() -> None:
    own = recipe_of(schedule="wsd", decay_fraction=0.0).pretrain
    champion = Pretrain.model_validate({"phases": PHASES, **WSD})

    week = trajectory(own, own.phases[-1], 50, (champion, 1_000))

    assert (week.steps, week.plateau_ends[-1]) == (1_050, 1_050)


def test_no_new_text_and_none_that_the_last_phase_reads_are_two_reasons() -> None:
    mixes = ({"en": 1}, {"web": 1})
    phases = [{**each, "mix": mix} for each, mix in zip(PHASES, mixes, strict=True)]
    recipe = recipe_of(("web", "en"), phases=phases)
    with pytest.raises(DataError, match="no text came since the champion"):
        week_settings(recipe, [part("web", 10), part("en", 10)])
    with pytest.raises(DataError, match=r"last one's mix has no share of en, and only there text came"):
        week_settings(recipe, [part("web", 10), part("en", 10), part("en", 3, new=True)])


def test_a_short_week_writes_as_many_checkpoints_as_are_averaged() -> None:
    recipe = recipe_of(schedule="wsd", average_last=4)
    settings = week_settings(recipe, [part("", 5_000), part("", 100, new=True)])

    week = recipe.model_copy(update={"pretrain": settings.model_copy(update={"start_from": "model"})})
    week.refuse_few_checkpoints()
    assert week.averaged_steps == (5, 10, 15, 20)


def test_a_week_of_fewer_steps_than_are_averaged_is_not_refused() -> None:
    recipe = recipe_of(schedule="wsd", average_last=8)
    settings = week_settings(recipe, [part("", 5_000), part("", 15, new=True)])
    alone = recipe.model_copy(update={"pretrain": settings.model_copy(update={"start_from": None})})

    week = recipe.model_copy(update={"pretrain": settings.model_copy(update={"start_from": "model"})})
    week.refuse_few_checkpoints()

    assert week.averaged_steps == (1, 2, 3)
    with pytest.raises(ValueError, match=r"pretrain.average_last is 8"):
        alone.refuse_few_checkpoints()


def test_a_source_may_not_have_the_name_of_new_text() -> None:
    with pytest.raises(
        ValidationError, match=r"new_web: is the name that retrain gives to the new text of web"
    ):
        recipe_of(("web", "new_web"), {"web": 0.5, "new_web": 0.5})
