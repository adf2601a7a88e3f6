"""Copies of S3 artifacts on this machine's own disk, fetched once for all its processes.

Files are fetched side by side and checked against their manifest. A killed run resumes with the files that are missing.
"""

import functools
import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from anadil.artifacts import artifact, hub_files, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import MANIFEST, Count, join
from anadil.core.errors import DataError, IntegrityError, PreflightError, RetryableError, Stopped
from anadil.core.files import file_lock, temporary_folder
from anadil.core.format import human_bytes
from anadil.core.processes import start_of
from anadil.core.progress import progress

log = logging.getLogger(__name__)

FILES_AT_A_TIME = 8
"""Files fetched side by side; boto3 fetches each in ranges, ten at a time."""
RESERVE_BYTES = 1024**3
"""Space that is left free on the disk."""
MAX_HUB_BYTES = 8 * 1024**3
"""Most bytes of copies of the hub's files beside the one that is read. The least recently used go."""
LARGER_DISK = "set ANADIL_CACHE to a directory on a larger disk"
POLL_S = 0.5
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each start of the machine, and on each machine."""
ATTEMPTS = 2
"""Times that a file is fetched whose bytes are not those of the manifest."""


Entry = Mapping[str, str | int]
"""`bytes` and `sha256` of a file, as in a manifest."""
Fetch = Callable[[str, Path, Count], None]
"""Gets a file by its name into a path, which is there when it is whole."""


def cache() -> Path:
    """Return the directory of copies: ANADIL_CACHE, to be set to the node's fastest disk."""
    return Path(os.environ.get("ANADIL_CACHE") or temporary_folder("anadil-cache"))


def fetch(uri: str, kind: str, beginnings: tuple[str, ...] = ()) -> tuple[Path, Manifest]:
    """A local directory with an artifact, every byte of it checked: the artifact itself, or a copy of a remote one.

    With `beginnings`, only files whose names begin so are copied and checked. Others may lie there, too.
    """
    manifest = artifact.finished_manifest(uri, kind)
    if "://" in uri:
        return copy_to_cache(uri, manifest, beginnings), manifest
    artifact.verify_files(Path(uri), manifest, uri, beginnings)
    return Path(uri), manifest


def copy_to_cache(uri: str, manifest: Manifest, beginnings: tuple[str, ...] = ()) -> Path:
    """A copy of an artifact, or of some of its files, on this machine's own disk.

    Processes of a machine may call this together: one fetches and checks, the others wait.
    """
    files = artifact.files_of(manifest, beginnings)
    content = storage.store(uri).read(join(uri, MANIFEST))
    # Keyed by the manifest, so that a directory that was written again is fetched again. A part has a place of its own,
    # because `fill` removes what is not asked for.
    key = uri.encode() + content + "\0".join(beginnings).encode()
    target = cache() / hashlib.sha256(key).hexdigest()[:16]
    mark = target.with_name(f"{target.name}.checked")
    with file_lock(Path(f"{target}.lock")):
        has_mark = "LOCAL_RANK" in os.environ and (target / MANIFEST).is_file() and mark.is_file()
        if not has_mark or mark.read_text() != _start():
            fill(target, files, fetch_from(uri), uri)
            storage.LocalStore().write(str(target / MANIFEST), content)
            mark.write_text(_start())
    return target


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove the blocks that were not used for longest, until the others take no more than `most_bytes`."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Another process may remove it at the same time.
            with suppress(FileNotFoundError):
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most_bytes:
            return
        # Whoever reads it has it open, and whoever comes later fetches it again.
        Path(path).unlink(missing_ok=True)
        total -= size


