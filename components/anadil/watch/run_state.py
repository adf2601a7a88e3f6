"""The state of a run as its page shows it, read from what the run leaves: record, log, plan, curves."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, DataError
from anadil.runtime.run_record import LOG, RunRecord, StepRecord, read_record, record_uri
from anadil.watch.watched import Watched

TAIL_BYTES = 400_000
"""Read of the end of a run's log: some thousand lines."""
WARNINGS = 30
"""Most messages that are shown, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a loop of a step is."""

    step: str
    what: str
    done: int
    total: int | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A warning or an error of a run, with its remedy."""

    step: str
    level: str
    text: str
    time: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run, as far as its files tell."""

    record: RunRecord
    place: str
    """Work directory or root of the record."""
    progress: Progress | None
    messages: Sequence[Message]
    plan: Mapping[str, object]
    """`expected` of its plan; empty without one."""

    @property
    def root(self) -> str:
        """Place of its artifacts."""
        return self.record.root or self.place

    @property
    def running(self) -> str:
        """Name of the step in progress; empty without one."""
        steps = [name for name, step in self.record.steps.items() if step.status == "running"]
        return steps[-1] if steps and self.record.state == "running" else ""


def run_state(watched: Watched, name: str) -> RunState:
    """Read a run."""
    run = watched.run(name)
    if run.state == "damaged":
        raise DataError(run.message)
    record = read_record(record_uri(run.place, run.id))
    lines = _log(run.place, run.id)
    return RunState(
        record=record, place=run.place, progress=_progress(lines), messages=_messages(lines, record),
        plan=_plan(run.place, run.id),
    )  # fmt: skip


def step_names(record: RunRecord) -> dict[str, StepRecord]:
    """Every step of a run by name, in order; one that has not begun is empty."""
    names = dict.fromkeys([*record.stages, *record.steps])
    return {name: record.steps.get(name, StepRecord(stage=name)) for name in names}


def _log(place: str, run: str) -> list[dict[str, object]]:
    """The last lines of a run's log; none for a run elsewhere, whose pods keep it."""
    if "://" in place:
        return []
    return last_lines(join(place, "runs", run, LOG), TAIL_BYTES)


def last_lines(uri: str, num_bytes: int) -> list[dict[str, Any]]:
    """Tables at the end of a file of JSON lines; half ones, of a killed writer or the cut, and a missing file are none."""
    content, tables = b"", []
    with suppress(AnadilError):
        content, _ = storage.store(uri).part(uri, -num_bytes, num_bytes)
    for line in content.split(b"\n"):
        with suppress(ValueError):
            tables.append(json.loads(line))
    return [table for table in tables if isinstance(table, dict)]


def _progress(lines: Sequence[Mapping[str, object]]) -> Progress | None:
    for line in reversed(lines):
        known = line.get("progress")
        if isinstance(known, dict):
            with suppress(KeyError, TypeError, ValueError):
                return Progress(
                    step=str(line.get("stage")), what=str(known["what"]), done=int(known["done"]),
                    total=None if known["total"] is None else int(known["total"]),
                    seconds_left=None if known["seconds_left"] is None else float(known["seconds_left"]),
                )  # fmt: skip
    return None


def _messages(lines: Sequence[Mapping[str, object]], record: RunRecord) -> list[Message]:
    """Warnings and errors, each once, the latest first; what the record alone knows stands before them."""
    known = {
        (str(line.get("stage") or ""), str(line.get("msg"))): Message(
            step=str(line.get("stage") or ""), level=str(line["level"]), text=str(line.get("msg")), time=str(line.get("ts"))
        )
        for line in lines
        if line.get("level") in ("warning", "error", "critical")
    }  # fmt: skip
    # A step that a signal ended has its reason in the record, and may have none in the log.
    said = "\n".join(message.text for message in known.values())
    ends = {name: step.message for name, step in record.steps.items()} | {"": record.message}
    silent = [
        Message(step=name, level="error", text=text, time="")
        for name, text in ends.items()
        if text and text not in said
    ]
    return [*silent, *reversed(known.values())][:WARNINGS]


def _plan(place: str, run: str) -> Mapping[str, object]:
    # Runs of earlier versions have none.
    uri = join(place, "runs", run, "plan.json")
    with suppress(AnadilError, ValueError, OSError):
        expected = json.loads(storage.store(uri).read(uri)).get("expected")
        return expected if isinstance(expected, dict) else {}
    return {}


def work_of(uri: str) -> Path | None:
    """Directory in which a local artifact is being made; None for one elsewhere."""
    return None if not uri or "://" in uri else Path(f"{uri}.work")
