"""The places that a server shows, and the runs in them."""

from contextlib import suppress
from dataclasses import dataclass, field

from anadil.core.errors import AnadilError, DataError
from anadil.release.runs import Run, RunList, find_run, list_runs
from anadil.watch.curves import CurveFiles


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
