"""Makes an artifact of tokens: a shard for each file of the corpus, then packed sequences over them.

A finished shard is sealed in the work directory, so that a killed run resumes with the next one. Neither the number of
processes nor that of threads changes a byte.
"""

import errno
import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anadil.artifacts import artifact, local_directory, sealed_dir
from anadil.artifacts.random_access import LocalBytes
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import counted, human_bytes
from anadil.core.json_text import read_json
from anadil.core.progress import progress
from anadil.encode import encode_file as files
from anadil.encode.document_tokenizer import Frame, document_tokenizer
from anadil.encode.encode_file import FACTS, SHARD, EncodeTask
from anadil.encode.packing import pack
from anadil.encode.tensor_file import TensorFile, TensorWriter, size_of
from anadil.encode.token_stream import TokenStream
from anadil.encode.tokens_file import BlockFacts, ShardFacts, TokensFacts
from anadil.runtime.executor import Executor
from anadil.runtime.threads import num_cores
from anadil.text.corpus import CorpusPart, document_files, read_file
from anadil.text.encoder import Encoder

log = logging.getLogger(__name__)

Entries = dict[str, dict[str, str | int]]
"""File -> bytes and SHA-256, as in a manifest."""

SMALL_BYTES = 4 * 1024**2
"""Compressed text that one process encodes before others have started."""
MOST_THREADS = 16
"""Most threads of a process among several: the stack of each counts to the memory that the process may take."""
BLOCK_TOKENS = 2**28
"""Most tokens of the shards that are packed together: a GiB of ids, as much as training reads at random at a time."""
SAMPLE_CHARS = 1_000
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Input of `make_tokens`, and what decides the tokens besides."""

    corpus: Path
    corpus_digest: str
    tokenizer: Path
    tokenizer_digest: str
    language: str
    sequence_length: int
    source: str = ""
    """Name in the recipe's `sources`; empty without them."""
    excluded: Path | None = None
    """File of documents to leave out."""
    excluded_digest: str = ""
    max_tokens: int | None = None
    """Tokens after which the source is cut."""
    reads_special: bool = False
    """True if the base wrote the source, whose chats have control tokens."""

    @property
    def origin(self) -> dict[str, str]:
        """Everything that decides a shard, without the file of the corpus."""
        more = {"excluded": self.excluded_digest} if self.excluded else {}
        more |= {"special tokens": "read"} if self.reads_special else {}
        return {"corpus": self.corpus_digest, "tokenizer": self.tokenizer_digest, **more}


def make_tokens(settings: Settings, out: Path, work: Path, executor: Executor) -> tuple[TokensFacts, Entries]:
    """Fill `out`; return its facts, and the manifest entries of files whose digest is known.

    Raises:
        DataError: The corpus has no training text, or the tokenizer has no end token.
        IntegrityError: The corpus is damaged.
        PreflightError: The disk is full.
    """
    tokenizer, frame = document_tokenizer(settings.tokenizer)
    # The frame follows from the tokenizer, and from the program that reads it.
    origin = {**settings.origin, "frame": str(frame)}
    folder = work / f"shards-{artifact.origin_key(origin)}"
    with _room_for(folder):
        train = _tasks(settings, frame, "train", folder, origin)
        heldout = _tasks(settings, frame, "heldout", folder, origin)
        # With a limit the files follow each other, since only their tokens say when it is reached.
        if settings.max_tokens is None:
            _encode([*train, *heldout], executor)
        else:
            _encode(heldout, executor)
            train = _encode_until(train, settings.max_tokens, executor)
        entries: Entries = {}
        train_facts = [
            _shard(task, f"train/part-{number:05}", out, entries) for number, task in enumerate(train)
        ]
        heldout_facts = [
            _shard(task, f"heldout/part-{number:05}", out, entries) for number, task in enumerate(heldout)
        ]
        num_tokens = sum(shard.tokens for shard in train_facts)
        if not num_tokens and settings.max_tokens is not None:
            raise DataError(
                f"sources.{settings.source}.max_tokens: {settings.max_tokens:,} are less than the first document has; "
                "raise it"
            )
        if not num_tokens:
            raise DataError(
                f"{settings.corpus}/train: holds no text; run clean with more data or milder rules"
            )
        blocks = _write_blocks(settings, frame, train_facts, out)
    sample = _sample(settings.corpus)
    ids = Encoder(tokenizer).encode([sample])[0]
    facts = TokensFacts(
        source=settings.source, language=settings.language, corpus=settings.corpus_digest,
        tokenizer=settings.tokenizer_digest, begin=frame.begin, end=frame.end, bos=frame.bos,
        vocabulary=tokenizer.get_vocab_size(), sequence_length=settings.sequence_length,
        stream=_stream_digest(train), documents=sum(shard.documents for shard in train_facts), tokens=num_tokens,
        bytes=sum(shard.bytes for shard in train_facts), sequences=sum(block.sequences for block in blocks),
        targets=sum(block.targets for block in blocks),
        left_out=_left_out(settings, train_facts), sample=(sample, tuple(ids.tolist())), train=tuple(train_facts),
        heldout=tuple(heldout_facts), blocks=tuple(blocks),
    )  # fmt: skip
    facts.write(out)
    return facts, entries


