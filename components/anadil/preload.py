"""Inputs in S3 or on a slow disk -> this machine's own disk, once for all its processes.

Files are fetched side by side, checked against their manifest, and kept for the next start: a
killed run goes on with the files that are not there yet.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anadil import artifact, storage
from anadil.artifact import Manifest
from anadil.core.format import human_bytes
from anadil.errors import DataError, IntegrityError, PreflightError, RetryableError, Stopped
from anadil.progress import progress
from anadil.storage import MANIFEST, Count

log = logging.getLogger(__name__)

FILES_AT_A_TIME = 8
"""Files fetched side by side; boto3 fetches each in ranges, ten at a time."""
RESERVE_BYTES = 1024**3
"""Space that is left free on the disk."""
POLL_S = 0.5
PROC = Path("/proc")
ATTEMPTS = 2
"""Times that a file is fetched whose bytes are not those of the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One file."""

    name: str
    """Path below the directory."""
    size: int
    sha256: str
    """As the manifest says."""


Fetch = Callable[[str, Path, Count], None]
"""Gets a file by its name into a path, which is there when it is whole."""


def cache() -> Path:
    """Where copies are kept: ANADIL_CACHE, to be set to the machine's fastest disk."""
    return Path(os.environ.get("ANADIL_CACHE", Path(tempfile.gettempdir()) / "anadil-cache"))


def preloaded(uri: str, kind: str) -> tuple[Path, Manifest]:
    """A copy of an artifact on this machine's own disk, every byte of it checked.

    The processes of a machine call this together; one fetches and checks, the others wait.

    Args:
        uri: The artifact, in S3 or below a directory.
        kind: Its word.

    Raises:
        DataError: There is no artifact, or one of another kind.
        IntegrityError: Its files are not those of its manifest.
        PreflightError: The disk has too little space.
    """
    manifest = artifact.read_manifest(uri)
    if manifest is None:
        raise DataError(f"{uri}: no finished {kind} there (no {MANIFEST}); run the stage that writes it")
    if manifest.kind != kind:
        raise DataError(f"{uri}: holds a {manifest.kind}, not a {kind}; give the URI of a {kind}")
    content = storage.store(uri).read(storage.join(uri, MANIFEST))
    # Keyed by the manifest, so that a directory that was written anew is fetched anew.
    target = cache() / hashlib.sha256(uri.encode() + content).hexdigest()[:16]
    with _alone(target):
        if not _checked_by_sibling(target):
            fill(target, files_of(manifest), fetch_from(uri), uri)
            storage.Local().write(str(target / MANIFEST), content)
            _tell_siblings(target)
    return target, manifest


def fetch_from(uri: str) -> Fetch:
    """How the files below a URI are fetched."""
    store = storage.store(uri)
    return lambda name, path, count: store.download(storage.join(uri, name), path, count)


def files_of(manifest: Manifest) -> list[Wanted]:
    """The files that a manifest names."""
    return [
        Wanted(name=name, size=int(entry["bytes"]), sha256=str(entry["sha256"]))
        for name, entry in manifest.files.items()
    ]


