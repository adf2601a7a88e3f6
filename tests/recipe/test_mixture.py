"""Mistakes in the mixes of a recipe: all at once, each with its line, value and remedy."""

import pytest

from anadil.core.errors import RecipeError
from anadil.recipe.load import parse_recipe

SOURCES = """
sources:
  web: {inputs: [a.jsonl]}
  en: {inputs: [b.jsonl], language: en}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(RecipeError) as refusal:
        parse_recipe(text, "my.yaml")
    assert refusal.value.exit_code == 2
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


def phases(*mixes: str, more: str = "") -> str:
    lines = "".join(f"    - {{trains: all, steps: 10, lr: 0.001, {mix}}}\n" for mix in mixes)
    return f"pretrain:\n{more}  phases:\n{lines}"


def test_every_mistake_beside_the_sources_is_told_at_once() -> None:
    text = SOURCES + phases("mix: {web: 1, eng: 2}", "lr: 0.1", "mix: {web: 1}, anneal: {web: 2}").replace(
        "lr: 0.001, lr", "lr"
    )

    assert mistakes(text) == [
        "line 7: pretrain.phases.0.mix.eng: is not in sources (web, en); did you mean 'en'? (got 2)",
        (
            "line 8: pretrain.phases.1: has no mix, and the recipe has sources; write the shares, such as "
            'mix: {web: 0.8, en: 0.2} (got {"trains": "all", "steps": 10, "lr": 0.1})'
        ),
        (
            "line 9: pretrain.phases.2.anneal: is the mix of the decay of wsd, and pretrain.schedule is cosine; set "
            'schedule to wsd, or remove anneal (got {"web": 2})'
        ),
    ]


def test_shares_that_are_no_shares_are_told_with_their_value() -> None:
    text = SOURCES + phases(
        "mix: {web: -1, en: 2}",
        "mix: {web: 0, en: 0}",
        "mix: {web: .nan, en: 1}",
        "mix: {web: 100000, en: 1}",
        "mix: {}",
    )

    assert mistakes(text) == [
        "line 7: pretrain.phases.0.mix.web: must be at least 0 (got -1)",
        'line 8: pretrain.phases.1.mix: all shares are 0; give a source a share above 0 (got {"web": 0, "en": 0})',
        'line 9: pretrain.phases.2.mix.web: must be a number (got ".nan")',
        (
            "line 10: pretrain.phases.3.mix: the share of en is below 1/10,000 of all; raise it or set it to 0 "
            '(got {"web": 100000, "en": 1})'
        ),
        "line 11: pretrain.phases.4.mix: all shares are 0; give a source a share above 0 (got {})",
    ]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            phases("mix: {web: 1}"),
            "line 3: pretrain.phases.0.mix: needs sources, and the recipe has none; name them or remove the key",
        ),
        (
            SOURCES + phases("mix: {web: 1}", "mix: {web: 1, en: 0}"),
            "line 4: sources.en: no phase uses the source; give it a share in pretrain.phases[].mix, or remove it",
        ),
        (
            SOURCES
            + phases("mix: {web: 1, en: 1}, anneal: {web: 1}", more="  schedule: wsd\n  decay_fraction: 0\n"),
            "line 9: pretrain.phases.0.anneal: no step decays; raise pretrain.decay_fraction and leave pretrain.average_last out, or remove anneal",
        ),
    ],
)
def test_a_mix_and_the_rest_of_the_recipe_fit_each_other(text: str, mistake: str) -> None:
    assert [line.partition(" (got")[0] for line in mistakes(text)] == [mistake]


def test_a_source_may_be_in_the_anneal_alone() -> None:
    text = SOURCES + phases("mix: {web: 1}, anneal: {web: 1, en: 1}", more="  schedule: wsd\n")

    assert parse_recipe(text, "my.yaml").pretrain.phases[0].anneal == {"web": 1, "en": 1}
