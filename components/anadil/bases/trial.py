"""A short pre-training of each candidate at equal compute, extrapolated to the recipe's whole training."""

import json
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.artifacts import artifact
from anadil.bases.candidates import LEFT_OUT, with_base
from anadil.bases.extrapolate import Curve, extrapolate
from anadil.bases.measure import Measured
from anadil.core.errors import PreflightError, message_of
from anadil.core.files import write_atomic
from anadil.core.json_text import read_json, write_indented
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.heldout import digest_of
from anadil.model.load import copy_tokenizer
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback
from anadil.pretrain.lr_schedule import phase_of
from anadil.pretrain.prepare import in_training_group
from anadil.pretrain.short_run import (
    Budget,
    ScoredText,
    ShortRun,
    budget_of,
    drop_work,
    short_recipe,
    short_run,
    text_nats,
)
from anadil.pretrain.state import Step
from anadil.recipe.pretrain import Parallelism
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import base_cache
from anadil.runtime.job import Job, word_of
from anadil.runtime.signals import Stop
from anadil.text.metrics import bits_per_byte

log = logging.getLogger(__name__)

RESULT, EMBEDDING_MAP = "result.json", "embedding_map.json"
POINTS = 8
"""Most points of a curve before its end, each .71 of the next one's steps."""
MIN_POINTS = 4
"""Fewest points that a curve is extrapolated from, the base among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate after its short run."""

    run: ShortRun
    points: Mapping[int, list[float]]
    """Step -> nats of each document in the taught language. Step 0 is the base."""


def try_candidates(
    measured: Sequence[Measured], recipe: Recipe, share: float, corpora: Mapping[str, Path], work: Path
) -> None:
    """Train each candidate with a share of the recipe's compute, and add what it came to to its table.

    A result that an earlier start stored in `work` is taken.
    """
    changed: dict[str, Any] = {"parallelism": Parallelism()}
    if share < 1:
        # A rate that falls within the short run flattens its curve, and the fit takes that for the end of learning.
        changed["final_lr_fraction"] = 1.0
    settings = recipe.pretrain.model_copy(update=changed)
    recipe = recipe.model_copy(update={"pretrain": settings, "retrain": None})
    whole = whole_flops(recipe, measured)
    inputs = {word_of("corpus", source): path for source, path in corpora.items()}
    stop = Stop()
    stop.listen()
    cache = base_cache(recipe)
    job = Job(recipe=recipe, inputs=inputs, out=work / "out", work=work, base_cache=cache, stop=stop)
    with in_training_group(job) as (processes, device):
        for each in measured:
            try:
                one = budget_of(with_base(recipe, each.candidate.base), 1)
                budget = replace(one, steps=max(1, round(share * whole / one.flops)))
                tried = find_or_try(job, each, budget, processes, device)
            except LEFT_OUT as error:
                log.warning("%s: not tried: %s", each.candidate.name, message_of(error))
                each.table["trial"] = {"why_not": message_of(error)}
                continue
            finally:
                stop.check()
            _add(each, tried, whole, recipe.seed)
    curves = {number: each.curve for number, each in enumerate(measured) if each.curve}
    ends = extrapolate([*curves.values()], recipe.seed) if curves else []
    for number, end in zip(curves, ends, strict=True):
        measured[number].extrapolation = end
        figures = {"bits_per_byte": end.value, "bits_per_byte_interval": end.interval}
        measured[number].table["trial"]["extrapolated"] = figures


def whole_flops(recipe: Recipe, measured: Sequence[Measured]) -> float:
    """FLOPs of the recipe's whole training with its own base, or with the first candidate whose sizes are known."""
    for base in (recipe.base, *(each.candidate.base for each in measured)):
        try:
            # Each candidate keeps its vocabulary, in which no row is new.
            return budget_of(with_base(recipe, base), recipe.pretrain.without_new_rows.steps).flops
        except LEFT_OUT as error:
            log.info("%s: its compute is not known: %s", base.model, message_of(error))
    raise PreflightError("--trial: the compute of no base is known, so none is equal. Leave --trial out")


