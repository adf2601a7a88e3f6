"""One checkpoint on disk: `step-N/`, complete under that name or not there under it.

It is written as `step-N.partial`, sealed by its manifest and renamed; removed ones are renamed
first too. So `step-N` is never half a checkpoint, whenever the process is killed.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePath

from anadil import __version__
from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.local_directory import flush
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.pretrain.state import State
from anadil.runtime.lookup import BRANCH_POINT

log = logging.getLogger(__name__)

KIND = "checkpoint"
STATE = "state.json"
PARTIAL, REMOVED = ".partial", ".removed"
"""Being written; being removed."""
REPLACED = ".old"
"""The checkpoint of the same step that a new one takes the place of."""
UPLOAD = ".upload"
"""More names for a checkpoint's files, while they are copied to the archive."""
DOWNLOAD = ".download"
"""Being fetched from the archive; a later start resumes it."""
LATER = ".later"
"""Set aside, since the run resumed from an earlier step; removed when it has come past this one."""
DAMAGED = ".damaged"
"""Set aside, since it differs from its manifest."""
MOST_LISTED = 8
"""Processes in a message."""
HASHING_THREADS = 4
"""Files hashed at a time. With SHA instructions one thread is about as fast as a disk."""
_NAME = re.compile(r"step-(\d{8,})")

Entries = dict[str, dict[str, str | int]]
"""File -> `bytes` and `sha256`, as manifests hold them."""


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08}"


def step_in_name(name: str) -> int | None:
    """Parse the step from a checkpoint's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that have a manifest, the newest first."""
    numbers = []
    for path in folder.glob("step-*"):
        step = step_in_name(path.name)
        if step is not None and (path / MANIFEST).is_file():
            numbers.append(step)
        elif step is not None:
            log.warning("%s: has no %s, so it does not count as a checkpoint; remove it", path, MANIFEST)
    return sorted(numbers, reverse=True)


def listed(numbers: list[int]) -> str:
    """Steps as messages show them."""
    return ", ".join(f"{step:,}" for step in numbers) or "none"


def who_has(listings: list[tuple[str, list[int]]]) -> str:
    """Name the steps that each process has; processes of one node with equal steps are named once."""
    shown = [
        f"rank {rank} on {host}: {listed(listing)}"
        for rank, (host, listing) in enumerate(listings)
        if rank == 0 or listings[rank - 1] != (host, listing)
    ]
    more = [f"and {len(shown) - MOST_LISTED} more"] if len(shown) > MOST_LISTED else []
    return "; ".join([*shown[:MOST_LISTED], *more])


def clean_partials(folder: Path) -> None:
    """Remove partial checkpoints of killed processes."""
    # A download fills an empty folder; where there is a checkpoint, nobody resumes it.
    for suffix in (PARTIAL, REMOVED, UPLOAD, *([DOWNLOAD] if steps(folder) else [])):
        for half in folder.glob(f"step-*{suffix}"):
            shutil.rmtree(half, ignore_errors=True)
    for old in folder.glob(f"step-*{REPLACED}"):
        target = old.with_suffix("")
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def describe_files(paths: list[Path]) -> Entries:
    """Bytes and SHA-256 of files, by name."""
    with ThreadPoolExecutor(HASHING_THREADS) as threads:
        entries = threads.map(artifact.file_entry, paths)
        return {path.name: entry for path, entry in zip(paths, entries, strict=True)}


def commit(
    partial: Path, state: State, origin: Mapping[str, str], files: Entries, *, is_point: bool = False
) -> Path:
    """Seal a checkpoint whose tensors are written and flushed by all processes, and give it its name.

    `is_point` marks a branch point, which outlives the run.
    """
    for name, entry in files.items():
        if not (partial / name).is_file() or (partial / name).stat().st_size != entry["bytes"]:
            raise PreflightError(
                f"{partial}/{name}: not visible on this host, though another process wrote it; "
                "put storage.root on a file system that all nodes share"
            )
    # Last before the manifest: it is small, and of no use without the tensors.
    (partial / STATE).write_text(state.to_json(), encoding="utf-8")
    flush(partial / STATE)
    manifest = Manifest(
        kind=KIND,
        key=artifact.origin_key(origin),
        origin=dict(origin),
        files={**dict(sorted(files.items())), STATE: artifact.file_entry(partial / STATE)},
        records={"step": state.step, "tokens": state.tokens, **({BRANCH_POINT: 1} if is_point else {})},
        program={"version": __version__},
    )
    # The manifest seals: a directory without one is no checkpoint.
    (partial / MANIFEST).write_text(sealed(manifest), encoding="utf-8")
    flush(partial / MANIFEST)
    # A rename may reach the disk before the names inside; after a power cut the files would be gone.
    flush(partial)
    target = partial.with_suffix("")
    old = target.with_suffix(REPLACED)
    shutil.rmtree(old, ignore_errors=True)
    # After a roll-back the same step is written again.
    if target.exists():
        target.rename(old)
    partial.rename(target)
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    return target


