"""A plan as one page: fit, speed and cost of a run, with the reasons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from anadil.core.format import (
    GIB,
    human_bytes,
    human_count,
    human_dollars,
    human_hours,
    human_seconds,
    one_line,
)
from anadil.plan.schema import LayoutOption, Plan
from anadil.plan.view import tables, terminal
from anadil.plan.view.tables import Grid
from anadil.report.charts import Bar, Line, Point, Stack, scatter_chart, stacked_chart
from anadil.report.elements import Chart, TextTable, chart
from anadil.report.format import evenly
from anadil.report.render import render_template

PLAN_SECTIONS = (
    ("text", "Text"),
    ("memory", "Memory"),
    ("speed", "Speed"),
    ("layouts", "Layouts"),
    ("choices", "Choices"),
    ("cost", "Time and cost"),
    ("checkpoints", "Checkpoints and storage"),
    ("assumptions", "Assumptions"),
)
# Green for the model's state, brown for a batch, blue for communication.
PART_COLOURS = {
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
GREY = 9
MAX_LAYOUT_POINTS = 400
MAX_PLAN_ROWS = 60


def render_plan(plan: Plan) -> str:
    """The page of a plan; an unknown field is a dash."""
    view: dict[str, object] = {
        "title": f"Plan of {one_line(plan.recipe, 100)}",
        "sections": PLAN_SECTIONS if plan.text else PLAN_SECTIONS[1:],
        "eyebrow": f"{one_line(plan.model.name)} on {terminal.cluster_name(plan)}",
        "verdict": plan.verdict,
        "answer": terminal.answer_sentence(plan),
        "headlines": _headlines(plan),
        "text": _table(tables.text_table(plan)),
        "text_sentences": terminal.text_sentences(plan),
        "replay": _table(tables.replay_table(plan)),
        "encode": _table(tables.encode_table(plan)),
        "memory_chart": _memory_chart(plan),
        "memory": _keyed(tables.memory_table(plan), tables.memory_parts(plan) | tables.outside_parts(plan)),
        "after": _table(tables.after_table(plan)),
        "merge": _table(tables.merge_table(plan)),
        "step_chart": _step_chart(plan),
        "step": _keyed(tables.step_table(plan), tables.step_parts(plan)),
        "frontier": _frontier(plan),
        "searched": terminal.search_sentence(plan),
        "calibrated": terminal.calibration_sentence(plan),
        "priced": terminal.price_sentence(plan),
        "phases": _table(tables.phases_table(plan)),
        "layout": _table(tables.layout_table(plan)),
        "layouts": _table(tables.layouts_table(plan)),
        "choices": _table(tables.choices_table(plan)),
        "time": _table(tables.time_table(plan)),
        "cost": _table(tables.cost_table(plan)),
        "checkpoints": _table(tables.checkpoints_table(plan)),
        "intervals": _table(tables.intervals_table(plan)),
        "storage": _table(tables.storage_table(plan)),
        "reliability": _table(tables.reliability_table(plan)),
        "assumptions": plan.assumptions,
        "version": plan.version,
    }
    return render_template("plan.html.j2", view)


def _headlines(plan: Plan) -> list[tuple[str, str, str, str]]:
    """(name, unit, value, small print) of each large figure."""
    peak, memory = plan.peak, plan.peak.memory
    safe, by_device = human_bytes(memory.limit_bytes), human_count(peak.tokens_per_s_per_device)
    hours, dollars = human_hours(plan.expected_hours), human_dollars(plan.expected_cost)
    return [
        ("Memory", "one device at its worst moment", human_bytes(memory.total_bytes), f"safe up to {safe}"),
        ("Rate", "tokens per second, all devices", human_count(peak.tokens_per_s), f"{by_device} per device"),
        ("Time", "of training", hours, terminal.time_range(plan)),
        ("Cost", "on demand", dollars, terminal.cost_range(plan)),
    ]


def _memory_chart(plan: Plan) -> Chart | None:
    # So many thin parts outside the allocator would only be stripes; the table has each.
    outside = [sum(values) for values in zip(*tables.outside_parts(plan).values(), strict=True)]
    parts = tables.memory_parts(plan) | {"outside the allocator": outside}
    totals = [human_bytes(phase.memory.total_bytes) for phase in plan.phases]
    peak = plan.peak.memory
    ends = (("device", peak.device_bytes), ("safe up to", peak.limit_bytes))
    marks = [Bar(f"{name} {human_bytes(value)}", value / GIB) for name, value in ends]
    title, stacks = "Memory of one device, by part", _stacks(plan, parts, totals, GIB, human_bytes)
    return chart(title, stacked_chart(stacks, title=title, unit="GiB", marks=marks))


def _step_chart(plan: Plan) -> Chart | None:
    totals = [human_seconds(phase.step_s) for phase in plan.phases]
    title = "Time of one step, by part"
    stacks = _stacks(plan, tables.step_parts(plan), totals, 1, human_seconds)
    return chart(title, stacked_chart(stacks, title=title, unit="seconds"))


def _stacks(
    plan: Plan,
    parts: Mapping[str, Sequence[float]],
    totals: Sequence[str],
    unit: float,
    say: Callable[[float], str],
) -> list[Stack]:
    def bar(part: str, value: float) -> Bar:
        return Bar(f"{part}: {say(value)}", max(0.0, value) / unit, PART_COLOURS.get(part, GREY))

    return [
        Stack(
            label=name, total=total, parts=tuple(bar(part, values[place]) for part, values in parts.items())
        )
        for place, (name, total) in enumerate(zip(tables.phase_names(plan), totals, strict=True))
    ]


def _frontier(plan: Plan) -> Chart | None:
    """Memory against rate: the best layouts of the search, and the plan's."""
    best, searched = (plan.search.best, plan.search.frontier) if plan.search else ((), ())
    frontier = sorted(_points(searched, 1), key=lambda point: (point.x, point.y))
    chosen = next((each for each in [*searched, *best] if tables.is_chosen(plan, each)), None)
    memory = chosen.total_bytes if chosen else plan.peak.memory.total_bytes
    rate = chosen.tokens_per_s_per_device if chosen else plan.peak.tokens_per_s_per_device
    limit = plan.peak.memory.limit_bytes
    title = "Rate against memory, per device"
    svg = scatter_chart(
        [*_points(best, 0), *frontier],
        Line("frontier", tuple((point.x, point.y) for point in frontier)),
        limit=Bar(f"safe up to {human_bytes(limit)}", limit / GIB),
        title=title,
        units=("GiB", "tokens per second"),
        chosen=None if rate is None else Point("this plan", memory / GIB, rate),
    )
    rows = [(p.label, human_bytes(p.x * GIB), human_count(round(p.y))) for p in frontier]
    columns = ("layout", "memory", "tokens per second")
    return chart(title, svg, TextTable("The frontier", columns, rows[:MAX_PLAN_ROWS]))


def _points(options: Sequence[LayoutOption], colour: int) -> list[Point]:
    points = []
    for option in evenly(options, MAX_LAYOUT_POINTS):
        layout = option.layout
        redone = "" if layout.recompute == "none" else f", {layout.recompute} recomputation"
        label = f"{layout.name()}, batch {human_count(layout.micro_batch_size)}{redone}"
        points.append(Point(label, option.total_bytes / GIB, option.tokens_per_s_per_device, colour))
    return points


def _keyed(grid: Grid, parts: Mapping[str, object]) -> TextTable:
    return replace(_table(grid), keys=tuple(PART_COLOURS.get(name, GREY) for name in parts))


def _table(grid: Grid) -> TextTable:
    return TextTable(**asdict(replace(grid, rows=grid.rows[:MAX_PLAN_ROWS])))
