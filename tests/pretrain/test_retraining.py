"""A retraining: the text that came since the champion and the text before it, in steps that follow from the new text."""

import json
import math
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.artifacts import artifact
from anadil.artifacts.artifact import digest_of
from anadil.core.errors import BudgetReached, DataError, Stopped
from anadil.pretrain.run import run
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import base_files
from anadil.runtime.job import Job, Stream
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import (
    SHORT,
    SignalAt,
    generations,
    losses,
    make_job,
    make_recipe,
    run_in_child,
    run_in_several,
)
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.sources import CODE, ENGLISH
from tests.kit.weekly_tokens import weekly_tokens

WSD: dict[str, Any] = {
    "schedule": "wsd",
    "decay_fraction": 0.25,
    "warmup_fraction": 0.0,
    "checkpoint_every": 2,
}
"""Flat up to step 10 of 4 + 8."""
WEEKS = (PRETRAINING_TEXTS, ENGLISH[:24], CODE)


def stream(tmp_path: Path, name: str, *weeks: Any) -> Stream:
    return weekly_tokens(tmp_path / name, tmp_path / "tokenizer", weeks)


def week(recipe: Recipe, start: str, kept: tuple[str, ...] = (), **retrain: Any) -> Recipe:
    """The derived recipe of a week."""
    champion = {
        "name": "anadil-az", "version": "1", "uri": "model", "digest": "0", "artifacts": {each: each for each in ("model", *kept)},
    }  # fmt: skip
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    data["pretrain"]["start_from"] = start
    return Recipe.model_validate(data | {"retrain": {"champion": champion, "keeps": kept, **retrain}})


def with_tokens(job: Job, **streams: Stream) -> Job:
    words = {word.replace("_", "."): each for word, each in streams.items()}
    return replace(job, inputs={"tokenizer": job.inputs["tokenizer"]}, streams=words)


def summary(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.out / "training.json").read_text()))


