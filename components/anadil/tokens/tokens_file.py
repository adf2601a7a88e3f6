"""`tokens.json`: what an artifact of tokens was made of, and the size of each of its files.

It is small, so that training of any corpus begins with it: 100,000 shards are read in a second.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest, remedy_of
from anadil.artifacts.random_access import bytes_at
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.json_text import write_indented
from anadil.core.reasons import first_mistake
from anadil.tokens.tensor_file import BLOCK_BYTES, DATA_BEGIN, TensorFile, size_of

TOKENS = "tokens.json"
T = TypeVar("T")
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """A file of token ids, of one file of the corpus."""

    file: str
    documents: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    """UTF-8 bytes of the documents' text."""
    crc32: int
    """Checksum of the file's header and table of checksums."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Documents that are not in it, by reason."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        return 4 * self.tokens + 8 * (self.documents + 1) + 4 * self.documents


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """Packed sequences of consecutive shards."""

    file: str
    first_shard: NonNegativeInt
    num_shards: NonNegativeInt
    pieces: NonNegativeInt
    sequences: NonNegativeInt
    targets: NonNegativeInt
    """Predicted tokens."""
    positions: NonNegativeInt
    """Those of the sequences that are no padding."""
    crc32: int

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors."""
        return 24 * self.pieces + 8 * (self.sequences + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFacts:
    """Part of the tokens that a retraining has of its champion: the first shards and blocks. All is 0 without one."""

    shards: NonNegativeInt = 0
    blocks: NonNegativeInt = 0
    sequences: NonNegativeInt = 0
    documents: NonNegativeInt = 0
    tokens: NonNegativeInt = 0
    targets: NonNegativeInt = 0
    positions: NonNegativeInt = 0
    """Those of the sequences that are no padding."""
    bytes: NonNegativeInt = 0
    """UTF-8 bytes of the documents' text."""

    @classmethod
    def of(cls, shards: Sequence[ShardFacts], blocks: Sequence[BlockFacts]) -> Self:
        """Sum the parts."""
        return cls(
            shards=len(shards), blocks=len(blocks), sequences=sum(each.sequences for each in blocks),
            documents=sum(each.documents for each in shards), tokens=sum(each.tokens for each in shards),
            targets=sum(each.targets for each in blocks), positions=sum(each.positions for each in blocks),
            bytes=sum(each.bytes for each in shards),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensFacts:
    """The content of `tokens.json`."""

    format: int = FORMAT
    source: str = ""
    """Name in the recipe's `sources`; empty without them."""
    language: str
    corpus: str
    """Digest of the corpus."""
    tokenizer: str
    """Digest of the tokenizer, or of the trial that chose it."""
    begin: int
    """Id before each document."""
    end: int
    """Id after each document."""
    bos: int | None
    """Id before each later piece of a document; null for none."""
    vocabulary: int
    """Ids of the tokenizer."""
    sequence_length: int
    stream: str
    """Digest of the stream: equal ones mean equal ids."""
    documents: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    sequences: NonNegativeInt
    targets: NonNegativeInt
    left_out: dict[str, int]
    """Documents of the corpus that are not in it, by reason."""
    sample: tuple[str, tuple[int, ...]]
    """A text and its ids, for a reader that knows the tokenizer."""
    train: tuple[ShardFacts, ...]
    heldout: tuple[ShardFacts, ...]
    blocks: tuple[BlockFacts, ...]
    earlier: EarlierFacts = EarlierFacts()
    """Champion's part of them; no block holds shards of both parts."""

    def parts(self) -> tuple["TokensFacts", "TokensFacts"]:
        """The same of the champion's part alone, and of what came since; either may have no sequence."""
        shards, blocks = self.earlier.shards, self.earlier.blocks
        return (
            self._part("earlier", self.train[:shards], self.blocks[:blocks], 0),
            self._part("new", self.train[shards:], self.blocks[blocks:], shards),
        )

    def _part(
        self, name: str, shards: Sequence[ShardFacts], blocks: Sequence[BlockFacts], first_shard: int
    ) -> "TokensFacts":
        counts = EarlierFacts.of(shards, blocks)
        left_out = Counter[str]()
        for each in shards:
            left_out.update(each.left_out)
        return replace(
            self,
            # Equal ones still mean equal ids.
            stream=hashlib.sha256(f"{self.stream} {name} {counts.shards}".encode()).hexdigest(),
            documents=counts.documents,
            tokens=counts.tokens,
            bytes=counts.bytes,
            sequences=counts.sequences,
            targets=counts.targets,
            left_out=dict(left_out),
            train=tuple(shards),
            blocks=tuple(replace(each, first_shard=each.first_shard - first_shard) for each in blocks),
            earlier=EarlierFacts(),
        )

    def write(self, folder: Path) -> None:
        """Write the file."""
        values = asdict(self)
        # Files of a run without a champion are byte for byte those of earlier releases.
        if self.earlier == EarlierFacts():
            values.pop("earlier")
        write_indented(folder / TOKENS, values)


def open_file(uri: str, file: str, num_bytes: int, crc32: int) -> TensorFile:
    """Open a file of an artifact of tokens or probabilities where it lies."""
    place = bytes_at(join(uri, file), size_of(num_bytes), first_byte=DATA_BEGIN, block_bytes=BLOCK_BYTES)
    return TensorFile(place=place, num_bytes=num_bytes, table_crc=crc32)


def read_facts(uri: str, manifest: Manifest) -> TokensFacts:
    """The facts of an artifact of tokens, checked against its manifest."""
    facts = checked_table(uri, TOKENS, manifest, _adapter())
    place = join(uri, TOKENS)
    if facts.format != FORMAT:
        raise IntegrityError(f"{place}: format {facts.format}, this version reads {FORMAT}; {remedy_of(uri)}")
    _check_files([*facts.train, *facts.heldout, *facts.blocks], manifest.files, uri)
    _check_sums(facts, place, uri)
    return facts


def checked_table(uri: str, file: str, manifest: Manifest, adapter: TypeAdapter[T]) -> T:
    """Read a JSON file of an artifact, checked against its manifest."""
    place = join(uri, file)
    entry = manifest.files.get(file)
    if entry is None:
        raise IntegrityError(f"{place}: missing; {remedy_of(uri)}")
    content = storage.store(uri).read(place)
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise IntegrityError(f"{place}: differs from its manifest; {remedy_of(uri)}")
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise IntegrityError(f"{place}: {first_mistake(error)}; {remedy_of(uri)}") from None


_adapter = functools.cache(lambda: TypeAdapter(TokensFacts))


def _check_files(
    listed: Iterable[ShardFacts | BlockFacts], files: Mapping[str, Mapping[str, str | int]], uri: str
) -> None:
    for each in listed:
        entry = files.get(each.file)
        if entry is None:
            raise IntegrityError(
                f"{join(uri, TOKENS)}: names {each.file}, and the manifest does not; {remedy_of(uri)}"
            )
        if entry["bytes"] != size_of(each.num_bytes):
            raise IntegrityError(
                f"{join(uri, TOKENS)}: {each.file}: its counts make {size_of(each.num_bytes):,} bytes, and it has "
                f"{entry['bytes']:,}; {remedy_of(uri)}"
            )


def _check_sums(facts: TokensFacts, place: str, uri: str) -> None:
    next_shard = 0
    for block in facts.blocks:
        if block.first_shard != next_shard:
            raise IntegrityError(
                f"{place}: {block.file}: begins with shard {block.first_shard}, not {next_shard}; {remedy_of(uri)}"
            )
        next_shard += block.num_shards
    sums = {
        "shards of blocks": (next_shard, len(facts.train)),
        "documents": (sum(each.documents for each in facts.train), facts.documents),
        "tokens": (sum(each.tokens for each in facts.train), facts.tokens),
        "sequences": (sum(each.sequences for each in facts.blocks), facts.sequences),
        "targets": (sum(each.targets for each in facts.blocks), facts.targets),
    }
    begin = EarlierFacts.of(facts.train[: facts.earlier.shards], facts.blocks[: facts.earlier.blocks])
    in_blocks = sum(each.num_shards for each in facts.blocks[: facts.earlier.blocks])
    sums |= {
        f"earlier.{name}": (counted, asdict(facts.earlier)[name]) for name, counted in asdict(begin).items()
    }
    sums["earlier.shards"] = (in_blocks, facts.earlier.shards)
    for name, (counted, written) in sums.items():
        if counted != written:
            raise IntegrityError(
                f"{place}: {name}: {written:,} written, its files have {counted:,}; {remedy_of(uri)}"
            )