def retain(folder: Path, keep: int, written: int, needed: Collection[int] = ()) -> None:
    """Remove checkpoints beyond the newest `keep`, but none of `needed`, nor the one just written, nor one being read."""
    # Set aside when the run resumed from an earlier step, which has now come past them.
    for aside in folder.glob(f"step-*{LATER}"):
        if (step_in_name(aside.stem) or 0) <= written:
            shutil.rmtree(aside, ignore_errors=True)
    for step in steps(folder)[keep:]:
        path = path_of(folder, step)
        if step == written or step in needed:
            continue
        with (path / MANIFEST).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # being read; its turn comes with the next save
            except OSError:
                log.debug("%s: its file system has no locks", folder)
            # Renamed first: a kill amid the removal must not leave half a checkpoint under its name.
            removed = set_aside(path, REMOVED)
        shutil.rmtree(removed, ignore_errors=True)


@contextlib.contextmanager
def hold_open(path: Path) -> Iterator[None]:
    """Protect a checkpoint from removal while it is read; `DataError` where it is gone already."""
    try:
        file = (path / MANIFEST).open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no finished checkpoint there (no {MANIFEST})") from None
    with file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def sealed(manifest: Manifest) -> str:
    """Render a manifest with a digest of itself, so that no bit of it can change unseen."""
    plain = json.dumps(replace(manifest, figures={}).fields(), sort_keys=True)
    figures: dict[str, bool | float | int | str] = {"digest": hashlib.sha256(plain.encode()).hexdigest()}
    return json.dumps(replace(manifest, figures=figures).fields(), ensure_ascii=False, indent=1)


def manifest_of(place: Path | str) -> Manifest:
    """Read the manifest of a checkpoint, wherever it lies; `IntegrityError` for a missing, changed or foreign one."""
    uri = str(place)
    manifest = artifact.read_manifest(uri)
    if manifest is None:
        raise IntegrityError(f"{place}: has no {MANIFEST}")
    if storage.store(uri).read(join(uri, MANIFEST)) != sealed(manifest).encode():
        raise IntegrityError(f"{place}/{MANIFEST}: is not as it was written")
    if manifest.kind != KIND:
        raise IntegrityError(f"{place}: holds a {manifest.kind}, not a {KIND}")
    step = step_in_name(PurePath(place).with_suffix("").name)
    if manifest.records.get("step") != step:
        raise IntegrityError(f"{place}: its manifest is that of step {manifest.records.get('step')}")
    # A name such as ../x would be written outside on a download.
    foreign = [name for name in manifest.files if "/" in name or name in {"", ".", ".."}]
    if foreign:
        raise IntegrityError(f"{place}: its manifest names {foreign[0]!r}, outside the checkpoint")
    return manifest


def verify_part(path: Path, manifest: Manifest, rank: int = 0, size: int = 1) -> None:
    """Compare all names and sizes with the manifest, and the bytes of the share of process `rank` of `size`."""
    present = {file.relative_to(path).as_posix() for file in path.rglob("*")} - {MANIFEST}
    for missing in sorted(manifest.files.keys() - present):
        raise IntegrityError(f"{path}/{missing}: missing, but its manifest names it")
    for extra in sorted(present - manifest.files.keys()):
        raise IntegrityError(f"{path}/{extra}: not in its manifest")
    for name, entry in manifest.files.items():
        if (path / name).stat().st_size != entry["bytes"]:
            raise IntegrityError(
                f"{path}/{name}: size differs from the manifest: {entry['bytes']} bytes expected"
            )
    # In turn by size: processes then read about as many bytes each.
    by_size = sorted(manifest.files, key=lambda name: (int(manifest.files[name]["bytes"]), name))
    for name, entry in describe_files([path / name for name in by_size[rank::size]]).items():
        if entry != manifest.files[name]:
            raise IntegrityError(f"{path}/{name}: differs from its manifest")


def set_aside(path: Path, suffix: str = DAMAGED) -> Path:
    """Rename a checkpoint, so that it is not read again."""
    aside = path.with_suffix(suffix)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def discard_later(folder: Path, step: int, *, remove: bool) -> None:
    """Rename or remove checkpoints after `step`, so that they neither count nor come back."""
    later = [each for each in steps(folder) if each > step]
    for each in later:
        aside = set_aside(path_of(folder, each), REMOVED if remove else LATER)
        if remove:
            shutil.rmtree(aside, ignore_errors=True)
    if later:
        log.warning(
            "%s: the run resumes from step %s; checkpoints of later steps (%s) are %s",
            folder, f"{max(step, 0):,}", listed(later),
            "removed" if remove else f"set aside as step-*{LATER}",
        )  # fmt: skip