def fill(
    target: Path,
    files: Sequence[Wanted],
    fetch: Fetch,
    source: str,
    remedy: str = "set ANADIL_CACHE to a directory on a larger disk",
) -> None:
    """Make `target` hold the files, every byte of them checked, a manifest if it has one, and nothing else.

    Files that are there already are kept if they have the right bytes.

    Args:
        target: A local directory.
        files: What it is to hold.
        fetch: From `fetch_from`.
        source: The URI, for messages.
        remedy: What to do where the disk is too small.

    Raises:
        IntegrityError: Files of the source are not those of its manifest.
        PreflightError: The disk has too little space.
    """
    for wanted in files:
        if not (target / wanted.name).resolve().is_relative_to(target.resolve()):
            raise IntegrityError(
                f"{source}: its manifest names {wanted.name!r}, out of its directory; remove it"
            )
    names = {MANIFEST, *(wanted.name for wanted in files)}
    for file in [path for path in target.rglob("*") if path.is_file()]:
        if file.relative_to(target).as_posix() not in names:
            file.unlink()  # what a killed run was fetching
    total = sum(wanted.size for wanted in files)
    absent = [wanted for wanted in files if not _has_size(target, wanted)]
    _check_space(target, sum(wanted.size for wanted in absent), source, remedy)
    if absent:
        log.info("%s: fetching %s into %s", source, human_bytes(sum(each.size for each in absent)), target)
    stop = threading.Event()
    with (
        ThreadPoolExecutor(FILES_AT_A_TIME, "anadil-preload") as pool,
        progress(f"fetching {source}, MB", max(1, total // 10**6)) as shown,
    ):
        left = {pool.submit(_bring, target, wanted, fetch, source, stop) for wanted in files}
        try:
            while left:
                done, left = wait(left, timeout=POLL_S)
                shown.advance(max(0, _present_bytes(target) // 10**6 - shown.done))
                for future in done:
                    future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _bring(target: Path, wanted: Wanted, fetch: Fetch, source: str, stop: threading.Event) -> None:
    """Have one file with the right bytes in its place."""
    path = target / wanted.name
    path.parent.mkdir(parents=True, exist_ok=True)

    def count(_: int) -> None:
        if stop.is_set():
            raise Stopped(f"{source}: fetching was stopped; run the same command again to go on")

    found = set()
    for attempt in range(ATTEMPTS + 1):
        count(0)
        if _has_size(target, wanted):
            digest = artifact.describe(path)["sha256"]
            if digest == wanted.sha256:
                return
            if attempt:
                found.add(digest)
            log.warning("%s: the copy of %s in %s is damaged; fetching it again", source, wanted.name, target)
            path.unlink()
        if attempt < ATTEMPTS:
            fetch(wanted.name, path, count)
    if len(found) > 1:  # what is stored would come twice alike
        raise RetryableError(
            f"{source}/{wanted.name}: came with other bytes each time; look at the network and any proxy, "
            "then run the same command again"
        )
    raise IntegrityError(f"{source}/{wanted.name}: differs from its manifest; {artifact.remedy_of(source)}")


def _has_size(target: Path, wanted: Wanted) -> bool:
    path = target / wanted.name
    return path.is_file() and path.stat().st_size == wanted.size


def _check_space(target: Path, need: int, source: str, remedy: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target).free
    if need and need + RESERVE_BYTES > free:
        raise PreflightError(
            f"{target.parent}: {human_bytes(need)} of {source} are to be copied there and {human_bytes(free)} are "
            f"free, of which {human_bytes(RESERVE_BYTES)} stay free; free some, or {remedy}"
        )


def _present_bytes(target: Path) -> int:
    """Bytes on the disk, those of unfinished files too, of which boto3 writes the end first."""
    total = 0
    for path in target.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:  # renamed meanwhile
            continue
        total += min(stat.st_size, stat.st_blocks * 512) if path.is_file() else 0
    return total


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process of this machine at a time; the lock ends with its process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start() -> str:
    """Names this start of the machine's processes: those of one torchrun have one parent.

    In a container the parent is process 1 each time; when it was started tells one from the next.
    """
    parent = os.getppid()
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        # Field 22 of proc_pid_stat(5), in ticks since boot; the second is a name, which may hold blanks.
        since = (PROC / f"{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:  # no Linux
        boot = since = ""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    return f"{boot} {parent} {since} {os.environ.get('TORCHELASTIC_RUN_ID')} {restart}"


def _checked_by_sibling(target: Path) -> bool:
    mark = target.with_name(f"{target.name}.checked")
    in_group = "LOCAL_RANK" in os.environ
    return in_group and (target / MANIFEST).is_file() and mark.is_file() and mark.read_text() == _start()


def _tell_siblings(target: Path) -> None:
    target.with_name(f"{target.name}.checked").write_text(_start())
