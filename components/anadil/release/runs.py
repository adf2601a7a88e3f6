"""The runs of a work directory and of a store: state, recipe, age, time, cost, deciding score."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from anadil.artifacts import local_directory, storage
from anadil.artifacts.uri import absolute, join
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import DASH, human_dollars, human_figure, human_seconds, number, one_line
from anadil.estimate.instances import machines, plain_name
from anadil.runtime.flow import Step
from anadil.runtime.run_record import RunRecord, State, ended_at, read_record, record_uri

WORK = "anadil-work"
# Records that are read at a time; boto3's client keeps ten connections.
READERS = 8
MIN_PREFIX = 4
COLUMNS = ("id", "state", "recipe", "age", "time", "cost", "bits per byte", "released", "stage")
WORDS = (1, 2, 7, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as a list shows it."""

    id: str
    state: State | Literal["damaged"]
    recipe: str = ""
    """Name that the user gave; for a run on a cluster, language and base model."""
    started: datetime
    updated: datetime
    stage: str = ""
    progress: str = ""
    """Finished steps of all: `3 of 6`."""
    seconds: float = 0
    """Compute time of all steps."""
    dollars: float | None = None
    """Cost of the steps with a model by the price table; None if it lacks the machine."""
    base_bits_per_byte: float | None = None
    bits_per_byte: float | None = None
    """Adapted model on the run's held-out text."""
    released: str = ""
    """Candidate that the gate released, or `none`; empty before `evaluate`."""
    message: str = ""
    """Reason of the end, or the damage."""
    place: str
    """Work directory or root of the record."""
    root: str = ""
    """Place of its artifacts."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Artifact word, `corpus.web` for one of a source -> URI."""

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON has them; times in ISO 8601, UTC."""
        times = {name: getattr(self, name).isoformat(timespec="seconds") for name in ("started", "updated")}
        return asdict(self) | times


class RunList(list[Run]):
    """Runs, the latest first."""

    hidden: int = 0
    """Older runs that were left out."""

    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table under `COLUMNS`."""
        return [_cells(run, time.time()) for run in self]


def list_runs(
    work: str | Path | None = WORK, root: str | None = None, *, limit: int | None = None
) -> RunList:
    """The runs of a work directory and of a store, the latest first.

    A run in progress is listed as it stands, and one with a damaged record as `damaged`. Nothing is written.

    Args:
        work: Work directory of `anadil run`; None: none.
        root: `storage.root` of runs elsewhere: a directory or an `s3://` URI.
        limit: Most runs to read; left out, all.
    """
    latest = sorted(_listed(_places(work, root)), reverse=True)
    shown = latest if limit is None else latest[:limit]
    # Reads of S3 mostly wait, so threads overlap them.
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda each: _read(*each), shown))
    # If both places know a run, the later record counts.
    runs = {run.id: run for run in sorted(read, key=lambda each: each.updated)}
    result = RunList(sorted(runs.values(), key=lambda each: (each.started, each.id), reverse=True))
    result.hidden = len(latest) - len(shown)
    return result


def find_run(name: str, work: str | Path | None = WORK, root: str | None = None) -> Run:
    """A run by its id, or by an unambiguous beginning of four characters or more."""
    places = _places(work, root)
    known = list(_listed(places))
    exact = [each for each in known if each[1] == name]
    near = exact or [each for each in known if len(name) >= MIN_PREFIX and each[1].startswith(name)]
    read = [_read(*each) for each in near]
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
    # `absolute` would strip the slashes of a URI that is only a scheme.
    return list(dict.fromkeys(p if p.endswith("://") else absolute(p) for p in given.values() if p))


def _listed(places: Sequence[str]) -> Iterator[tuple[float, str, str]]:
    """Yield time of writing, run and place of each record. A thousand runs on S3 take two listings."""
    for place in places:
        for name, modified in storage.store(place).listed(join(place, "runs")).items():
            if name.endswith(".json") and not name.startswith("."):
                yield modified, name.removesuffix(".json"), place


def _read(modified: float, run: str, place: str) -> Run:
    """Read a run; one whose record cannot be read is `damaged`."""
    try:
        return _from_record(place, read_record(record_uri(place, run)))
    except DataError as error:
        moment = datetime.fromtimestamp(modified, UTC)
        return Run(id=run, state="damaged", started=moment, updated=moment, message=str(error), place=place)


def _from_record(place: str, record: RunRecord) -> Run:
    done = [name for name, step in record.steps.items() if step.status == "finished"]
    figures = record.steps["evaluate"].figures if "evaluate" in record.steps else {}
    failed = next((step.message for step in record.steps.values() if step.exit_code), "")
    is_gone = record.exit_code is None and record.state == "stopped"
    gone = "its process is gone; run the same command again to resume" if is_gone else ""
    seconds, dollars = _cost(record)
    return Run(
        id=record.id,
        state=record.state,
        recipe=record.recipe,
        started=datetime.fromtimestamp(record.started, UTC),
        updated=datetime.fromtimestamp(
            record.updated if record.state == "running" else ended_at(record, place), UTC
        ),
        stage=next(reversed(record.steps), ""),
        progress=f"{len(done)} of {len(record.stages)}",
        seconds=round(seconds, 1),
        dollars=dollars,
        base_bits_per_byte=number(figures.get("base_bits_per_byte")),
        bits_per_byte=number(figures.get("bits_per_byte")),
        released=str(figures.get("released") or ""),
        message=record.message or failed or gone,
        place=place,
        root=record.root or place,
        artifacts={Step.named(name).writes: step.uri for name, step in record.steps.items() if step.uri},
    )


def _cost(record: RunRecord) -> tuple[float, float | None]:
    """Compute time of all steps, and USD of those with a model; a step in progress counts until now."""
    since = max(0.0, time.time() - record.updated) if record.state == "running" else 0.0
    price = _prices().get(plain_name(record.instance))
    total = dollars = 0.0
    for name, step in record.steps.items():
        seconds = step.seconds + (since if step.status == "running" else 0.0)
        stage = Step.named(name).stage
        nodes = record.nodes if stage.training else 1
        total += seconds
        dollars += seconds / 3600 * (price or 0.0) * nodes if stage.pod.uses_model else 0.0
    return total, None if price is None else dollars


@cache
def _prices() -> dict[str, float]:
    """Machine type -> USD an hour, on demand."""
    return {each.name: each.on_demand for each in machines() if each.on_demand is not None}


def _cells(run: Run, now: float) -> tuple[str, ...]:
    score = human_figure(run.bits_per_byte)
    if run.base_bits_per_byte is not None:
        score = f"{human_figure(run.base_bits_per_byte)} to {score}"
    silent = now - run.updated.timestamp()
    lasted = (now if run.state == "running" else run.updated.timestamp()) - run.started.timestamp()
    where = " ".join(filter(None, (run.stage, f"({run.progress})" if run.progress else "")))
    if run.state == "running" and silent > 3600:
        where += f", last sign {human_seconds(silent)} ago"
    if run.state in ("failed", "stopped", "damaged", "budget reached") and run.message:
        where = ": ".join(filter(None, (where, one_line(run.message, 80))))
    return (
        run.id, run.state, one_line(run.recipe, 40), age(now - run.started.timestamp()), human_seconds(lasted),
        human_dollars(run.dollars), score, run.released or DASH, where,
    )  # fmt: skip


def age(seconds: float) -> str:
    """A time in one unit: `12 min`, `3 h`, `5 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
