"""The packed text of a run, of one source or of several in the order of a schedule."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError, IntegrityError
from anadil.encode.encode_file import document_tokenizer
from anadil.encode.make_tokens import Settings, make_tokens
from anadil.encode.packing import Packed, Sequences
from anadil.encode.run import digest_of, settings_of
from anadil.encode.stored_tokens import StoredTokens, open_tokens
from anadil.encode.tokens_file import TokensFacts
from anadil.model.load import document_ids, encode_text, load_tokenizer, window_bos
from anadil.plan.mixture import Schedule, SourceSize
from anadil.plan.text_use import TextPart, part_of, part_sizes
from anadil.pretrain.data.packing import Batch, batch_of, sequences_at, sequences_of_step
from anadil.recipe.sections import Recipe
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Job, word_of
from anadil.runtime.signals import Stop


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sequences of all sources. Those of a source are numbered behind those of the source before."""

    sources: Mapping[str, Packed]
    """One under an empty name where the recipe has no sources."""
    schedule: Schedule | None = None
    """Order of the sources; None where the recipe has none, or before it is planned."""

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
        numbers, packs = self._source_numbers(sequences), list(self.sources.values())
        parts = []
        for number, group in groupby(range(len(sequences)), key=numbers.__getitem__):
            local = sequences[list(group)] - self._begins[number]
            parts.append(batch_of(packs[number], local))
        if padding := max(rows, len(sequences)) - len(sequences):
            parts.append(batch_of(self.first, sequences[:0], rows=padding))
        sources = np.zeros(len(sequences) + padding, dtype=np.int64)
        sources[: len(sequences)] = numbers
        return replace(joined(parts), sources=torch.from_numpy(sources))

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
            sequences=each.num_sequences,
            targets=each.num_targets,
            max_epochs=recipe.sources[name].max_epochs,
        )
        for name, each in packed.items()
    }


def joined(parts: list[Batch]) -> Batch:
    """Rows of several batches of one length, one after another."""
    sizes = [part.input_ids.numel() for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()
    borders = [part.borders[:-1] + begin for part, begin in zip(parts, begins[:-1], strict=True)]
    return Batch(
        input_ids=torch.cat([part.input_ids for part in parts]),
        position_ids=torch.cat([part.position_ids for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        borders=torch.cat([*borders, torch.tensor(begins[-1:], dtype=torch.int32)]),
    )


def tokens_of(job: Job, source: str = "", *, write: bool) -> StoredTokens:
    """Open the tokens of a source, and make what is missing or damaged in the work directory where none were given.

    Nodes that share the work directory share the files of the corpus among themselves; other nodes encode all.

    `write` is True in one process of each node, which makes the tokens before the others read them.
    """
    if stream := job.streams.get(word_of("tokens", source)):
        tokens = open_tokens(stream.uri, stream.manifest)
        _check_length(tokens, job.recipe.pretrain.sequence_length)
    else:
        recipe = job.recipe.of_source(source) if source else job.recipe
        settings = settings_of(job, recipe, word_of("corpus", source))
        tokens = made_tokens(settings, job.work, job.stop, write=write)
    check_tokenizer(tokens.facts, tokens.uri, job.inputs["tokenizer"])
    return tokens


def made_tokens(settings: Settings, work: Path, stop: Stop, *, write: bool) -> StoredTokens:
    """Make tokens in a directory, and open them; see `tokens_of`."""
    # The frame follows from the tokenizer, and from the program that reads it.
    _, frame = document_tokenizer(settings.tokenizer)
    origin = {**settings.origin, "frame": str(frame), "length": str(settings.sequence_length)}
    # Blocks end where the champion's text does.
    origin |= {f"champion's {kind}": uri for kind, uri in settings.champion.items()}
    folder = work / f"tokens-{artifact.origin_key(origin)}"
    # Every byte is compared: a kill may have left a damaged file.
    if write and not sealed_dir.verify(folder, origin, once_a_boot=True):
        # Processes of their own: a copy of one that has threads may hang.
        with (
            Processes(may_fork=False, stop=stop) as executor,
            sealed_dir.create(folder, origin, socket.gethostname()) as draft,
        ):
            make_tokens(settings, draft, work, executor)
    manifest = artifact.read_manifest(str(folder))
    if manifest is None:
        raise DataError(f"{folder}: not there; each node's first process makes it in its work directory")
    return open_tokens(str(folder), manifest)


def check_tokenizer(facts: TokensFacts, uri: str, folder: Path) -> None:
    """Compare tokens with the tokenizer that the model gets."""
    if facts.tokenizer != (digest := digest_of(folder)):
        raise IntegrityError(
            f"{uri}: are tokens of the tokenizer {facts.tokenizer[:16]}, and {folder} is {digest[:16]}; give the "
            "tokenizer that they were made with, or run encode again"
        )
    tokenizer = load_tokenizer(folder)
    frame = (*document_ids(tokenizer, str(folder)), window_bos(tokenizer))
    text, ids = facts.sample
    if frame == (facts.begin, facts.end, facts.bos) and tuple(encode_text(tokenizer, text)) == ids:
        return
    raise IntegrityError(
        f"{folder}: transformers reads its tokenizer in another way than the tokenizers library, by which {uri} was "
        "encoded (other ids of a text, or other tokens round it); set tokenizer_class in tokenizer_config.json of "
        "base.model to PreTrainedTokenizerFast, and run again"
    )


def _check_length(tokens: StoredTokens, length: int) -> None:
    if tokens.facts.sequence_length != length:
        raise IntegrityError(
            f"{tokens.uri}: are packed for sequences of {tokens.facts.sequence_length:,} tokens, and "
            f"pretrain.sequence_length is {length:,}; run encode with the same recipe"
        )
