"""The places that a server shows, and the runs in them."""

import json
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, DataError
from anadil.core.format import number
from anadil.page.charts import LEFT, RIGHT, WIDTH, Chart, Line, colours_of, line_scale, lines, thinned
from anadil.page.format import clip, evenly
from anadil.release.runs import Run, RunList, find_run, list_runs
from anadil.runtime.run_record import LOG, RunRecord, StepRecord, ended_at, is_gone, read_record, record_uri

MAX_FILE_BYTES = 100_000_000
"""Largest file that is read from a store as a whole."""
MAX_FILES = 64
"""Files whose curves are kept; the one that was asked for longest ago goes first."""
Points = tuple[tuple[float, float], ...]
TAIL_BYTES = 400_000
"""Read of the end of a run's log: some thousand lines."""
WARNINGS = 30
"""Most messages that are shown, the latest."""
FILE = "training.jsonl"
MOST_LINES = 10
SMOOTHED = 20
"""Points from which on a curve is smoothed, by a half-life of a 25th of them. Both are chosen by us."""
TEXTS_FILE = "texts.jsonl"
SHOWN = 5
"""Texts of a prompt that stand side by side; the others are folded."""
MAX_BYTES = 4_000_000
"""Read of the file's end."""
MAX_CHARS = 400
SCALES = dict.fromkeys(("peak_memory_bytes", "resident_memory_bytes"), 1 / 1024**3)
WHOLE = {
    "loss": "all",
    "validation_bits_per_byte": "taught language",
    "validation_loss": "validation",
    "peak_memory_bytes": "GPU, peak of the phase",
    "resident_memory_bytes": "process",
}
"""Label of a curve beside others of its chart."""
GREY = ("all", "taught language")
"""Labels of curves whose parts have colours."""


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
            for line in there.read(uri).splitlines(keepends=True):
                if line.endswith(b"\n"):
                    curves.add(line)
        except AnadilError:
            return None
        return version, 0, curves


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
    host: str
    """Name by which a browser finds it; no other server of the machine has it."""
    files: CurveFiles = field(default_factory=CurveFiles)
    """Curves that were read."""
    stopping: dict[str, float] = field(default_factory=dict)
    """Run that was asked to stop on a page -> when, in seconds since 1970."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a loop of a step is."""

    step: str
    what: str
    done: int
    total: int | None
    seconds_left: float | None

    @property
    def words(self) -> str:
        """How far it is: a step has several loops, such as the training of a base before its own."""
        return f"{self.what}: {self.done:,}" + (f" of {self.total:,}" if self.total else "")


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
    """Warnings and errors. `level` is `library` for warnings that a library has logged."""
    plan: Mapping[str, object]
    """`expected` of its plan; empty without one."""
    ended: float
    """Seconds since 1970 of its last sign, or now while it runs."""

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
    ended = ended_at(record, run.place)
    return RunState(
        record=record, place=run.place, progress=_progress(lines), ended=ended, plan=_plan(run.place, run.id),
        messages=_messages(lines, record, _gone(lines, record, ended)),
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


def _messages(lines: Sequence[Mapping[str, object]], record: RunRecord, gone: str) -> list[Message]:
    """Warnings and errors, each once, the latest first; what the record alone knows stands before them."""
    known = {
        (str(line.get("stage") or ""), str(line.get("msg"))): Message(
            step=str(line.get("stage") or ""), text=str(line.get("msg")), time=str(line.get("ts")),
            level="library" if line.get("logger") and line["level"] == "warning" else str(line["level"]),
        )
        for line in lines
        if line.get("level") in ("warning", "error", "critical")
    }  # fmt: skip
    # A step that a signal ended has its reason in the record, and may have none in the log.
    said = "\n".join(message.text for message in known.values())
    ends = {name: step.message for name, step in record.steps.items()} | {"": record.message or gone}
    silent = [
        Message(step=name, level="error", text=text, time="")
        for name, text in ends.items()
        if text and text not in said
    ]
    return [*silent, *reversed(known.values())][:WARNINGS]


def _gone(lines: Sequence[Mapping[str, object]], record: RunRecord, seen: float) -> str:
    """Say of a run without an end that its process is gone, when, and what may have ended it. Empty for others."""
    if record.state != "stopped" or record.exit_code is not None or not is_gone(record.process):
        return ""
    booted = boot_time()
    why = f"The machine was started again at {clock(booted)}" if booted > seen else (
        "Something from outside ended it: kill -9, the end of a session, or Linux because memory ran short "
        "(dmesg | grep -i 'out of memory' says so)"
    )  # fmt: skip
    step = next((name for name, each in record.steps.items() if each.status == "running"), "")
    where = f" in {step}" if step else ""
    if step and (progress := _progress(lines)) and progress.step == step:
        where += f" ({progress.words})"
    return f"The run's process ended at about {clock(seen)}{where}. {why}. Go on with the command below."


def boot_time() -> float:
    """Seconds since 1970 at which this machine was started, or 0 where it does not say."""
    with suppress(OSError, ValueError, StopIteration):
        stat = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        return float(next(line for line in stat if line.startswith("btime ")).split()[1])
    return 0.0


def clock(seconds: float) -> str:
    """A moment as this machine's clock shows it, with the date where it is another day."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    return f"{moment:%H:%M %Z}" if is_today else f"{moment:%Y-%m-%d %H:%M %Z}"


def _plan(place: str, run: str) -> Mapping[str, object]:
    uri = join(place, "runs", run, "plan.json")
    with suppress(AnadilError, ValueError, OSError):
        expected = json.loads(storage.store(uri).read(uri)).get("expected")
        return expected if isinstance(expected, dict) else {}
    return {}


def work_of(uri: str) -> Path | None:
    """Directory in which a local artifact is being made; None for one elsewhere."""
    return None if not uri or "://" in uri else Path(f"{uri}.work")


@dataclass(frozen=True, slots=True)
class Kind:
    """One chart of a step: title, unit, and the curves that it shows."""

    title: str
    unit: str
    names: tuple[str, ...]
    """A name that ends in a slash stands for the curves of all sources."""
    from_zero: bool = False
    is_smooth: bool = False
    """Each step is another batch: an average is drawn over what was measured."""


KINDS: Mapping[str, tuple[Kind, ...]] = {
    "pretrain": (
        Kind("Loss", "nats per token", ("loss", "loss/"), is_smooth=True),
        Kind("Held-out text", "bits per byte", ("validation_bits_per_byte", "validation_bits_per_byte/")),
        Kind("Learning rate", "step size", ("lr",), from_zero=True),
        Kind("Throughput", "tokens per second", ("tokens_per_s",), from_zero=True),
        Kind("Memory", "GiB", ("peak_memory_bytes", "resident_memory_bytes"), from_zero=True),
        Kind("Gradient norm", "before clipping", ("grad_norm",), from_zero=True),
        Kind("Cost", "USD on demand", ("cost_usd",), from_zero=True),
    ),
    "finetune": (
        Kind("Loss on answers", "nats per token", ("loss", "loss/", "validation_loss"), is_smooth=True),
        Kind("Learning rate", "step size", ("lr",), from_zero=True),
        Kind("Accuracy", "share of target tokens", ("accuracy",), is_smooth=True),
    ),
}
"""Stage -> its charts; one without numbers is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Stretch of steps that charts show; None is an open end."""

    first: float | None = None
    last: float | None = None
    is_log: bool = False
    """Vertical axes are logarithmic where values allow it."""

    def cut(self, points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        """Points of the stretch."""
        return tuple(
            (x, y)
            for x, y in points
            if (self.first is None or x >= self.first) and (self.last is None or x <= self.last)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart, and what a script needs to point at it."""

    chart: Chart
    data: Mapping[str, object]
    legend: Sequence[Line] = ()
    """Lines to name; one alone needs no name."""
    note: str = ""


def curves_of(watched: Watched, record: RunRecord, place: str, step: str) -> Curves | None:
    """Curves of a step, as far as it is; None where it leaves none.

    A finished one has them in its artifact. One in progress writes them in its work directory, whose place the spool
    tells, and one on a cluster copies them beside the record of the run.
    """
    folder = folder_of(watched, record, place, step)
    if folder and (curves := watched.files.read(join(folder, FILE))):
        return curves
    spool = _spool(watched, record, place, step)
    return spool or watched.files.read(join(record.root or place, "runs", record.id, f"{step}.jsonl"))


def folder_of(watched: Watched, record: RunRecord, place: str, step: str) -> str:
    """Directory in which a step leaves what it writes: its artifact, or while it is made a local work directory.

    Empty where nobody knows one.
    """
    if step in record.steps and (uri := record.steps[step].uri):
        return uri
    spool = _spool(watched, record, place, step)
    work = work_of(spool.artifact) if spool else None
    return str(work) if work else ""


def _spool(watched: Watched, record: RunRecord, place: str, step: str) -> Curves | None:
    return watched.files.read(join(place, "tracking", record.id, f"{step}.jsonl"))


def plots_of(stage: str, curves: Curves, window: Window) -> list[Plot]:
    """The charts of a step."""
    plots = []
    for kind in KINDS.get(stage, ()):
        drawn = [
            Line(_label(name, kind), window.cut((x, y * SCALES.get(name, 1)) for x, y in curves.points(name)))
            for given in kind.names
            for name in (curves.names(given) if given.endswith("/") else [given])
        ]
        if kind.is_smooth:
            drawn = [replace(line, half_life=half_life(len(line.points))) for line in drawn]
        plots += plot(kind.title, kind.unit, drawn, from_zero=kind.from_zero, is_log=window.is_log)
    return plots


def half_life(num_points: int) -> float:
    """Points over which a curve of that many is smoothed. 0 for a short one."""
    return max(2.0, num_points / 25) if num_points > SMOOTHED else 0.0


def plot(
    title: str, unit: str, drawn: Sequence[Line], *, from_zero: bool = False, is_log: bool = False,
    x_label: str = "step",
) -> list[Plot]:  # fmt: skip
    """One chart in a list; none without points."""
    looks = colours_of(line.label for line in drawn if line.label not in GREY) | dict.fromkeys(
        GREY, (0, False)
    )
    if len(drawn) == 1:
        looks = {drawn[0].label: (1, False)}
    coloured = [
        replace(line, colour=looks[line.label][0], dashed=looks[line.label][1])
        for line in drawn
        if line.points
    ]
    # The whole of one source in the taught language is that source, in the colour that it has in other charts.
    known = list({line.points: line for line in coloured}.values())
    steps = max((len(line.points) for line in known), default=0)
    shown = [replace(line, points=thinned(line.points)) for line in known[:MOST_LINES]]
    chart = lines(title, unit, shown, from_zero=from_zero, is_log=is_log, legend=False, x_label=x_label)
    if chart is None:
        return []
    if steps > len(chart.table.rows):
        note = f"{len(chart.table.rows)} of {steps:,} logged steps."
        chart = replace(chart, table=replace(chart.table, note=note))
    scale = line_scale([line.points for line in shown], from_zero=from_zero)
    data = {
        "low": scale.low, "high": scale.high, "left": LEFT, "right": WIDTH - RIGHT, "unit": unit, "x": x_label,
        "lines": [{"label": line.label, "colour": line.colour, "points": line.points} for line in shown],
    }  # fmt: skip
    hidden = len(known) - len(shown)
    return [
        Plot(
            chart=chart,
            data=data,
            legend=shown if len(shown) > 1 else (),
            note=f"{hidden} more lines are not drawn." if hidden else "",
        )
    ]


def _label(name: str, kind: Kind) -> str:
    head, _, source = name.partition("/")
    return source or (WHOLE.get(head, kind.title.lower()) if len(kind.names) > 1 else kind.title.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTexts:
    """A beginning, and how the model went on with it at each step."""

    prompt: str
    shown: list[tuple[int, str]]
    """Step and text, the first and the last among them."""
    every: list[tuple[int, str]]


def texts_of(watched: Watched, state: RunState) -> list[PromptTexts]:
    """Texts by prompt, in the order of the first validation; none where pre-training has written none."""
    by_prompt: dict[str, dict[int, str]] = {}
    folder = folder_of(watched, state.record, state.place, "pretrain")
    live = join(state.root, "runs", state.record.id, f"pretrain.{TEXTS_FILE}")
    for step, prompt, text in _texts(join(folder, TEXTS_FILE) if folder else live):
        by_prompt.setdefault(prompt, {})[step] = clip(text, MAX_CHARS)
    return [
        PromptTexts(prompt=prompt, shown=evenly(list(texts.items()), SHOWN), every=list(texts.items()))
        for prompt, texts in by_prompt.items()
    ]


def _texts(uri: str) -> Iterator[tuple[int, str, str]]:
    """Yield step, prompt and text; a line that is being written, or is none of ours, is passed over."""
    for known in last_lines(uri, MAX_BYTES):
        with suppress(TypeError, KeyError):
            if (step := number(known["step"])) is not None:
                yield from ((int(step), str(each["prompt"]), str(each["text"])) for each in known["texts"])
