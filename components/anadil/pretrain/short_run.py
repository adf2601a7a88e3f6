"""A short pre-training at a given compute, whose model is scored and then dropped: for `trial` and `anadil bases`."""

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.core.errors import RecipeError
from anadil.core.progress import progress
from anadil.estimate.model_shape import Shape, base_shape
from anadil.model.load import free_memory
from anadil.model.loss import IGNORED
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.batch import batch_of
from anadil.pretrain.embedding_init import vocabulary_rows
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.prepare import fit_phases
from anadil.pretrain.run import train
from anadil.recipe.pretrain import Copies, scaled_phases
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.runtime.tracking_spool import Tracker
from anadil.tokens.packing import cut_pieces, packed_of, stream_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Compute of a short run: the FLOPs of so many steps with the base's vocabulary."""

    shape: Shape
    context: int
    tokens_per_step: int
    """Tokens of a batch, padding included."""
    steps: int
    """Steps with the base's vocabulary."""

    @property
    def flops(self) -> float:
        """FLOPs of each training, up to rounding to whole steps."""
        return self.steps * self.flops_per_step(self.shape.vocabulary)

    def flops_per_step(self, rows: int) -> float:
        """FLOPs of an optimizer step with so many embedding rows; see `Shape.flops_per_token`."""
        return self.tokens_per_step * replace(self.shape, vocabulary=rows).flops_per_token(self.context)

    def steps_of(self, rows: int) -> int:
        """Optimizer steps that cost as much with so many embedding rows, at least 1."""
        return max(1, round(self.flops / self.flops_per_step(rows)))

    def rows_of(self, tokenizer: Path) -> int:
        """Embedding rows of the model under a tokenizer."""
        rows = vocabulary_rows(tokenizer, self.shape.vocabulary)
        return self.shape.vocabulary if rows is None else len(rows)


SHORT_EPOCHS = 10**6
"""Passes over a source that no short run makes."""


def budget_of(recipe: Recipe, steps: int) -> Budget:
    """Make the budget of so many steps of a recipe; `AnadilError` where the model's sizes are not known."""
    settings = recipe.pretrain
    return Budget(
        shape=base_shape(recipe),
        context=settings.sequence_length,
        tokens_per_step=settings.batch_size * settings.sequence_length,
        steps=steps,
    )


