"""Curves and texts of a step in progress, copied beside the record of its run.

A step in a pod writes them on a disk that nobody else reads. `anadil watch` reads the copy: `runs/<run>/<step>.jsonl`.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError

log = logging.getLogger(__name__)

EVERY_S = 30.0
"""Time between two copies: a file of ten thousand lines has 6 MB."""
CURVES, TEXTS = "training.jsonl", "texts.jsonl"
"""Files of a training in its work directory."""


@contextmanager
def copied(root: str, run: str, step: str, work: Path, spool: Path | None) -> Iterator[None]:
    """Copy what a step writes while the block runs, and a last time after it. What cannot be written is one warning.

    Without `root` (`storage.root`) or `run` nothing is copied. `spool` holds the curves of a step without a file of its own.
    """
    if not root or not run:
        yield
        return
    ended = threading.Event()
    places = {f"{step}.jsonl": (work / CURVES, spool), f"{step}.texts.jsonl": (work / TEXTS,)}
    targets = {join(root, "runs", run, name): files for name, files in places.items()}
    thread = threading.Thread(target=_copy_on, args=(targets, ended), daemon=True, name="live copy")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(EVERY_S)


def _copy_on(targets: Mapping[str, tuple[Path | None, ...]], ended: threading.Event) -> None:
    marks: dict[str, tuple[str, int, int]] = {}
    is_last = False
    while not is_last:
        is_last = ended.wait(EVERY_S)
        try:
            for uri, files in targets.items():
                _copy(uri, files, marks)
        except (AnadilError, OSError) as error:
            log.warning("curves of the step in progress are not copied any more: %s", error)
            return


def _copy(uri: str, files: tuple[Path | None, ...], marks: dict[str, tuple[str, int, int]]) -> None:
    """Write the first of the files that exists, where it has changed."""
    path = next((file for file in files if file and file.is_file()), None)
    if path is None:
        return
    stat = path.stat()
    mark = (str(path), stat.st_size, stat.st_mtime_ns)
    if marks.get(uri) != mark:
        storage.store(uri).write(uri, path.read_bytes())
        marks[uri] = mark