def find_or_try(job: Job, each: Measured, budget: Budget, processes: Group, device: torch.device) -> Tried:
    """Find the stored result of a candidate, or train it."""
    alone = with_base(job.recipe, each.candidate.base)
    origin = {
        "base": each.candidate.digest,
        "pretrain": alone.pretrain.model_dump_json(),
        "seed": str(alone.seed),
        "steps": str(budget.steps),
        **{f"text {kind}": digest_of(encoded.documents) for kind, encoded in each.encoded.items()},
        **{f"input {word}": artifact.digest_of(path) for word, path in job.inputs.items()},
    }
    folder = job.work / "tried" / artifact.origin_key(origin)
    if (folder / RESULT).is_file():
        log.info("%s: tried already", each.candidate.name)
        stored = read_json(folder / RESULT)
        return Tried(run=ShortRun(**stored["run"]), points=_points(stored["points"]))
    work = folder / each.scored.name  # its checkpoints, which no command takes for a model
    tokenizer = _tokenizer(each, work / "tokenizer")
    text = ScoredText(
        ids={kind: encoded.ids[each.scored.name] for kind, encoded in each.encoded.items()},
        prefix=each.scored.prefix, bos=each.scored.bos,
    )  # fmt: skip
    steps = points_of(alone, budget.steps_of(budget.rows_of(tokenizer)), tokenizer)
    scores = PointScores(text, steps, budget.context, work / "points.json")
    job = replace(job, recipe=alone, inputs={**job.inputs, "tokenizer": tokenizer}, work=work)
    run = short_run(job, tokenizer, budget, text, processes, device, [scores])
    points = {**scores.read(), run.steps: list(run.nats["taught"])}
    write_indented(folder / RESULT, {"base": each.candidate.name, "run": asdict(run), "points": points})
    drop_work(work, processes)
    return Tried(run=run, points=points)


def points_of(recipe: Recipe, steps: int, tokenizer: Path) -> set[int]:
    """Steps of a short run at which it is scored before its end. At step 0 it is the base."""
    phases = short_recipe(recipe, steps, tokenizer).pretrain.phases
    every = {round(steps * 0.5 ** (place / 2)) for place in range(1, POINTS + 1)}
    # An earlier phase, in which the embeddings alone learn, has another curve.
    return {
        0,
        *(step for step in every if 0 < step < steps and phase_of(step - 1, phases)[0] == len(phases) - 1),
    }


class PointScores(Callback):
    """Scores text at some steps, and keeps the scores in a file that outlives a kill."""

    def __init__(self, text: ScoredText, steps: Collection[int], length: int, file: Path) -> None:
        self._text, self._steps, self._length, self._file = text, steps, length, file

    def pre_train(self) -> None:
        """Score the base, unless the run resumes."""
        self._score()

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Score the model where a point is due."""
        self._score()

    def read(self) -> dict[int, list[float]]:
        """Step -> nats of each document."""
        return _points(read_json(self._file)) if self._file.is_file() else {}

    def _score(self) -> None:
        run, points = self.training, self.read()
        if run.state.step not in self._steps or run.state.step in points:
            return
        run.enter("validate")
        taught = replace(self._text, ids={"taught": self._text.ids["taught"]})
        nats = text_nats(run.trainer.net, taught, self._length, f"step {run.state.step:,}")["taught"]
        if run.group.is_first:
            write_atomic(self._file, json.dumps({**points, run.state.step: nats}))


def _points(stored: Mapping[Any, list[float]]) -> dict[int, list[float]]:
    return {int(step): nats for step, nats in stored.items()}


def _tokenizer(each: Measured, folder: Path) -> Path:
    if artifact.read_manifest(str(folder)) is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copyfile(each.candidate.path / "config.json", folder / "config.json")
        copy_tokenizer(each.candidate.path, folder)
        write_indented(folder / EMBEDDING_MAP, {"rows": None})  # its own vocabulary stays
        artifact.seal(folder, kind="tokenizer", origin={"base": each.candidate.digest})
    return folder


def _add(each: Measured, tried: Tried, whole: float, seed: int) -> None:
    """Add the figures of a short run to a candidate."""
    run, sizes = tried.run, each.num_bytes
    steps = sorted(tried.points)
    shares = [step * run.flops / run.steps / whole for step in steps]
    nats = np.array([tried.points[step] for step in steps])
    each.after = {kind: np.array(listed) for kind, listed in run.nats.items()}
    if len(steps) >= MIN_POINTS and shares[-1] < 1:
        each.curve = Curve(shares=shares, nats=nats, num_bytes=sizes.astype(np.float64))
    each.table["trial"] = {
        "steps": run.steps, "tokens": run.tokens, "flops": run.flops, "share": shares[-1], "seconds": run.seconds,
        "words": round(run.tokens / each.table["taught"]["fertility"]),
        "curve": [
            {"step": step, "share": share, "bits_per_byte": bits_per_byte(float(row.sum()), int(sizes.sum()))}
            for step, share, row in zip(steps, shares, nats, strict=True)
        ],
        **{kind: _scored(nats_after, each.encoded[kind].num_bytes, seed) for kind, nats_after in each.after.items()},
        "extrapolated": None,
    }  # fmt: skip


def _scored(nats: NDArray[np.float64], num_bytes: NDArray[np.int64], seed: int) -> dict[str, Any]:
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    return {"bits_per_byte": alone.value, "bits_per_byte_interval": [alone.low, alone.high]}
