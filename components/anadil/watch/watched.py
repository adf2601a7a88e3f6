"""The places that a server shows, and the runs in them."""

import json
import threading
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anadil.artifacts import storage
from anadil.core.errors import AnadilError, DataError
from anadil.core.format import number
from anadil.release.runs import Run, RunList, find_run, list_runs

MAX_FILE_BYTES = 100_000_000
"""Largest file that is read from a store as a whole."""
MAX_FILES = 64
"""Files whose curves are kept; the one that was asked for longest ago goes first."""
Points = tuple[tuple[float, float], ...]


@dataclass(slots=True)
class Curves:
    """The curves of one file, by the names of `metric_table`."""

    artifact: str = ""
    """Place of the artifact that is being made, where the file says so."""
    num_damaged: int = 0
    """Lines that are no JSON; a line that is still being written is none of them."""
    _series: dict[str, tuple["array[float]", "array[float]"]] = field(default_factory=dict)

    def points(self, name: str) -> Points:
        """Steps and values of a curve; empty without any."""
        return tuple(zip(*self._series.get(name, ((), ())), strict=True))

    def names(self, prefix: str) -> list[str]:
        """Names of the curves that begin so, in order."""
        return sorted(name for name in self._series if name.startswith(prefix))

    def last(self, name: str) -> float | None:
        """Latest value of a curve."""
        series = self._series.get(name)
        return series[1][-1] if series else None

    def add(self, text: bytes) -> None:
        """Add a line of a training or of a spool."""
        try:
            line = json.loads(text)
            kind = line.get("kind")
        except (ValueError, AttributeError):
            self.num_damaged += 1
            return
        if kind == "tags" and isinstance(line.get("values"), dict):
            self.artifact = str(line["values"].get("anadil.artifact", "")) or self.artifact
        elif kind == "metrics" and isinstance(line.get("values"), dict):
            self._add({_name(key): value for key, value in line["values"].items()}, line.get("step"))
        elif kind is None:
            self._add(line, line.get("step"))

    def _add(self, values: Mapping[str, object], at: object) -> None:
        if (step := number(at)) is None:  # a final figure of the stage
            return
        for name, value in values.items():
            if (known := number(value)) is None or name == "step":
                continue
            steps, series = self._series.setdefault(name, (array("d"), array("d")))
            # After a spike or a restart training goes on from an earlier step.
            while steps and steps[-1] >= step:
                steps.pop()
                series.pop()
            steps.append(step)
            series.append(known)


class CurveFiles:
    """Curves by file, which pages that are asked for again read on."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, int, Curves]] = {}
        """URI -> mark of the file, bytes that are read, curves."""
        self._lock = threading.Lock()

    def read(self, uri: str) -> Curves | None:
        """Curves of a file; None where there is none, or none any more."""
        with self._lock:
            known = self._files.pop(uri, ("", 0, Curves()))
            result = self._remote(uri, known) if "://" in uri else self._local(Path(uri), known)
            if result is None:
                return None
            self._files[uri] = result
            # Hundreds of earlier runs would fill the memory.
            while len(self._files) > MAX_FILES:
                del self._files[next(iter(self._files))]
            return result[2]

    def _local(self, path: Path, known: tuple[str, int, Curves]) -> tuple[str, int, Curves] | None:
        mark, done, curves = known
        try:
            with path.open("rb") as file:
                # A training that goes on from a checkpoint writes the file anew.
                here = str(path.stat().st_ino)
                if here != mark or path.stat().st_size < done:
                    mark, done, curves = here, 0, Curves()
                file.seek(done)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    curves.add(line)
                    done += len(line)
        except OSError:
            return None
        return mark, done, curves

    def _remote(self, uri: str, known: tuple[str, int, Curves]) -> tuple[str, int, Curves] | None:
        there = storage.store(uri)
        try:
            if not there.exists(uri) or there.size(uri) > MAX_FILE_BYTES:
                return None
            # A copy of a whole file is no more than its version tells, so that a refresh without news reads nothing.
            if (version := there.version(uri)) == known[0]:
                return known
            curves = Curves()
            for line in _lines(there.read(uri)):
                curves.add(line)
        except AnadilError:
            return None
        return version, 0, curves


def _lines(content: bytes) -> Iterator[bytes]:
    yield from (line for line in content.splitlines(keepends=True) if line.endswith(b"\n"))


def _name(key: str) -> str:
    """Name of a metric by its key in MLflow; the inverse of `curve_key`."""
    group, _, name = key.partition("/")
    return f"validation_{name}" if group == "validation" else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The settings of a server; every page gets them."""

    roots: tuple[str, ...]
    """Work directories and `storage.root` addresses."""
    token: str
    port: int
    files: CurveFiles = field(default_factory=CurveFiles)
    """Curves that were read."""

    def runs(self, limit: int | None = None) -> RunList:
        """The runs of all places, the latest first. Raises as `places`."""
        return self.places(limit)[0]

    def places(self, limit: int | None = None) -> tuple[RunList, list[str]]:
        """The runs of all places, the latest first, and what is wrong with places that cannot be read."""
        lists, faults = [], []
        for root in self.roots:
            try:
                lists.append(list_runs(None, root, limit=limit))
            except AnadilError as error:
                faults.append(error)
        if not lists and faults:
            raise faults[0]
        known = {run.id: run for runs in lists for run in sorted(runs, key=lambda each: each.updated)}
        result = RunList(sorted(known.values(), key=lambda each: (each.started, each.id), reverse=True))
        result.hidden = sum(runs.hidden for runs in lists)
        return result, [str(fault) for fault in faults]

    def run(self, name: str) -> Run:
        """A run by its id."""
        matches = []
        for root in self.roots:
            with suppress(AnadilError):
                matches.append(find_run(name, None, root))
        if not matches:
            raise DataError(f"{name}: no such run in {' and '.join(self.roots)}; it may have been removed")
        return max(matches, key=lambda each: each.updated)
