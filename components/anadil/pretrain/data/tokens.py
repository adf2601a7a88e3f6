"""The token stream of a corpus: every training document encoded once and stored for a resume.

Each file of the corpus becomes a shard: a file of 32-bit ids and an array of the places where documents
begin. A document is `[BOS] text [end of text]`; without a BOS the end of text stands before it too. A
finished shard is sealed, so that a killed run resumes with the next one.
"""

import errno
import hashlib
import logging
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError, PreflightError
from anadil.core.format import human_bytes
from anadil.core.progress import progress
from anadil.model.load import document_ids, load_tokenizer, window_bos
from anadil.pretrain.data import encode
from anadil.pretrain.data.encode import EncodeTask
from anadil.runtime.threads import check_shared_locks, num_cores
from anadil.text.corpus import document_files

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

SMALL_BYTES = 4 * 1024**2
"""Compressed text that one process encodes before others have started."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
POLL_S = 0.5


class Shards:
    """Arrays of ids one after another, read by slices without joining them."""

    def __init__(self, arrays: Sequence[Ids]) -> None:
        self._arrays = list(arrays)
        self._begins = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, where: slice) -> Ids:
        """The ids of a slice, a view where it lies in one array."""
        start, stop, step = where.indices(len(self))
        assert step == 1
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        begin = int(self._begins[min(first, len(self._arrays) - 1)])
        if first < len(self._arrays) and stop <= self._begins[first + 1]:
            return self._arrays[first][start - begin : stop - begin]
        parts = [
            array[max(0, start - at) : max(0, stop - at)]
            for array, at in zip(self._arrays, self._begins[:-1].tolist(), strict=True)
        ]
        return np.concatenate([np.empty(0, dtype=np.int32), *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The encoded training part of a corpus."""

    ids: Ids | Shards
    """(tokens,): all documents, one after another; read by slices."""
    starts: Places
    """(documents + 1,): where each document begins; the last entry is the number of tokens."""
    digest: str
    """Equal digests mean equal ids."""
    bos: int | None = None
    """Id before each piece that begins inside a document; None for none."""


def stream_of(documents: Sequence[Ids], bos: int | None) -> TokenStream:
    """Join documents in memory, each with its prefix, into a stream."""
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])])
    return TokenStream(ids=np.concatenate(documents), starts=starts, digest="", bos=bos)


def token_stream(corpus: Path, tokenizer: Path, work: Path, *, write: bool) -> TokenStream:
    """Open the stream of a corpus under a tokenizer in `work`, and make what is missing or damaged.

    Nodes that share `work` share the files of the corpus among themselves; other nodes encode all.

    `write` is True in one process of each node, which makes the stream before the others read it.

    Raises:
        DataError: The corpus has no training text.
        IntegrityError: The corpus is damaged.
        PreflightError: The disk is full, or a process was killed for lack of memory.
    """
    loaded = load_tokenizer(tokenizer)
    begin, end = document_ids(loaded, str(tokenizer))
    origin = {"corpus": digest_of(corpus), "tokenizer": digest_of(tokenizer), "frame": f"{begin} {end}"}
    folder = work / f"tokens-{artifact.origin_key(origin)}"
    files = document_files(corpus, "train")
    shards = [folder / file.name.partition(".")[0] for file in files]
    origins = [{**origin, "part": file.name} for file in files]
    if write:
        with ThreadPoolExecutor(min(8, num_cores())) as pool:
            sound = list(pool.map(partial(sealed_dir.verify, once_a_boot=True), shards, origins))
        if any(sound):
            log.info("%s of %s shards of the token stream are there", sum(sound), len(sound))
        backend: Any = loaded.backend_tokenizer
        text = "" if all(sound) else backend.to_str()
        tasks = [
            EncodeTask(
                file=files[at], shard=shards[at], tokenizer=text, begin=begin, end=end, origin=origins[at]
            )
            for at in _in_turn(len(files))
            if not sound[at]
        ]
        if tasks:
            _make(tasks)
    stream = _opened(shards, window_bos(loaded))
    if not len(stream.ids):
        raise DataError(f"{corpus}/train: holds no text; run clean with more data or milder rules")
    return stream


def digest_of(path: Path) -> str:
    """Digest of an artifact's manifest; `DataError` without one."""
    manifest = artifact.read_manifest(str(path))
    if manifest is None:
        raise DataError(f"{path}: no finished artifact there; run the stage that writes it")
    return manifest.digest


def _in_turn(num: int) -> list[int]:
    """Order the shards so that each node begins at a place of its own."""
    # torchrun's names for nodes.
    machine = int(os.environ.get("GROUP_RANK", "0"))
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first = machine * num // machines
    return [*range(first, num), *range(first)]


def _opened(shards: Sequence[Path], bos: int | None) -> TokenStream:
    arrays, starts, digests = [], [np.zeros(1, dtype=np.int64)], []
    total = 0
    for shard in shards:
        manifest = artifact.read_manifest(str(shard))
        if manifest is None:
            raise DataError(f"{shard}: not there; each node's first process makes it in its work directory")
        digests.append(manifest.digest)
        file = shard / "ids.bin"
        # A plain view: slicing np.memmap itself is ten times slower. An empty file cannot be mapped.
        empty = file.stat().st_size == 0
        ids = np.empty(0, dtype=np.int32) if empty else np.memmap(file, dtype=np.int32, mode="r")
        arrays.append(ids.view(np.ndarray))
        starts.append(np.load(shard / "starts.npy", allow_pickle=False)[1:] + total)
        total += len(ids)
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
    return TokenStream(ids=Shards(arrays), starts=np.concatenate(starts), digest=digest, bos=bos)


def _make(tasks: Sequence[EncodeTask]) -> None:
    folder = tasks[0].shard.parent
    folder.mkdir(parents=True, exist_ok=True)
    sizes = sum(task.file.stat().st_size for task in tasks)
    try:
        if sizes < SMALL_BYTES:
            for task in tasks:
                encode.encode_file(task)
        else:
            _in_processes(tasks, sizes)
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(folder).free
        raise PreflightError(
            f"{folder}: no space left for the token ids of the corpus ({human_bytes(free)} free), about "
            "as many bytes as it has of text; free some, or choose another storage.root or ANADIL_WORK, "
            "and run again: finished parts are kept"
        ) from None


def _in_processes(tasks: Sequence[EncodeTask], total: int) -> None:
    # One process for each file; a single file gets the threads of the tokenizer.
    cores = num_cores()
    workers = min(len(tasks), cores)
    check_shared_locks()
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    read: Any = context.Value("q", 0)
    setting = (read, os.getpid(), max(1, cores // workers))
    before = {child.pid for child in multiprocessing.active_children()}
    with (
        ProcessPoolExecutor(workers, context, encode.begin_process, setting) as pool,
        progress("encoding the corpus, MB compressed", max(1, total // 10**6)) as shown,
    ):
        try:
            left = {pool.submit(encode.encode_file, task) for task in tasks}
            differences: list[str] = []
            while left:
                done, left = wait(left, timeout=POLL_S)
                shown.advance(max(0, read.value // 10**6 - shown.done))
                differences += filter(None, [future.result() for future in done])
        except BaseException as error:
            # At once, also where the run is stopped: leaving the pool would wait for its files.
            for child in multiprocessing.active_children():
                if child.pid not in before:
                    child.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise PreflightError(
                    "pretrain: a process that encodes the corpus was killed, most likely for lack of memory; "
                    "run the same command again with more of it or fewer cores: finished parts are kept"
                ) from None
            raise
    if differences:
        log.warning("%s", differences[0])
