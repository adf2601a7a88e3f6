"""An artifact of a base's probabilities, as training reads it: the likeliest next tokens at each token of a source.

A token takes 4 k + 2 bytes where the vocabulary has less than 65,536 tokens, else 6 k + 2. That is 66 or 98 with the default
k of 16, and a hidden state of a base of width 576 takes 1,152 in BF16.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, TypeAdapter

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.json_text import write_indented
from anadil.recipe.pretrain import probability_bytes
from anadil.text.metrics import bits_per_byte
from anadil.tokens.stored_tokens import begins_of, place_of
from anadil.tokens.tensor_file import TensorFile
from anadil.tokens.tokens_file import checked_table, open_file

FILE, FORMAT = "probabilities.json", 2
OPEN_FILES = 64
"""Files that stay open beside those of the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """A file of probabilities of consecutive tokens."""

    file: str
    tokens: NonNegativeInt
    crc32: int
    """Checksum of the file's header and table of checksums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """Loss of the base, in its own tokens, on some documents."""

    documents: NonNegativeInt
    bytes: NonNegativeInt
    nats: float

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits per UTF-8 byte."""
        return bits_per_byte(self.nats, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbabilitiesFacts:
    """The content of `probabilities.json`."""

    format: int = FORMAT
    source: str
    """Name in the recipe's `sources`."""
    base: str
    """Name of the base, and the digest of its files where it has some."""
    tokenizer: str
    """Digest of the tokenizer."""
    stream: str
    """Digest of the tokens: equal ones mean equal ids."""
    vocabulary: int
    """Ids of the tokenizer."""
    k: int
    """Likeliest tokens at each token."""
    tokens: NonNegativeInt
    positions: NonNegativeInt
    """Tokens behind which the next one is known to the base, too."""
    left_out: dict[str, int]
    """Other tokens that training predicts, by reason."""
    cut_otherwise: NonNegativeInt
    """Held-out documents that the base itself cuts into other tokens."""
    scores: Mapping[str, TextScore]
    """Scores of the first held-out documents, by the source's name, and of retained texts, where they decide the weight."""
    parts: tuple[PartFacts, ...]

    def write(self, folder: Path) -> None:
        """Write the file."""
        write_indented(folder / FILE, asdict(self))


def id_dtype(vocabulary: int) -> str:
    """Return the smallest type for the ids of a vocabulary, and one more."""
    return "U16" if vocabulary < np.iinfo(np.uint16).max else "U32"


@dataclass(frozen=True, kw_only=True)
class StoredProbabilities:
    """The probabilities of a source's tokens, or of those from one on."""

    uri: str
    facts: ProbabilitiesFacts
    first: int = 0
    """Token of the artifact that is the first here."""

    def read(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]:
        """Return ids and log-probabilities of some tokens, as in `Teacher`."""
        start, stop = start + self.first, stop + self.first
        ids, logs = [], []
        while start < stop:
            number = place_of(self._begins, start)
            begin, end = int(self._begins[number]), min(stop, int(self._begins[number + 1]))
            ids.append(self._file(number).read("ids", start - begin, end - begin))
            logs.append(self._file(number).read("logs", start - begin, end - begin))
            start = end
        stored, chances = np.concatenate(ids), np.concatenate(logs)
        return np.where(stored == np.iinfo(stored.dtype).max, -1, stored.astype(np.int64)), chances

    @cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        return begins_of([part.tokens for part in self.facts.parts])

    @cached_property
    def _file(self) -> Callable[[int], TensorFile]:
        token_bytes = probability_bytes(self.facts.k, self.facts.vocabulary)

        @lru_cache(OPEN_FILES)
        def opened(number: int) -> TensorFile:
            part = self.facts.parts[number]
            return open_file(self.uri, part.file, part.tokens * token_bytes, part.crc32)

        return opened


def open_probabilities(uri: str, manifest: Manifest, expected: dict[str, Any]) -> StoredProbabilities:
    """Open an artifact of probabilities, unless it is of another base, tokenizer, text or k than `expected`."""
    facts, place = checked_table(uri, FILE, manifest, TypeAdapter(ProbabilitiesFacts)), join(uri, FILE)
    for name, ours in {"format": FORMAT, **expected}.items():
        theirs = getattr(facts, name)
        if theirs != ours:
            raise IntegrityError(
                f"{place}: {name} is {theirs}, and this run has {ours}; run distill again with this recipe, or give "
                "the probabilities that belong to it"
            )
    return StoredProbabilities(uri=uri, facts=facts)
