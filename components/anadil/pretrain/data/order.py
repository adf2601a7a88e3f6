"""Order of training: the sequences of one source, or of several by a schedule, that each batch takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.estimate.schedule import Schedule, SourceSize
from anadil.estimate.text_use import TextPart, part_of, part_sizes
from anadil.model.loss import IGNORED
from anadil.pretrain.data.batch import Batch, batch_of, joined
from anadil.recipe.sections import Recipe
from anadil.tokens.packing import Packed, Places, Sequences
from anadil.tokens.probabilities import StoredProbabilities


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sequences of all sources. Those of a source are numbered behind those of the source before."""

    sources: Mapping[str, Packed]
    """One under an empty name where the recipe has no sources."""
    schedule: Schedule | None = None
    """Order of the sources; None where the recipe has none, or before it is planned."""
    teachers: Mapping[str, StoredProbabilities] = field(default_factory=dict)
    """The base's probabilities, of the sources whose teacher it is."""

    @property
    def names(self) -> tuple[str, ...]:
        """Sources of the recipe."""
        return tuple(name for name in self.sources if name)

    @property
    def first(self) -> Packed:
        """Text of the first source."""
        return next(iter(self.sources.values()))

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.first.length

    @property
    def num_documents(self) -> int:
        """Training documents."""
        return sum(each.stream.num_documents for each in self.sources.values())

    @property
    def num_sequences(self) -> int:
        """Sequences of one epoch of each source."""
        return int(self._ends[-1])

    @property
    def num_targets(self) -> int:
        """Predicted tokens of one epoch of each source."""
        return sum(each.num_targets for each in self.sources.values())

    @property
    def waste(self) -> float:
        """Share of positions that hold padding."""
        return sum(each.waste * each.num_sequences for each in self.sources.values()) / self.num_sequences

    def sequences_of_batch(self, batch: int, *, batch_size: int, seed: int) -> Sequences:
        """Choose the sequences of a batch (from 0) of the run."""
        if not self.names:
            return sequences_of_step(batch, batch_size=batch_size, blocks=self.first.blocks, seed=seed)
        assert self.schedule is not None
        places = [self.schedule.place_of(batch * batch_size + place) for place in range(batch_size)]
        source, position = np.array(places, dtype=np.int64).T
        chosen = np.empty(batch_size, dtype=np.int64)
        for number, packed in enumerate(self.sources.values()):
            here = source == number
            local = sequences_at(position[here], blocks=packed.blocks, seed=seed)
            chosen[here] = local + self._begins[number]
        return chosen

    def targets_by_source(self, sequences: Sequences) -> list[int]:
        """Predicted tokens of some sequences, by source."""
        numbers = self._source_numbers(sequences)
        return [
            packed.targets_of(sequences[numbers == number] - self._begins[number])
            for number, packed in enumerate(self.sources.values())
        ]

    def locate(self, sequence: int) -> tuple[str, int]:
        """Source of a sequence, and its number there."""
        number = int(self._source_numbers(np.array([sequence]))[0])
        return list(self.sources)[number], sequence - int(self._begins[number])

    def batch_of(self, sequences: Sequences, *, rows: int = 0) -> Batch:
        """Make the tensors of some sequences, and of padding up to `rows`; padding has no labels."""
        if not self.names:
            return batch_of(self.first, sequences, rows=rows)
        numbers, parts_of_text = self._source_numbers(sequences), list(self.sources.items())
        parts = []
        for number, group in groupby(range(len(sequences)), key=numbers.__getitem__):
            local = sequences[list(group)] - self._begins[number]
            name, packed = parts_of_text[number]
            parts.append(batch_of(packed, local, probabilities=self.teachers.get(name)))
        if padding := max(rows, len(sequences)) - len(sequences):
            parts.append(batch_of(self.first, sequences[:0], rows=padding))
        sources = np.zeros(len(sequences) + padding, dtype=np.int64)
        sources[: len(sequences)] = numbers
        return replace(joined(parts), sources=torch.from_numpy(sources))

    def tokens_of(self, sequences: Sequences) -> NDArray[np.int64]:
        """Tokens of some sequences, as inputs and as targets; padding and tokens before pieces count as none."""
        # Else probabilities of teachers would be read too.
        batch = replace(self, teachers={}).batch_of(sequences)
        is_text = batch.labels != IGNORED
        return torch.cat([batch.input_ids[is_text], batch.labels[is_text]]).numpy()

    def _source_numbers(self, sequences: Sequences) -> Sequences:
        return np.searchsorted(self._ends, sequences, side="right")

    @cached_property
    def _ends(self) -> Sequences:
        return np.cumsum([each.num_sequences for each in self.sources.values()])

    @cached_property
    def _begins(self) -> Sequences:
        return np.concatenate([[0], self._ends[:-1]])


def only(packed: Packed) -> TrainingData:
    """The text of a recipe without sources."""
    return TrainingData(sources={"": packed})


def text_parts(recipe: Recipe, packed: Mapping[str, Packed]) -> list[TextPart]:
    """Parts of the text of a retraining, by the sources of its data."""
    return [part_of(name, recipe, each.num_sequences, each.num_targets) for name, each in packed.items()]


def sizes_of(
    recipe: Recipe, packed: Mapping[str, Packed], stands: Mapping[str, int] | None = None
) -> dict[str, SourceSize]:
    """Sizes that the order of training follows from, by source; `stands` are positions at the begin of a retraining."""
    if recipe.continues_champion:
        return part_sizes(recipe, recipe.pretrain, text_parts(recipe, packed), stands)
    return {
        name: SourceSize(
            sequences=each.num_sequences, targets=each.num_targets, max_epochs=recipe.sources[name].max_epochs
        )
        for name, each in packed.items()
    }


def sequences_of_step(step: int, *, batch_size: int, blocks: Sequences, seed: int) -> Sequences:
    """Choose the sequences of optimizer step `step` (from 0); a step may end one epoch and begin the next."""
    return sequences_at(np.arange(step * batch_size, (step + 1) * batch_size), blocks=blocks, seed=seed)


def sequences_at(places: Sequences, *, blocks: Sequences, seed: int) -> Sequences:
    """Sequences at some places (from 0 over all epochs) of the order of training; `blocks` are `Packed.blocks`.

    Blocks follow each other in an order of their own, and so do the sequences of each: those that are read one after
    another lie near each other, and no order of all is held. Seed and epoch decide it, so that a resume needs no state.
    """
    epochs, within = places // blocks[-1], places % blocks[-1]
    chosen = np.empty(len(places), dtype=np.int64)
    sizes = np.diff(blocks)
    for epoch in np.unique(epochs).tolist():
        order = _permutation(len(sizes), seed, epoch) if len(sizes) > 1 else np.zeros(1, dtype=np.int64)
        ends = np.cumsum(sizes[order])
        turns = np.searchsorted(ends, within, side="right")
        for turn in np.unique(turns[epochs == epoch]).tolist():
            here = (epochs == epoch) & (turns == turn)
            block = int(order[turn])
            # The order of one block is that of releases which knew no blocks.
            more = (block,) if len(sizes) > 1 else ()
            permutation = _permutation(int(sizes[block]), seed, epoch, *more)
            chosen[here] = blocks[block] + permutation[within[here] - (ends[turn] - sizes[block])]
    return chosen


@lru_cache(maxsize=32)  # two of each of several sources
def _permutation(num: int, *seed: int) -> Places:
    return np.random.default_rng(seed).permutation(num)
