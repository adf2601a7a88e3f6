"""corpus -> token stream: every training document encoded once, kept for a resume.

Each file of the corpus becomes a shard: one file of 32-bit ids, documents one after another,
each as `[BOS] text [end of text]`, or with the end of text in place of a BOS that is not there, beside an array with the place where each begins. A shard is
sealed when it is whole, so that a killed run resumes with the next one.
"""

import errno
import hashlib
import logging
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
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
    """Arrays of ids one after another, read through their slices without being joined."""

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
    """(tokens,): all documents, one after another; to be read by slices."""
    starts: Places
    """(documents + 1,): where each document begins; the last entry is the number of tokens."""
    digest: str
    """Stands for the content: equal digests mean equal ids."""
    bos: int | None = None
    """Id before each piece that begins inside a document; None for none."""


def token_stream(corpus: Path, tokenizer: Path, work: Path, *, write: bool) -> TokenStream:
    """The stream of a corpus under a tokenizer, from `work` where it is there and undamaged.

    Nodes that share `work` share the files of the corpus out among themselves; nodes that
    do not each encode all.

    Args:
        corpus: Corpus artifact.
        tokenizer: Tokenizer artifact.
        work: Directory that keeps the stream.
        write: Whether this process makes it, one on each node; the others find it made.

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
        whole = _whole(shards, origins)
        missing = [number for number in _in_turn(len(files)) if number not in whole]
        if missing:
            backend: Any = loaded.backend_tokenizer
            text = backend.to_str()
            _make(
                [
                    EncodeTask(
                        file=files[number],
                        shard=shards[number],
                        tokenizer=text,
                        begin=begin,
                        end=end,
                        origin=origins[number],
                    )
                    for number in missing
                ]
            )
    stream = _opened(shards, window_bos(loaded))
    if not len(stream.ids):
        raise DataError(f"{corpus}/train: holds no text; run clean with more data or milder rules")
    return stream


def digest_of(path: Path) -> str:
    """Digest of an artifact's manifest.

    Raises:
        DataError: There is no manifest.
    """
    manifest = artifact.read_manifest(str(path))
    if manifest is None:
        raise DataError(f"{path}: no finished artifact there; run the stage that writes it")
    return manifest.digest


def _in_turn(num: int) -> list[int]:
    """The shards from a place on that is this node's own, then those before it."""
    # torchrun's names for nodes.
    machine = int(os.environ.get("GROUP_RANK", "0"))
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    first = machine * num // machines
    return [*range(first, num), *range(first)]


def _whole(shards: Sequence[Path], origins: Sequence[Mapping[str, str]]) -> set[int]:
    """Numbers of the shards that are there with every byte as it was written."""
    with ThreadPoolExecutor(min(8, num_cores())) as pool:
        verdicts = list(pool.map(partial(sealed_dir.verify, once_a_boot=True), shards, origins))
    if any(verdicts):
        log.info("%s of %s shards of the token stream are there", sum(verdicts), len(verdicts))
    return {number for number, is_whole in enumerate(verdicts) if is_whole}


def _opened(shards: Sequence[Path], bos: int | None) -> TokenStream:
    arrays, starts, digests = [], [np.zeros(1, dtype=np.int64)], []
    total = 0
    for shard in shards:
        manifest = artifact.read_manifest(str(shard))
        if manifest is None:
            raise DataError(f"{shard}: not there; each node's first process makes it in its work directory")
        digests.append(manifest.digest)
        size = (shard / "ids.bin").stat().st_size
        # A plain view: slicing np.memmap itself is ten times slower. An empty file cannot be mapped.
        mapped = (
            np.memmap(shard / "ids.bin", dtype=np.int32, mode="r") if size else np.empty(0, dtype=np.int32)
        )
        arrays.append(mapped.view(np.ndarray))
        starts.append(np.load(shard / "starts.npy", allow_pickle=False)[1:] + total)
        total += len(mapped)
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
    """Encode files on all cores, one process for each; a lone file has the threads of the tokenizer."""
    cores = num_cores()
    workers = min(len(tasks), cores)
    check_shared_locks()
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    read: Any = context.Value("q", 0)
    setting = (read, os.getpid(), max(1, cores // workers))
    with (
        ProcessPoolExecutor(workers, context, encode.begin_process, setting) as pool,
        _ended_with(pool),
        progress("encoding the corpus, MB compressed", max(1, total // 10**6)) as shown,
    ):
        left = {pool.submit(encode.encode_file, task) for task in tasks}
        differences: list[str] = []
        while left:
            done, left = wait(left, timeout=POLL_S)
            shown.advance(max(0, read.value // 10**6 - shown.done))
            for future in done:
                _pass_on(future.exception())
                differences += filter(None, [future.result()])
    if differences:
        log.warning("%s", differences[0])


def _pass_on(error: BaseException | None) -> None:
    if isinstance(error, BrokenProcessPool):
        raise PreflightError(
            "pretrain: a process that encodes the corpus was killed, most likely for lack of memory; "
            "run the same command again with more of it or fewer cores: finished parts are kept"
        ) from None
    if error is not None:
        raise error


@contextmanager
def _ended_with(pool: ProcessPoolExecutor) -> Iterator[None]:
    """End the pool's processes at once where the block fails or is stopped."""
    before = {child.pid for child in multiprocessing.active_children()}
    try:
        yield
    except BaseException:
        for child in multiprocessing.active_children():
            if child.pid not in before:
                child.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