@functools.cache
def checked_copy(uri: str, version: str = "") -> Path:
    """A copy of a file of the hub with the bytes of its commit, for readers of pieces, of which no digest tells.

    One process of a machine fetches the file, and every process compares the digest once.
    """
    there = hub_files.HubStore()
    version = version or there.version(uri)
    content_id, _, size = version.rpartition("-")
    target = cache() / "hub" / f"{content_id}-{Path(uri).name}"
    _check_space(target.parent, 0 if target.is_file() else int(size), uri, LARGER_DISK)
    with file_lock(Path(f"{target}.lock")):
        if target.is_file() and hub_files.is_content(target, version):
            os.utime(target)
        else:
            there.download(uri, target, version=version)
    remove_oldest(target.parent, MAX_HUB_BYTES + int(size))
    return target


def fetch_from(uri: str) -> Fetch:
    """Return a function that fetches files below a URI."""
    store = storage.store(uri)
    return lambda name, path, count: store.download(join(uri, name), path, count)


def fill(
    target: Path, files: Mapping[str, Entry], fetch: Fetch, source: str, remedy: str = LARGER_DISK
) -> None:
    """Make `target` hold these files, every byte checked, a manifest if it has one, and nothing else.

    Files that have the right bytes are kept. `source` and `remedy` are for messages.
    """
    for name in files:
        if not (target / name).resolve().is_relative_to(target.resolve()):
            raise IntegrityError(f"{source}: its manifest names {name!r}, out of its directory; remove it")
    known = {MANIFEST, *files}
    for file in [path for path in target.rglob("*") if path.is_file()]:
        if file.relative_to(target).as_posix() not in known:
            file.unlink()  # what a killed run was fetching
    total = sum(int(entry["bytes"]) for entry in files.values())
    absent = sum(int(entry["bytes"]) for name, entry in files.items() if not _has_size(target / name, entry))
    _check_space(target, absent, source, remedy)
    if absent:
        log.info("%s: fetching %s into %s", source, human_bytes(absent), target)
    stop = threading.Event()
    with (
        ThreadPoolExecutor(FILES_AT_A_TIME, "anadil-preload") as pool,
        progress(f"fetching {source}, MB", max(1, total // 10**6)) as bar,
    ):
        left = {pool.submit(_bring, target, *item, fetch, source, stop) for item in files.items()}
        try:
            while left:
                done, left = wait(left, timeout=POLL_S)
                bar.advance(max(0, _present_bytes(target) // 10**6 - bar.done))
                for future in done:
                    future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _bring(target: Path, name: str, entry: Entry, fetch: Fetch, source: str, stop: threading.Event) -> None:
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)

    def count(_: int) -> None:
        if stop.is_set():
            raise Stopped(f"{source}: fetching was stopped; run the same command again to resume")

    digests = set()
    for attempt in range(ATTEMPTS + 1):
        count(0)
        if _has_size(path, entry):
            digest = artifact.file_entry(path)["sha256"]
            if digest == entry["sha256"]:
                return
            if attempt:
                digests.add(digest)
            log.warning("%s: the copy of %s in %s is damaged; fetching it again", source, name, target)
            path.unlink()
        if attempt < ATTEMPTS:
            try:
                fetch(name, path, count)
            except DataError:
                remedy = artifact.remedy_of(source)
                raise IntegrityError(
                    f"{source}/{name}: missing, but its manifest names it; {remedy}"
                ) from None
    if len(digests) > 1:  # what is stored would come twice alike
        raise RetryableError(
            f"{source}/{name}: came with other bytes each time; check the network and any proxy, "
            "then run the same command again"
        )
    raise IntegrityError(f"{source}/{name}: differs from its manifest; {artifact.remedy_of(source)}")


def _has_size(path: Path, entry: Entry) -> bool:
    return path.is_file() and path.stat().st_size == entry["bytes"]


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


def _start() -> str:
    """Return a name of this start of the machine's processes: those of one torchrun have one parent."""
    # In a container the parent is process 1 each time; when it was started tells one from the next.
    parent = os.getppid()
    boot = BOOT.read_text(encoding="utf-8").strip() if BOOT.is_file() else ""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    return f"{boot} {parent} {start_of(parent)} {os.environ.get('TORCHELASTIC_RUN_ID')} {restart}"
