"""Encodes one file of a corpus into token ids on disk, in a process that loads neither torch nor transformers."""

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from anadil.artifacts import sealed_dir
from anadil.core.errors import DataError
from anadil.core.processes import die_with
from anadil.text.corpus import read_file
from anadil.text.encoder import Encoder

BATCH_CHARS = 1_000_000
"""Text of one call, which spreads it over the threads of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeTask:
    """One file of a corpus to encode."""

    file: Path
    shard: Path
    """Directory to make: `ids.bin`, `starts.npy`, manifest."""
    tokenizer: str
    """The tokenizer, as its library writes it."""
    begin: int
    """Id before each document."""
    end: int
    """Id after each document."""
    origin: dict[str, str]
    """Settings that decide the ids."""


_encoders: dict[str, Encoder] = {}
_read: Any = None
_threads = 1


def begin_process(read: Any, parent: int, threads: int) -> None:
    """Prepare a process for `encode_file`: `read` counts bytes of the corpus that are done, in shared memory."""
    global _read, _threads  # the one place that a process pool leaves for them
    _read, _threads = read, threads
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    # The parent says it once for all its processes, as its log is set up.
    logging.getLogger("anadil").addHandler(logging.NullHandler())
    die_with(parent)


def encode_file(task: EncodeTask) -> str:
    """Make the shard of one file of a corpus, unless it is there; return `difference` of its encoder.

    Raises:
        DataError: A document is not Unicode text.
        IntegrityError: The file is damaged.
        OSError: The disk is full, among others.
    """
    if sealed_dir.exists(task.shard):
        return ""
    encoder = _encoders.get(task.tokenizer)
    if encoder is None:
        _encoders.clear()
        encoder = Encoder(Tokenizer.from_str(task.tokenizer), threads=_threads)
        _encoders[task.tokenizer] = encoder
    encoder.begin_sample()
    known = encoder.difference
    with sealed_dir.create(task.shard, task.origin, socket.gethostname()) as draft:
        _write(task, encoder, draft)
        if encoder.difference != known:
            # Documents before the one that differs may differ too.
            _write(task, encoder, draft)
    return encoder.difference


def _write(task: EncodeTask, encoder: Encoder, draft: Path) -> None:
    starts = [0]
    with (draft / "ids.bin").open("wb") as file:
        for ids in _documents(task, encoder):
            file.write(ids)
            starts.append(starts[-1] + len(ids) // 4)
    np.save(draft / "starts.npy", np.array(starts, dtype=np.int64), allow_pickle=False)


def _documents(task: EncodeTask, encoder: Encoder) -> Iterator[bytes]:
    begin = np.int32(task.begin).tobytes()
    end = np.int32(task.end).tobytes()
    size, done = task.file.stat().st_size, 0
    chars = 0
    for texts in _batches(document.text for document in read_file(task.file)):
        try:
            documents = encoder.encode(texts)
        except DataError as error:
            raise DataError(f"{task.file}: {error}") from None
        yield from (begin + ids.tobytes() + end for ids in documents if len(ids))
        chars += sum(map(len, texts))
        # How much of the file is read is known only roughly, since it is compressed.
        now = min(size, chars // 4)
        _count(now - done)
        done = now
    _count(size - done)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _count(num: int) -> None:
    if _read is not None:
        with _read.get_lock():
            _read.value += num
