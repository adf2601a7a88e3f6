"""An artifact of a base's probabilities, as training reads it: the likeliest next tokens at each token of a source.

A token takes 4 k + 2 bytes where the vocabulary has less than 65,536 tokens, else 6 k + 2. That is 66 or 98 with the default
k of 16, and a hidden state of a base of width 576 takes 1,152 in BF16.
"""

import hashlib
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest, remedy_of
from anadil.artifacts.random_access import bytes_at
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.json_text import write_indented
from anadil.tokens.tensor_file import BLOCK_BYTES, DATA_BEGIN, DTYPES, TensorFile, size_of

FILE, FORMAT = "probabilities.json", 1
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
    heldout_documents: NonNegativeInt
    heldout_bytes: NonNegativeInt
    heldout_nats: float
    """Loss of the base, in its own vocabulary, on the first held-out documents."""
    parts: tuple[PartFacts, ...]

    @property
    def id_dtype(self) -> str:
        """Type of the ids, whose largest number stands for a token that the vocabulary has not."""
        return id_dtype(self.vocabulary)

    def write(self, folder: Path) -> None:
        """Write the file."""
        write_indented(folder / FILE, asdict(self))


def id_dtype(vocabulary: int) -> str:
    """Return the smallest type for the ids of a vocabulary, and one more."""
    return "U16" if vocabulary < np.iinfo(np.uint16).max else "U32"


def token_bytes(k: int, vocabulary: int) -> int:
    """Return the bytes that a token's probabilities take."""
    return DTYPES[id_dtype(vocabulary)].itemsize * k + DTYPES["F16"].itemsize * (k + 1)


@dataclass(kw_only=True)
class StoredProbabilities:
    """The probabilities of a source's tokens, or of those from one on."""

    uri: str
    facts: ProbabilitiesFacts
    first: int = 0
    """Token of the artifact that is the first here."""
    _open: OrderedDict[int, TensorFile] = field(default_factory=OrderedDict)

    def read(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]:
        """Return ids and log-probabilities of some tokens, as in `Teacher`."""
        begins = np.cumsum([0, *(part.tokens for part in self.facts.parts)])
        start, stop = start + self.first, stop + self.first
        ids, logs = [], []
        while start < stop:
            number = int(np.searchsorted(begins, start, side="right")) - 1
            begin, end = int(begins[number]), min(stop, int(begins[number + 1]))
            file = self._file(number)
            ids.append(file.read("ids", start - begin, end - begin))
            logs.append(file.read("logs", start - begin, end - begin))
            start = end
        stored = np.concatenate(ids)
        return np.where(stored == np.iinfo(stored.dtype).max, -1, stored.astype(np.int64)), np.concatenate(
            logs
        )

    def _file(self, number: int) -> TensorFile:
        if number not in self._open:
            part = self.facts.parts[number]
            num_bytes = part.tokens * token_bytes(self.facts.k, self.facts.vocabulary)
            place = bytes_at(
                join(self.uri, part.file), size_of(num_bytes), first_byte=DATA_BEGIN, block_bytes=BLOCK_BYTES
            )
            self._open[number] = TensorFile(place=place, num_bytes=num_bytes, table_crc=part.crc32)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return self._open[number]


def open_probabilities(uri: str, manifest: Manifest, expected: dict[str, Any]) -> StoredProbabilities:
    """Open an artifact of probabilities, unless it is of another base, tokenizer, text or k than `expected`."""
    place = join(uri, FILE)
    content = storage.store(uri).read(place)
    if hashlib.sha256(content).hexdigest() != manifest.files.get(FILE, {}).get("sha256"):
        raise IntegrityError(f"{place}: differs from its manifest; {remedy_of(uri)}")
    try:
        facts = TypeAdapter(ProbabilitiesFacts).validate_json(content)
    except ValidationError as error:
        raise IntegrityError(f"{place}: {error.errors()[0]['msg']}; {remedy_of(uri)}") from None
    for name, ours in {"format": FORMAT, **expected}.items():
        theirs = getattr(facts, name)
        if theirs != ours:
            raise IntegrityError(
                f"{place}: {name} is {theirs}, and this run has {ours}; run distill again with this recipe, or give "
                "the probabilities that belong to it"
            )
    return StoredProbabilities(uri=uri, facts=facts)