def short_recipe(recipe: Recipe, steps: int, tokenizer: Path) -> Recipe:
    """Make the recipe of a short run: pretrain's, shorter, and without settings that only a long run needs."""
    # Before they are scaled: without its steps of new_rows a run would have less compute than the others.
    settings = fit_phases(recipe, tokenizer).pretrain
    faults = settings.faults.model_copy(update={"budget_hours": None, "budget_usd": None, "burn_in": "never"})
    phases = scaled_phases(settings.phases, steps)
    # Its few steps read the text in the taught language alone, as often as they need.
    targets = {
        name: recipe.sources[name].model_copy(update={"max_epochs": SHORT_EPOCHS, "teacher": None})
        for name in recipe.target_sources
    }
    if targets:
        mix = dict.fromkeys(targets, 1.0)
        phases = tuple(phase.model_copy(update={"mix": mix, "anneal": None}) for phase in phases)
    changed = {
        "phases": phases, "start_from": None, "average_last": None, "max_epochs": None, "copies": Copies(),
        "faults": faults, "validate_every": 0, "profile_steps": 0,
    }  # fmt: skip
    return recipe.model_copy(update={"pretrain": settings.model_copy(update=changed), "sources": targets})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText:
    """Documents of each kind in the tokens of a model."""

    ids: Mapping[str, Sequence[NDArray[np.int32]]]
    """Kind -> ids of each document, without special tokens."""
    prefix: int
    """Token before each document."""
    bos: int | None
    """Token before each later piece of a document. None: no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """Result of a short run."""

    steps: int
    tokens: int
    """Target tokens that it was trained on."""
    flops: float
    rows: int
    """Embedding rows of its model."""
    parameters: int
    loss: float
    """Loss of the last step, in nats per token; not comparable between vocabularies."""
    seconds: float
    nats: Mapping[str, Sequence[float]]
    """Kind of text -> nats of each document."""


def short_run(
    job: Job, tokenizer: Path, budget: Budget, text: ScoredText, processes: Group, device: torch.device,
    callbacks: Sequence[Callback] = (),
) -> ShortRun:  # fmt: skip
    """Train in `job.work`, from the last checkpoint there on, and score the model, which is then dropped."""
    name = job.work.name
    rows = budget.rows_of(tokenizer)
    steps = budget.steps_of(rows)
    log.info("%s: %s steps with %s embedding rows", name, f"{steps:,}", f"{rows:,}")
    alone = replace(
        job,
        recipe=short_recipe(job.recipe, steps, tokenizer),
        inputs={word: path for word, path in job.inputs.items() if word != "tokenizer"}
        | {"tokenizer": tokenizer},
        out=job.work / "out",
        tracker=Tracker(None),
        records={},
        varying=[],
        contents={},
    )
    training = train(alone, processes, device, callbacks)
    net, state, lines = training.trainer.net, training.state, training.lines
    result = ShortRun(
        steps=state.step, tokens=state.tokens, flops=state.step * budget.flops_per_step(rows), rows=rows,
        parameters=sum(math.prod(shape) for shape in net.shapes.values()),
        loss=processes.run_on_first(lambda: float(lines[-1]["loss"])), seconds=round(state.seconds, 1),
        nats=text_nats(net, text, budget.context, name),
    )  # fmt: skip
    del net, training
    free_memory()
    return result


def drop_work(work: Path, processes: Group) -> None:
    """Remove the checkpoints of a short run, once its result is stored."""
    processes.wait()
    if processes.local_rank == 0:
        shutil.rmtree(work, ignore_errors=True)


def text_nats(net: ParallelModel, text: ScoredText, length: int, name: str) -> dict[str, list[float]]:
    """Kind of text -> nats of each document."""
    return {
        kind: document_nats(
            net, encoded, prefix=text.prefix, bos=text.bos, length=length, name=f"{name}, {kind}"
        ).tolist()
        for kind, encoded in text.ids.items()
    }


def document_nats(
    net: ParallelModel, encoded: Sequence[NDArray[np.int32]], *, prefix: int, bos: int | None, length: int,
    name: str,
) -> NDArray[np.float64]:  # fmt: skip
    """Sum -ln p over the tokens of each document, equal on every process.

    Documents are `[prefix] + ids`, each alone in its sequences. A document longer than a sequence is cut
    into pieces that do not see each other, as in the validation of training.
    """
    documents = [np.concatenate(([prefix], ids)).astype(np.int32) for ids in encoded]
    stream = stream_of(documents, bos)
    pieces = cut_pieces(stream, length)
    packed = packed_of(stream, pieces, np.arange(len(pieces) + 1), length)
    begins = stream.first_starts(len(documents))
    document_of = np.searchsorted(begins, pieces[:, 0], side="right") - 1
    mesh = net.mesh
    mine = np.arange(mesh.data_rank, len(pieces), mesh.data)
    nats = torch.zeros(len(documents), dtype=torch.float64, device=net.device)
    net.model.eval()
    # Equally many passes in all processes, since a sharded model is gathered in each.
    passes = -(-len(pieces) // mesh.data)
    with torch.no_grad(), progress(f"score {name}", total=passes) as bar:
        for number in range(passes):
            if number < len(mine):
                document = int(document_of[mine[number]])
                nats[document] += net.nats(batch_of(packed, mine[number : number + 1])).double()
            else:  # without labels it counts for nothing
                batch = batch_of(packed, np.zeros(1, dtype=np.int64))
                net.nats(replace(batch, labels=torch.full_like(batch.labels, IGNORED)))
            bar.advance()
    summed: NDArray[np.float64] = net.add_up(nats).cpu().numpy()
    if not np.isfinite(summed).all():
        raise RecipeError(
            f"{name}: the held-out loss is not a number; lower the learning rate in pretrain.phases"
        )
    return summed
