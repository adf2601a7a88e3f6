"""A plan as one page: whether a run fits, how fast it is, what it costs, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from markupsafe import Markup

from anadil.core.format import GIB
from anadil.plan.view import summary
from anadil.plan.view import tables as sections
from anadil.plan.view import values as words
from anadil.plan.view.tables import Grid
from anadil.plan.view.values import Plan, at, gib, items, number
from anadil.report.charts import Bar, Line, Mark, Point, Stack, scatter_chart, stacked_chart
from anadil.report.elements import Chart, Table
from anadil.report.format import evenly
from anadil.report.run import render

SECTIONS = (
    ("memory", "Memory"),
    ("speed", "Speed"),
    ("layouts", "Layouts"),
    ("choices", "Choices"),
    ("cost", "Time and cost"),
    ("checkpoints", "Checkpoints and storage"),
    ("assumptions", "Assumptions"),
)
COLOURS = {
    "weights": 0,
    "gradients": 1,
    "optimizer": 2,
    "gathered weights": 3,
    "activations": 4,
    "recomputation": 5,
    "logits": 6,
    "autocast copies": 7,
    "communication": 8,
    "matrix products": 0,
    "attention": 1,
    "memory traffic": 4,
    "exposed communication": 7,
}
"""What the state needs is green, what a batch needs brown, what devices tell each other blue."""
GREY = 9
MAX_POINTS = 400
MAX_ROWS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One large figure."""

    name: str
    unit: str
    value: str
    beside: str


def render_plan(plan: Mapping[str, object]) -> str:
    """The page of a plan; a field that is missing or null is a dash."""
    name = words.text(at(plan, "recipe"), 100)
    view: dict[str, object] = {
        "title": f"Plan of {name}",
        "sections": SECTIONS,
        "eyebrow": f"{words.text(at(plan, 'model.name'))} on {summary.where(plan)}",
        "verdict": summary.verdict(plan),
        "answer": summary.answer(plan),
        "headlines": _headlines(plan),
        "memory_chart": _memory_chart(plan),
        "memory": _keyed(sections.memory(plan), plan, "memory.parts", "memory.outside"),
        "checked": summary.checked(plan),
        "step_chart": _step_chart(plan),
        "step": _keyed(sections.step(plan), plan, "step_parts_s"),
        "frontier": _frontier(plan),
        "searched": summary.searched(plan),
        "calibrated": summary.calibrated(plan),
        "priced": summary.priced(plan),
        "assumptions": [words.text(item, 600) for item in items(plan, "assumptions")[:MAX_ROWS]],
        "version": words.text(at(plan, "version"), 40),
    }
    tables: dict[str, Callable[[Plan], Grid]] = {
        "phases": sections.phases,
        "layout": sections.layout,
        "layouts": sections.layouts,
        "choices": sections.choices,
        "time": sections.time,
        "cost": sections.cost,
        "checkpoints": sections.checkpoints,
        "intervals": sections.intervals,
        "storage": sections.storage,
        "reliability": sections.reliability,
    }
    return render("plan.html.j2", view | {key: _table(made(plan)) for key, made in tables.items()})


def _headlines(plan: Plan) -> list[Headline]:
    worst = summary.worst(plan)
    took, price = summary.lead(plan, "time.hours"), summary.lead(plan, "cost.on_demand")
    times = summary.ranged(plan, "time.hours", words.hours)
    costs = summary.ranged(plan, "cost.on_demand", words.dollars)
    each = words.count(at(worst, "tokens_per_s_per_device"))
    return [
        Headline(
            name="Memory",
            unit="one device at its worst moment",
            value=gib(at(worst, "memory.total_bytes")),
            beside=f"safe up to {gib(at(worst, 'memory.limit_bytes'))}",
        ),
        Headline(
            name="Rate",
            unit="tokens per second, all devices",
            value=words.count(at(worst, "tokens_per_s")),
            beside=f"{each} per device",
        ),
        Headline(name="Time", unit="of training", value=words.hours(took), beside=times),
        Headline(name="Cost", unit="on demand", value=words.dollars(price), beside=costs),
    ]


