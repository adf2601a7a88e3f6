"""Shipped recipes: their text, and what the command line makes of it."""

import json
import logging
import re
from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.cli.main import main
from anadil.core.errors import RecipeError
from anadil.core.json_text import read_json
from anadil.recipe.load import load_recipe, parse_recipe, shipped
from tests.kit.one_text import ONE_TEXT

README = Path(__file__).parents[2] / "README.md"
NAMES = [path.stem for path in shipped()]
MIXED = """
sources: {az: {inputs: [a.txt]}, en: {inputs: [b.txt], language: en}}
pretrain:
  schedule: wsd
  phases:
    - {trains: embeddings, steps: 60, lr: 0.1, mix: {az: 1}}
    - {trains: all, steps: 300, lr: 0.1, mix: {az: .9, en: .1}, anneal: {az: .5, en: .5}}
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_recipe_replays_a_language_that_its_base_knows(name: str) -> None:
    recipe = load_recipe(name)
    mix = recipe.pretrain.phases[-1].mix or {}

    replay = {source: mix.get(source) for source in recipe.sources if source not in recipe.target_sources}

    assert replay["en"]
    assert all(replay.values())
    assert recipe.sources["en"].language == "en"


@pytest.mark.parametrize("name", NAMES)
def test_text_on_the_command_line_takes_the_place_of_the_sources_and_says_so(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        recipe = load_recipe(name, [ONE_TEXT])

    assert not recipe.sources
    assert recipe.clean.inputs == ("builtin:az/prose.jsonl",)
    assert all(phase.mix is None for phase in recipe.pretrain.phases)
    [line] = caplog.messages
    assert (
        f"is the only text; set aside: sources {', '.join(load_recipe(name).sources)}; sources.NAME" in line
    )


def test_the_text_that_readme_puts_in_keeps_the_replay(caplog: pytest.LogCaptureFixture) -> None:
    [(name, setting)] = re.findall(
        r"anadil run (\w+) --set '(\S+\[text\])'", README.read_text(encoding="utf-8")
    )

    recipe = load_recipe(name, [setting])

    assert (recipe.sources["az"].inputs, recipe.sources["en"].inputs) == (
        ("text",),
        ("builtin:en/prose.jsonl",),
    )
    assert recipe.pretrain.phases == load_recipe(name).pretrain.phases
    assert not caplog.messages


def test_a_key_of_the_users_files_leaves_built_in_text_readable(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    options = ["--recipe", "own", "--set", "clean.text_field=Matn", "--source", "en", "--out", str(corpus)]

    assert main(["clean", *options]) == 0
    assert read_json(corpus / "stats.json")["bad"] == 0


def test_chats_on_the_command_line_take_the_place_of_weighed_ones_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        alone = load_recipe("smoke", ["finetune.inputs=[mine.csv]"])
        beside = load_recipe("smoke", ["finetune.inputs=[mine.csv, chats.jsonl]"])
        weighed = load_recipe("smoke", ["finetune.inputs=[mine.csv]", "finetune.mix={mine: 2.0}"])

    assert [recipe.finetune.mix for recipe in (alone, beside, weighed)] == [{}, {"chats": 0.5}, {"mine": 2.0}]
    [line] = caplog.messages
    assert line.endswith(
        "finetune.inputs, as given here, are the only chats; set aside: finetune.mix of chats"
    )


def test_sources_on_the_command_line_beside_another_text_are_not_set_aside() -> None:
    with pytest.raises(RecipeError, match=r"clean\.inputs and sources are both given"):
        parse_recipe(MIXED, "r.yaml", ["clean.inputs=[c.txt]", "sources.az.max_epochs=2"])


def test_phases_on_the_command_line_keep_the_shares_of_those_that_train_the_same() -> None:
    phases = "pretrain.phases=[{trains: all, steps: 3, lr: 0.2}, {trains: embeddings, steps: 1, lr: 0.2}]"

    last, first = parse_recipe(MIXED, "r.yaml", [phases]).pretrain.phases

    assert (last.steps, last.mix, last.anneal) == (3, {"az": 0.9, "en": 0.1}, {"az": 0.5, "en": 0.5})
    assert (first.steps, first.mix, first.anneal) == (1, {"az": 1}, None)


def test_shares_on_the_command_line_are_those_of_the_run() -> None:
    phases = "pretrain.phases=[{trains: all, steps: 3, lr: 0.2, mix: {az: 1, en: 1}}]"

    [phase] = parse_recipe(MIXED, "r.yaml", [phases]).pretrain.phases

    assert (phase.mix, phase.anneal) == ({"az": 1, "en": 1}, None)


def test_replay_is_other_text_than_what_shows_how_much_english_is_left() -> None:
    def runs_of(name: str) -> set[str]:
        rows = storage.built_in(f"builtin:en/{name}").read_text(encoding="utf-8").splitlines()
        words = [json.loads(row)["text"].casefold().split() for row in rows]
        return {" ".join(each[at : at + 8]) for each in words for at in range(len(each) - 7)}

    replay, retained = runs_of("prose.jsonl"), runs_of("retained.jsonl")

    assert len(replay) > 7_000
    assert not replay & retained