def _tasks(
    settings: Settings, frame: Frame, part: CorpusPart, folder: Path, origin: Mapping[str, str]
) -> list[EncodeTask]:
    listed = document_files(settings.corpus, part)
    threads = max(1, num_cores() // max(1, len(listed)))
    return [
        EncodeTask(
            file=file,
            folder=folder / f"{part}-{file.name.partition('.')[0]}",
            tokenizer=settings.tokenizer,
            frame=frame,
            threads=threads if len(listed) == 1 else min(threads, MOST_THREADS),
            keeps_empty=part == "heldout",
            excluded=settings.excluded if part == "train" else None,
            most_tokens=None,
            reads_special=settings.reads_special,
            origin={**origin, "part": f"{part}/{file.name}"},
        )
        for file in listed
    ]


def _encode(tasks: Sequence[EncodeTask], executor: Executor) -> None:
    """Do the tasks that are not done."""
    with ThreadPoolExecutor(min(8, num_cores())) as pool:
        sound = (
            list(
                pool.map(
                    partial(sealed_dir.verify, once_a_boot=True),
                    *zip(*((t.folder, t.origin) for t in tasks), strict=True),
                )
            )
            if tasks
            else []
        )
    if any(sound):
        log.info("%s of %s shards of tokens are there", sum(sound), len(sound))
    left = [tasks[number] for number in _in_turn(len(tasks)) if not sound[number]]
    if not left:
        return
    total = sum(task.file.stat().st_size for task in left)
    left[0].folder.parent.mkdir(parents=True, exist_ok=True)
    with progress("encoding the corpus, MB compressed", max(1, total // 10**6)) as bar:
        # A process of an executor may take some GiB only, too few for the threads of a large machine.
        if total < SMALL_BYTES or len(left) == 1:
            for task in left:
                files.encode_file(task)
        else:
            sizes = {task.folder: task.file.stat().st_size for task in left}

            def tick() -> None:
                for folder in [folder for folder in sizes if sealed_dir.exists(folder)]:
                    sizes.pop(folder)
                bar.advance((total - sum(sizes.values())) // 10**6 - bar.done)

            executor.map(files.encode_file_in_worker, left, tick)


def _encode_until(tasks: Sequence[EncodeTask], max_tokens: int, executor: Executor) -> list[EncodeTask]:
    """Do tasks until they have so many tokens; the last one is cut behind a whole document."""
    tokens = 0
    # As many at a time as there are workers: what lies behind the cut is encoded for nothing.
    for first in range(0, len(tasks), executor.num_workers):
        some = tasks[first : first + executor.num_workers]
        _encode(some, executor)
        for number, task in enumerate(some, first):
            room = max_tokens - tokens
            tokens += int(read_json(task.folder / FACTS)["tokens"])
            if tokens > max_tokens:
                cut = _cut(task, room)
                _encode([cut], executor)
                return [*tasks[:number], cut]
    return list(tasks)


def _cut(task: EncodeTask, most_tokens: int) -> EncodeTask:
    from dataclasses import replace

    return replace(
        task,
        # A folder of its own: the whole shard serves the next run, which may have a larger limit.
        folder=task.folder.with_name(f"{task.folder.name}-{most_tokens}"),
        most_tokens=most_tokens,
        origin={**task.origin, "most tokens": str(most_tokens)},
    )


def _in_turn(num: int) -> list[int]:
    """Order the shards so that each node of a training job begins at a place of its own."""
    # torchrun's names for nodes, which may share the work directory.
    machine = int(os.environ.get("GROUP_RANK", "0"))
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first = machine * num // machines
    return [*range(first, num), *range(first)]


def _shard(task: EncodeTask, name: str, out: Path, entries: Entries) -> ShardFacts:
    """Put a shard into the artifact; return its facts."""
    facts = read_json(task.folder / FACTS)
    facts.pop("digest")
    file = f"{name}.safetensors"
    # A link takes no room, and a killed run still has the shard where it was made.
    local_directory.link(task.folder / SHARD, out / file)
    manifest = artifact.read_manifest(str(task.folder))
    assert manifest is not None
    entries[file] = manifest.files[SHARD]
    return ShardFacts(file=file, **facts)


def _stream_digest(tasks: Sequence[EncodeTask]) -> str:
    # Sixteen digits, because checkpoints of earlier releases name their stream so.
    digests = [str(read_json(task.folder / FACTS)["digest"]) for task in tasks]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def _write_blocks(
    settings: Settings, frame: Frame, shards: Sequence[ShardFacts], out: Path
) -> list[BlockFacts]:
    blocks = []
    (out / "blocks").mkdir(parents=True, exist_ok=True)
    # Without sources the sequences are those of all documents together, as they always were.
    most = BLOCK_TOKENS if settings.source else sum(shard.tokens for shard in shards)
    for number, (first, num) in enumerate(_groups([shard.tokens for shard in shards], most)):
        file = f"blocks/block-{number:05}.safetensors"
        starts = _starts(shards[first : first + num], out)
        # Packing needs lengths alone, so no ids are read.
        stream = TokenStream(ids=np.empty(0, dtype=np.int32), starts=starts, digest="", bos=frame.bos)
        packed = pack(stream, settings.sequence_length)
        with TensorWriter(out / file) as writer:
            writer.write("pieces", "I64", packed.pieces[:])
            writer.write("rows", "I64", packed.rows[:])
        blocks.append(
            BlockFacts(
                file=file, first_shard=first, num_shards=num, pieces=len(packed.pieces),
                sequences=packed.num_sequences, targets=packed.num_targets, positions=packed.num_positions,
                crc32=writer.table_crc,
            )
        )  # fmt: skip
    return blocks


def _groups(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """First shard and number of shards of each block; a larger shard is a block of its own."""
    first = total = 0
    for number, size in enumerate(sizes):
        # A block needs a token, and so takes empty shards along.
        if total and size and total + size > most:
            yield first, number - first
            first, total = number, 0
        total += size
    yield first, len(sizes) - first


def _starts(shards: Sequence[ShardFacts], out: Path) -> Any:
    # 8 bytes for each document of the block; checked, since a disk may have torn what was just written.
    parts, total = [np.zeros(1, dtype=np.int64)], 0
    for shard in shards:
        place = LocalBytes(out / shard.file, size_of(shard.num_bytes))
        file = TensorFile(place=place, num_bytes=shard.num_bytes, table_crc=shard.crc32)
        parts.append(file.read("starts", 1, shard.documents + 1) + total)
        total += shard.tokens
    return np.concatenate(parts)


def _left_out(settings: Settings, shards: Sequence[ShardFacts]) -> dict[str, int]:
    reasons = Counter[str]()
    for shard in shards:
        reasons.update(shard.left_out)
    manifest = artifact.read_manifest(str(settings.corpus))
    known = manifest.records.get("train") if manifest else None
    if settings.max_tokens is not None and known is not None:
        reasons["max_tokens"] = known - sum(shard.documents for shard in shards) - reasons.total()
    left_out = {reason: count for reason, count in sorted(reasons.items()) if count}
    if left_out:
        listed = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
        log.info("%s left out: %s", counted(sum(left_out.values()), "document"), listed)
    return left_out


def _sample(corpus: Path) -> str:
    """The beginning of the first text of the corpus."""
    texts = (document.text for file in document_files(corpus, "train") for document in read_file(file))
    return next((text[:SAMPLE_CHARS] for text in texts if text), "")


@contextmanager
def _room_for(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
        raise PreflightError(
            f"{folder}: no space left for the token ids of the corpus ({human_bytes(free)} free), about "
            "as many bytes as it has of text; free some, or choose another storage.root or ANADIL_WORK, "
            "and run again: finished parts are kept"
        ) from None