def _memory_chart(plan: Plan) -> Chart | None:
    found = sections.parts(plan, "memory.parts")
    around = sections.parts(plan, "memory.outside").values()
    if around:  # so many thin parts would only be stripes; the table has each
        found["outside the allocator"] = [sum(values) for values in zip(*around, strict=True)]
    totals = [gib(at(phase, "memory.total_bytes")) for phase in items(plan, "phases")]
    peak = at(summary.worst(plan), "memory")
    ends = (("device", number(at(peak, "device_bytes"))), ("safe up to", number(at(peak, "limit_bytes"))))
    marks = [Mark(label=f"{name} {gib(value)}", value=value / GIB) for name, value in ends if value]
    title, stacks = "Memory of one device, by part", _stacks(plan, found, totals, GIB, gib)
    return _chart(title, stacked_chart(stacks, title=title, unit="GiB", marks=marks))


def _step_chart(plan: Plan) -> Chart | None:
    found = sections.parts(plan, "step_parts_s")
    totals = [words.seconds(at(phase, "step_s")) for phase in items(plan, "phases")]
    title, stacks = "Time of one step, by part", _stacks(plan, found, totals, 1, words.seconds)
    return _chart(title, stacked_chart(stacks, title=title, unit="seconds"))


def _stacks(
    plan: Plan,
    parts: Mapping[str, Sequence[float]],
    totals: Sequence[str],
    unit: float,
    say: Callable[[object], str],
) -> list[Stack]:
    return [
        Stack(
            label=name,
            total=totals[place],
            parts=tuple(
                Bar(
                    label=f"{words.text(part, 60)}: {say(values[place])}",
                    value=max(0.0, values[place]) / unit,
                    colour=COLOURS.get(part, GREY),
                )
                for part, values in parts.items()
            ),
        )
        for place, name in enumerate(sections.phase_names(plan))
    ]


def _frontier(plan: Plan) -> Chart | None:
    """Memory against rate: what the search found best, and the plan's own layout."""
    frontier = sorted(_points(items(plan, "search.frontier"), 1), key=lambda point: (point.x, point.y))
    others = _points(items(plan, "search.best"), 0)
    worst = summary.worst(plan)
    own = [
        item
        for item in (*items(plan, "search.frontier"), *items(plan, "search.best"))
        if sections.is_chosen(plan, item)
    ]
    here = {
        "total_bytes": at(worst, "memory.total_bytes"),
        "tokens_per_s_per_device": at(worst, "tokens_per_s_per_device"),
    }
    chosen = next(iter(_points(own or [here], 1)), None)
    limit = number(at(worst, "memory.limit_bytes"))
    title = "Rate against memory, per device"
    svg = scatter_chart(
        [*others, *frontier],
        Line(label="frontier", points=tuple((point.x, point.y) for point in frontier)),
        title=title,
        units=("GiB", "tokens per second"),
        chosen=replace(chosen, label="this plan") if chosen else None,
        limit=Mark(label=f"safe up to {gib(limit)}", value=limit / GIB) if limit else None,
    )
    rows = tuple((p.label, f"{p.x:,.2f} GiB", words.count(round(p.y))) for p in frontier)
    columns = ("layout", "memory", "tokens per second")
    return _chart(title, svg, Table(caption="The frontier", columns=columns, rows=rows[:MAX_ROWS]))


def _points(found: Sequence[object], colour: int) -> list[Point]:
    points = []
    for item in evenly(found, MAX_POINTS):
        x, y = number(at(item, "total_bytes")), number(at(item, "tokens_per_s_per_device"))
        if x is None or y is None:
            continue
        batch, again = words.count(at(item, "micro_batch_size")), at(item, "activation_checkpointing")
        redone = "" if again in (None, "none") else f", {words.text(again, 20)} recomputation"
        label = f"{words.text(at(item, 'name'), 40)}, batch {batch}{redone}"
        points.append(Point(label=label, x=x / GIB, y=y, colour=colour))
    return points


def _keyed(grid: Grid, plan: Plan, *places: str) -> Table:
    names = [name for place in places for name in sections.parts(plan, place)]
    return replace(_table(grid), keys=tuple(COLOURS.get(name, GREY) for name in dict.fromkeys(names)))


def _table(grid: Grid) -> Table:
    return Table(**asdict(replace(grid, rows=grid.rows[:MAX_ROWS])))


def _chart(title: str, svg: Markup, table: Table | None = None) -> Chart | None:
    empty = Table(caption=title, columns=(), rows=())
    return Chart(title=title, svg=svg, table=table or empty) if svg else None