def lines(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.out / "training.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def places(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of one, two and three weeks, and a champion on the first one with its plateau's end."""
    folder = tmp_path_factory.mktemp("weeks")
    for each in inputs.iterdir():
        (folder / each.name).symlink_to(each)
    torch.set_num_threads(1)
    run(
        with_tokens(
            make_job(folder, make_recipe(folder / "untied", **WSD), "champion"),
            tokens=stream(folder, "0", *WEEKS[:1]),
        )
    )
    return folder


@pytest.fixture
def tokens(places: Path, tmp_path: Path) -> Stream:
    """Tokens of two weeks, the second one new, and the inputs of jobs."""
    for name in ("tokenizer", "untied"):
        (tmp_path / name).symlink_to(places / name)
    return stream(tmp_path, "1", *WEEKS[:2])


def plateau(places: Path) -> str:
    return str(places / "champion/work/checkpoints/step-00000010")


def start(tmp_path: Path, name: str, tokens: Stream, begin: str, **pretrain: Any) -> Job:
    """A job of a week that begins at a place."""
    recipe = week(make_recipe(tmp_path / "untied", **{**WSD, **pretrain}), begin)
    return with_tokens(make_job(tmp_path, recipe, name), tokens=tokens)


@pytest.mark.slow
def test_a_week_from_the_plateau_reads_its_text_once_and_the_next_begins_at_its_own_plateau(
    tmp_path: Path, places: Path, tokens: Stream
) -> None:
    run(job := start(tmp_path, "first", tokens, plateau(places)))

    done = summary(job)
    counts = done["retrain"]
    assert (counts["begin"], counts["earlier"]["documents"]) == ("plateau", len(WEEKS[0]))
    # Half of the tokens are new, in batches of four sequences.
    assert counts["steps"] == pytest.approx(2 * counts["new"]["sequences"] / 4, abs=1)
    assert done["sources"]["new"]["epochs"] == pytest.approx(1, abs=0.1)
    read = {name: done["sources"][name]["tokens"] for name in ("new", "earlier")}
    assert read["new"] / sum(read.values()) == pytest.approx(0.5, abs=0.08)
    [point] = [each for each in done["branch_points"] if each["step"] > 10]
    flat = point["step"] - 10
    assert flat == counts["steps"] - math.ceil(counts["steps"] / 4)
    assert [each["mix"] for each in done["phases"]] == [None, {"earlier": 0.5, "new": 0.5}]
    rates = [line["lr"] for line in lines(job) if line["step"] > 10]
    assert rates[:flat] == [0.005] * flat
    assert rates[flat] < 0.005
    assert rates[-1] == pytest.approx(0.0005)

    run(later := start(tmp_path, "second", stream(tmp_path, "2", *WEEKS), point["place"]))

    after = summary(later)
    assert after["retrain"]["earlier"]["documents"] == len(WEEKS[0]) + len(WEEKS[1])
    assert after["steps"] == point["step"] + after["retrain"]["steps"]
    # The text of this week begins, though the week before had one of this name.
    begins = json.loads(generations(later)[0].joinpath("state.json").read_text())["mixture"]["begins"]
    assert begins["new"] == 0
    assert begins["earlier"] == pytest.approx(40 + 2 * flat, abs=2)
    assert after["sources"]["new"]["epochs"] == pytest.approx(1, abs=0.1)
    assert after["sources"]["new"]["tokens"] == pytest.approx(after["retrain"]["new"]["tokens"], rel=0.15)


def test_earlier_text_goes_on_where_the_champion_stands_and_every_new_sequence_is_read(
    tmp_path: Path, places: Path, tokens: Stream
) -> None:
    job = start(tmp_path, "week", tokens, plateau(places), faults={"budget_hours": 1e-9})
    with pytest.raises(BudgetReached):
        run(job)

    [saved] = (job.work / "checkpoints").glob("step-*/state.json")
    state = json.loads(saved.read_text())
    # Ten steps of four sequences.
    assert state["mixture"]["begins"] == {"earlier": 40, "new": 0}
    [segment, *_] = state["mixture"]["schedule"]["segments"]
    assert (segment["begin"], segment["positions"]) == (40, [40, 0])


@pytest.mark.parametrize("begin", [slow("plateau"), matrix("weights")])
def test_a_killed_week_goes_on_to_the_same_bits(
    tmp_path: Path, places: Path, tokens: Stream, begin: str
) -> None:
    place = plateau(places) if begin == "plateau" else model_of(tmp_path, places)
    run(whole := start(tmp_path, "whole", tokens, place))
    for step in (12, 15) if begin == "plateau" else (3, 8):
        job = start(tmp_path, "killed", tokens, place)
        assert run_in_child(replace(job, tracker=SignalAt(step, signal.SIGTERM))) == Stopped.exit_code

    run(killed := start(tmp_path, "killed", tokens, place))

    assert losses(killed.out) == losses(whole.out)
    assert timeless(killed) == timeless(whole)


@pytest.mark.parametrize("degrees", [matrix({}), matrix({"shard": 2}), matrix({"tensor": 2})])
def test_every_layout_has_the_losses_of_each_part(
    tmp_path: Path, places: Path, tokens: Stream, degrees: dict[str, int]
) -> None:
    run(alone := start(tmp_path, "alone", tokens, plateau(places)))
    job = start(tmp_path, "several", tokens, plateau(places), parallelism=degrees)

    assert run_in_several(job, 2) == [0, 0]

    for one, other in zip(lines(alone)[-5:], lines(job)[-5:], strict=True):
        for key in ("loss", "loss/new", "loss/earlier", "tokens/new"):
            assert one[key] == pytest.approx(other[key], rel=1e-5)


@pytest.mark.slow
def test_weights_begin_the_last_phase_anew_and_a_source_that_was_taken_as_it_is_has_no_new_text(
    tmp_path: Path, places: Path, tokens: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    phases = [
        {"trains": "embeddings", "steps": 4, "lr": 0.01, "mix": {"web": 1}},
        {"trains": "all", "steps": 8, "lr": 0.005, "mix": {"web": 0.6, "en": 0.2, "code": 0.2}},
    ]
    data = make_recipe(tmp_path / "untied", phases=SHORT).model_dump(mode="json", exclude_defaults=True)
    data["pretrain"]["phases"] = phases
    data["sources"] = {
        "web": {"inputs": ["web"], "max_epochs": 50}, "en": {"inputs": ["en"], "language": "en"}, "code": {"inputs": ["code"], "language": "en"},
    }  # fmt: skip
    recipe = week(
        Recipe.model_validate(data), model_of(tmp_path, places), ("corpus.en", "tokenizer"), mix={"new": 0.4}
    )
    job = with_tokens(
        make_job(tmp_path, recipe, "week"),
        tokens_web=tokens,
        # Its tokens have the border of an earlier week.
        tokens_en=stream(tmp_path, "en", ENGLISH[:20], ENGLISH[20:]),
        tokens_code=stream(tmp_path, "code", CODE),
    )
    with caplog.at_level("INFO"):
        run(job)

    done = summary(job)
    assert list(done["sources"]) == ["en", "new_code", "new_web", "web"]
    assert [(each["trains"], each["steps"]) for each in done["phases"]] == [("all", done["retrain"]["steps"])]
    assert (done["retrain"]["begin"], done["start_from"]["step"]) == ("weights", 0)
    total = sum(each["tokens"] for each in done["sources"].values())
    share = {name: each["tokens"] / total for name, each in done["sources"].items()}
    assert share["en"] == pytest.approx(0.2, abs=0.05)
    assert share["new_web"] + share["new_code"] == pytest.approx(0.4, abs=0.05)
    assert "by retrain.epochs 1 and retrain.mix.new 0.4" in caplog.text
    assert re.search(
        r"new_web: [\d,]+ tokens in \d+ sequences; the run takes \d\.\d\d epochs of it", caplog.text
    )
    assert "another text" not in caplog.text


def test_a_week_without_new_text_is_refused(tmp_path: Path, places: Path, tokens: Stream) -> None:
    recipe = week(make_recipe(tmp_path / "untied", **WSD), plateau(places), ("corpus",))

    with pytest.raises(DataError, match="retrain: no text came since the champion"):
        run(with_tokens(make_job(tmp_path, recipe, "week"), tokens=tokens))


def test_a_recipe_that_keeps_the_section_begins_with_the_base_where_there_is_no_champion(
    tmp_path: Path, places: Path, tokens: Stream
) -> None:
    data = make_recipe(tmp_path / "untied", phases=SHORT).model_dump(mode="json", exclude_defaults=True)
    run(
        job := with_tokens(
            make_job(tmp_path, Recipe.model_validate(data | {"retrain": {}}), "a"), tokens=tokens
        )
    )

    assert "retrain" not in summary(job)
    assert summary(job)["documents"] == len(WEEKS[0]) + len(WEEKS[1])


def model_of(tmp_path: Path, places: Path) -> str:
    """The champion's model as an artifact."""
    model = tmp_path / "champion"
    shutil.copytree(places / "champion/out", model)
    origin = {
        "recipe base.model": json.dumps(str(tmp_path / "untied")),
        "input tokenizer": digest_of(tmp_path / "tokenizer"),
    }
    artifact.seal(model, kind="model", origin=origin | base_files(str(tmp_path / "untied")))
    return str(model)


def timeless(job: Job) -> dict[str, Any]:
    return {key: summary(job)[key] for key in ("steps", "tokens", "sources", "retrain", "phases")}
