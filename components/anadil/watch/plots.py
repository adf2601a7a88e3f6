"""Curves and texts of a run: charts with the numbers that hovering and zooming need, texts of each validation side by side."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from anadil.artifacts.uri import join
from anadil.core.format import number
from anadil.report.charts import LEFT, RIGHT, WIDTH, Chart, Line, line_scale, lines, thinned
from anadil.report.format import clip, evenly
from anadil.report.training_view import COLOURS
from anadil.runtime.run_record import RunRecord
from anadil.watch.run_state import RunState, last_lines, work_of
from anadil.watch.watched import Curves, Watched

FILE = "training.jsonl"
MOST_LINES = 10
TEXTS_FILE = "texts.jsonl"
SHOWN = 5
"""Texts of a prompt that stand side by side; the others are folded."""
MAX_BYTES = 4_000_000
"""Read of the file's end."""
MAX_CHARS = 400


@dataclass(frozen=True, slots=True)
class Kind:
    """One chart of a step: title, unit, and the curves that it shows."""

    title: str
    unit: str
    names: tuple[str, ...]
    """A name that ends in a slash stands for the curves of all sources."""
    from_zero: bool = False


KINDS: Mapping[str, tuple[Kind, ...]] = {
    "pretrain": (
        Kind("Loss", "nats per token", ("loss", "loss/")),
        Kind("Held-out text", "bits per byte", ("validation_bits_per_byte", "validation_bits_per_byte/")),
        Kind("Learning rate", "step size", ("lr",), from_zero=True),
        Kind("Throughput", "tokens per second", ("tokens_per_s",), from_zero=True),
        Kind("Memory", "GiB", ("peak_memory_bytes", "resident_memory_bytes"), from_zero=True),
        Kind("Gradient norm", "before clipping", ("grad_norm",), from_zero=True),
        Kind("Cost", "USD on demand", ("cost_usd",), from_zero=True),
    ),
    "finetune": (
        Kind("Loss on answers", "nats per token", ("loss", "validation_loss")),
        Kind("Learning rate", "step size", ("lr",), from_zero=True),
        Kind("Accuracy", "share of target tokens", ("accuracy",)),
    ),
}
"""Stage -> its charts; one without numbers is left out."""
SCALES = dict.fromkeys(("peak_memory_bytes", "resident_memory_bytes"), 1 / 1024**3)
WHOLE = {
    "loss": "all",
    "validation_bits_per_byte": "taught language",
    "validation_loss": "validation",
    "peak_memory_bytes": "GPU, peak of the phase",
    "resident_memory_bytes": "process",
}
"""Label of a curve beside others of its chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Stretch of steps that charts show; None is an open end."""

    first: float | None = None
    last: float | None = None

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
        plots += plot(kind.title, kind.unit, drawn, from_zero=kind.from_zero)
    return plots


def plot(title: str, unit: str, drawn: Sequence[Line], *, from_zero: bool = False) -> list[Plot]:
    """One chart in a list; none without points."""
    # The sixth line has the first one's colour, and dashes.
    coloured = [
        replace(line, colour=COLOURS[place % len(COLOURS)], dashed=place >= len(COLOURS))
        for place, line in enumerate(line for line in drawn if line.points)
    ]
    # The whole of one source in the taught language is that source, in the colour that it has in other charts.
    known = list({line.points: line for line in coloured}.values())
    steps = max((len(line.points) for line in known), default=0)
    shown = [replace(line, points=thinned(line.points)) for line in known[:MOST_LINES]]
    chart = lines(title, unit, shown, from_zero=from_zero, legend=False)
    if chart is None:
        return []
    if steps > len(chart.table.rows):
        note = f"{len(chart.table.rows)} of {steps:,} logged steps."
        chart = replace(chart, table=replace(chart.table, note=note))
    points = [line.points for line in shown]
    scale = line_scale(points, from_zero=from_zero)
    data = {
        "low": scale.low, "high": scale.high, "left": LEFT, "right": WIDTH - RIGHT, "unit": unit,
        "lines": [{"label": line.label, "colour": line.colour, "points": each, "y": [round(scale.y(y), 1) for _, y in each]}
                  for line, each in zip(shown, points, strict=True)],
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
