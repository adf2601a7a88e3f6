"""The runs of a work directory and of a store: state, recipe, age, time, cost, deciding score.

Each run has a record (`runtime.run_record`): a thousand runs on S3 take two listings and a read of each that is shown.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from anadil.artifacts import local_directory, storage
from anadil.artifacts.uri import absolute, join
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import DASH, human_dollars, human_figure, human_seconds, number, one_line
from anadil.core.stages import STAGES
from anadil.plan.instances import machines, plain_name
from anadil.release.notebook import html_table, text_table
from anadil.runtime.run_record import RunRecord, State, read_record, record_uri

WORK = "anadil-work"
"""Default work directory of `anadil run`."""
READERS = 8
"""Records that are read at a time; boto3's client keeps ten connections."""
MIN_PREFIX = 4
COLUMNS = ("id", "state", "recipe", "age", "time", "cost", "bits per byte", "released", "stage")
NUMBERS = (3, 4, 5, 6)
"""Columns that hold numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as a list shows it."""

    id: str
    state: State | Literal["damaged"]
    recipe: str
    """Name that the user gave; for a run on a cluster, language and base model."""
    started: datetime
    updated: datetime
    stage: str
    """Where it is, or where it ended."""
    progress: str
    """Steps that are finished, of all: `3 of 6`."""
    seconds: float
    """Compute time of all steps."""
    dollars: float | None
    """Cost of the steps with a model by the price table; None if it lacks the machine."""
    base_bits_per_byte: float | None
    bits_per_byte: float | None
    """Adapted model on the run's held-out text."""
    released: str
    """Candidate that the gate released, or `none`; empty before `evaluate`."""
    message: str
    """Why it ended; what is damaged."""
    place: str
    """Work directory or root whose record this is."""
    root: str
    """Where its artifacts lie."""
    artifacts: dict[str, str]
    """Artifact word -> URI."""

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON has them; times in ISO 8601, UTC."""
        times = {name: getattr(self, name).isoformat(timespec="seconds") for name in ("started", "updated")}
        return asdict(self) | times

    def _repr_html_(self) -> str:
        return RunList([self])._repr_html_()


class RunList(list[Run]):
    """Runs, the latest first; notebooks show it as a table."""

    hidden: int = 0
    """Older runs that were left out."""

    def rows(self, now: float | None = None) -> list[tuple[str, ...]]:
        """Cells of a table under `COLUMNS`."""
        return [_cells(run, time.time() if now is None else now) for run in self]

    def __str__(self) -> str:
        return "\n".join(text_table(COLUMNS, self.rows(), NUMBERS))

    def _repr_html_(self) -> str:
        more = f"{self.hidden:,} older runs are not shown." if self.hidden else ""
        return html_table("Runs", COLUMNS, self.rows(), NUMBERS, note=more)


def list_runs(
    work: str | Path | None = WORK, root: str | None = None, *, limit: int | None = None
) -> RunList:
    """The runs of a work directory and of a store, the latest first.

    A run that another process is in the midst of is listed as it stands; one whose record is damaged is listed
    as such. Nothing is written.

    Args:
        work: Work directory of `anadil run`; None: none.
        root: `storage.root` of runs elsewhere: a directory or an `s3://` URI.
        limit: Most runs to read; left out, all.

    Raises:
        RecipeError: A file stands in the place of a directory.
        DataError: The store does not exist.
        PreflightError: It is not one that we speak, or grants nothing.
        RetryableError: It does not answer.

    Example:
        >>> anadil.list_runs("anadil-work")[0].bits_per_byte  # doctest: +SKIP
        1.36
    """
    records = [listed for place in _places(work, root) for listed in _listed(place)]
    latest = sorted(records, key=lambda each: (each.modified, each.run), reverse=True)
    shown = latest if limit is None else latest[:limit]
    # Reads of S3 mostly wait, so threads overlap them.
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(_read, shown))
    runs: dict[str, Run] = {}
    for run in sorted(read, key=lambda each: each.updated):
        runs[run.id] = run  # of one that both places know, what was written last
    result = RunList(sorted(runs.values(), key=lambda each: (each.started, each.id), reverse=True))
    result.hidden = len(latest) - len(shown)
    return result


def find_run(name: str, work: str | Path | None = WORK, root: str | None = None) -> Run:
    """A run by its id, or by an id's beginning of four characters or more that no other has.

    Raises:
        DataError: There is none.
        RecipeError: Several begin so.
    """
    places = _places(work, root)
    known = [listed for place in places for listed in _listed(place)]
    exact = [listed for listed in known if listed.run == name]
    near = exact or [each for each in known if len(name) >= MIN_PREFIX and each.run.startswith(name)]
    read = list(map(_read, near))
    if len(several := sorted({run.id for run in read})) > 1:
        raise RecipeError(f"run {name}: several begin so ({', '.join(several[:5])}); write more of it")
    if not read:
        where = " and ".join(places) or "nowhere"
        raise DataError(
            f"{name}: neither a work directory nor an artifact nor a run of {where}; `anadil list` shows the "
            "runs, --work and --root say where to look"
        )
    return max(read, key=lambda each: each.updated)


def _places(work: str | Path | None, root: str | None) -> list[str]:
    given = {"--work": str(work) if work is not None else "", "--root": root or ""}
    for key, place in given.items():
        if place and "://" not in place:
            local_directory.check_directory(Path(place), key)
    # `absolute` would take the slashes of a URI that has nothing else for those at its end.
    return list(dict.fromkeys(p if p.endswith("://") else absolute(p) for p in given.values() if p))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedRecord:
    """The record of a run, as the listing of a directory shows it."""

    place: str
    run: str
    modified: float


def _listed(place: str) -> list[_ListedRecord]:
    names = storage.store(place).listed(join(place, "runs"))
    return [
        _ListedRecord(place=place, run=name.removesuffix(".json"), modified=when)
        for name, when in names.items()
        if name.endswith(".json") and not name.startswith(".")
    ]


def _read(listed: _ListedRecord) -> Run:
    """Read a run; one whose record cannot be read is `damaged`."""
    try:
        return _from_record(listed.place, read_record(record_uri(listed.place, listed.run)))
    except DataError as error:
        moment = datetime.fromtimestamp(listed.modified, UTC)
        return Run(
            id=listed.run, state="damaged", recipe="", started=moment, updated=moment, stage="", progress="", seconds=0,
            dollars=None, base_bits_per_byte=None, bits_per_byte=None, released="", message=str(error),
            place=listed.place, root="", artifacts={},
        )  # fmt: skip


def _from_record(place: str, record: RunRecord) -> Run:
    done = [name for name, step in record.steps.items() if step.status == "finished"]
    scores = record.steps.get("evaluate")
    figures = scores.figures if scores else {}
    failed = [step.message for step in record.steps.values() if step.exit_code]
    return Run(
        id=record.id,
        state=record.state,
        recipe=record.recipe,
        started=datetime.fromtimestamp(record.started, UTC),
        updated=datetime.fromtimestamp(record.updated, UTC),
        stage=next(reversed(record.steps), ""),
        progress=f"{len(done)} of {len(record.stages)}",
        seconds=round(sum(_seconds(record).values()), 1),
        dollars=_dollars(record),
        base_bits_per_byte=number(figures.get("base_bits_per_byte")),
        bits_per_byte=number(figures.get("bits_per_byte")),
        released=str(figures.get("released") or ""),
        message=record.message or next(iter(failed), "") or _left(record),
        place=place,
        root=record.root or place,
        artifacts={STAGES[name].writes: step.uri for name, step in record.steps.items() if step.uri},
    )


def _left(record: RunRecord) -> str:
    """Message for a run whose process is gone."""
    gone = record.exit_code is None and record.state == "stopped"
    return "its process is gone; run the same command again to resume" if gone else ""


def _seconds(record: RunRecord) -> dict[str, float]:
    """Stage -> how long it took, of one that still runs how long it has."""
    since = time.time() - record.updated if record.state == "running" else 0.0
    return {
        name: step.seconds + (max(0.0, since) if step.status == "running" else 0.0)
        for name, step in record.steps.items()
    }


def _dollars(record: RunRecord) -> float | None:
    price = _prices().get(plain_name(record.instance))
    if price is None:
        return None
    hours = {name: seconds / 3600 for name, seconds in _seconds(record).items() if STAGES[name].uses_model}
    return sum(
        each * price * (record.nodes if STAGES[name].distributed else 1) for name, each in hours.items()
    )


@cache
def _prices() -> dict[str, float]:
    """Machine type -> USD an hour, on demand."""
    return {each.name: each.on_demand for each in machines() if each.on_demand is not None}


def _cells(run: Run, now: float) -> tuple[str, ...]:
    score = human_figure(run.bits_per_byte) if run.bits_per_byte is not None else DASH
    if run.base_bits_per_byte is not None:
        score = f"{human_figure(run.base_bits_per_byte)} to {score}"
    silent = now - run.updated.timestamp()
    where = " ".join(filter(None, (run.stage, f"({run.progress})" if run.progress else "")))
    if run.state == "running" and silent > 3600:
        where += f", last sign {human_seconds(silent)} ago"
    if run.state in ("failed", "stopped", "damaged", "budget reached") and run.message:
        where = ": ".join(filter(None, (where, one_line(run.message, 80))))
    return (
        run.id,
        run.state,
        one_line(run.recipe, 40),
        age(now - run.started.timestamp()),
        human_seconds(run.seconds),
        human_dollars(run.dollars),
        score,
        run.released or DASH,
        where,
    )


def age(seconds: float) -> str:
    """How long ago, in one unit: `12 min`, `3 h`, `5 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
