"""A plan for the terminal: plain lines of at most 100 columns, the answer first."""

import textwrap
from collections.abc import Iterator, Sequence

from anadil.core.format import (
    DASH,
    hours_and_days,
    human_bytes,
    human_count,
    human_dollars,
    human_flop,
    human_hours,
    human_percent,
    human_range,
    human_seconds,
    one_line,
    short_count,
)
from anadil.plan.memory_limit import FitVerdict
from anadil.plan.schema import Plan
from anadil.plan.view import tables
from anadil.plan.view.tables import Grid

LINE_COLUMNS = 96
BAR_COLUMNS = 20
"""Length of the longest bar."""
LEFT_MARGIN = "  "
LAYOUT_COLUMNS = 27
"""Width of a layout's name in the table of layouts."""
NARROWEST = 20
"""Columns that a wrapped text keeps, however long its name is."""
VERDICTS: dict[FitVerdict, str] = {"fits": "Fits", "tight": "Tight", "no": "Does not fit"}


def plan_lines(plan: Plan) -> list[str]:
    """Every section of a plan as lines of plain text; fields that are not known are dashes."""
    memory = tables.memory_parts(plan) | tables.outside_parts(plan)
    blocks: Sequence[list[str]] = (
        [
            *_wrapped("", f"{one_line(plan.recipe)}. {answer_sentence(plan)}"),
            "",
            *_named([(name, value) for name, value in headlines(plan) if value != DASH]),
        ],
        [*_text(plan)],
        _list(tables.replay_table(plan)),
        _list(tables.encode_table(plan)),
        _list(tables.merge_table(plan)),
        [*_bars(plan, tables.memory_table(plan), memory)],
        [*_grid(tables.after_table(plan))],
        [*_bars(plan, tables.step_table(plan), tables.step_parts(plan))],
        [*_grid(tables.phases_table(plan)), *_wrapped(LEFT_MARGIN, calibration_sentence(plan))],
        [*_choices(plan)],
        [*_grid(tables.cost_table(plan)), *_wrapped(LEFT_MARGIN, price_sentence(plan))],
        _list(tables.checkpoints_table(plan)),
        [*_grid(tables.intervals_table(plan))],
        _list(tables.storage_table(plan)),
        _list(tables.reliability_table(plan)),
        [*_grid(tables.layouts_table(plan, LAYOUT_COLUMNS)), *_wrapped(LEFT_MARGIN, search_sentence(plan))],
        [
            "Assumptions",
            *(line for each in plan.assumptions for line in _wrapped(LEFT_MARGIN, each, mark="- ")),
        ],
    )
    return "\n\n".join("\n".join(block) for block in blocks if block).splitlines()


def cluster_name(plan: Plan) -> str:
    """Text such as `2 x p4d.24xlarge (16 x A100 40 GB)`."""
    machine = plan.machine
    kind, device = one_line(machine.instance), one_line(machine.device)
    return f"{human_count(machine.nodes)} x {kind} ({human_count(machine.devices)} x {device})"


def time_range(plan: Plan) -> str:
    """Text such as `between 8 h and 12 h`; empty where no range is known."""
    return _between(human_range(plan.time.hours_low, plan.time.hours_high, human_hours))


def cost_range(plan: Plan) -> str:
    """The same of the price on demand."""
    return _between(human_range(plan.cost.on_demand.low, plan.cost.on_demand.high, human_dollars))


def _between(text: str) -> str:
    return f"between {text.replace(' to ', ' and ')}" if text else ""


def answer_sentence(plan: Plan) -> str:
    """The plan in one sentence: whether it fits, on what, how long, and what it costs."""
    memory, times, costs = plan.peak.memory, time_range(plan), cost_range(plan)
    duration = hours_and_days(plan.expected_hours)
    ending = f"{duration} ({times})" if times else duration
    if plan.expected_cost is not None:
        ending += f" and {human_dollars(plan.expected_cost)} on demand" + (f" ({costs})" if costs else "")
    if times and plan.calibration is None:
        ending = f"about {ending}"
    if plan.verdict == "no":
        ending = f"it would take {ending}"
    total, limit, device = map(human_bytes, (memory.total_bytes, memory.limit_bytes, memory.device_bytes))
    return (
        f"{VERDICTS[plan.verdict]}: {total} per device (safe up to {limit} of {device}) on "
        f"{cluster_name(plan)}; {ending}."
    )


def headlines(plan: Plan) -> list[tuple[str, str]]:
    """Layout, rate, time and cost, each with its range where one is known."""
    layout, peak, time = plan.layout.layout, plan.peak, plan.time
    times, costs = time_range(plan), cost_range(plan)
    # Each source has epochs of its own; the table of text says them.
    has_sources = any(each.source for each in plan.text)
    epochs = "" if time.epochs is None or has_sources else f" {human_count(time.epochs)} epochs,"
    # Nothing in the way: the time beside it is longer, as published runs took longer.
    best = "at best " if plan.calibration is None and peak.tokens_per_s is not None else ""
    rate, each = human_count(peak.tokens_per_s, "tokens/s"), human_count(peak.tokens_per_s_per_device)
    batch, whole = human_count(layout.micro_batch_size), human_count(plan.layout.batch_size)
    length = human_count(plan.layout.sequence_length)
    work = f"{human_count(time.steps)} steps, {short_count(time.tokens)} tokens,{epochs} {human_flop(time.flops)}"
    price = f"{human_dollars(plan.expected_cost)} on demand" + (f", {costs}" if costs else "")
    return [
        (
            "layout",
            f"{layout.name()}, batch {batch} per device and {whole} in all, {length} tokens a sequence",
        ),
        ("rate", f"{best}{rate}, {each} per device, {human_percent(peak.mfu)} of the peak"),
        ("work", work),
        ("time", hours_and_days(plan.expected_hours) + (f", {times}" if times else "")),
        ("cost", DASH if plan.expected_cost is None else price),
    ]


def text_sentences(plan: Plan) -> list[str]:
    """A sentence on the text, and on each source that the table of text does not say all of, with advice."""
    # The table of text says the rest.
    shown = [each for each in plan.text if not each.source or each.remedy()]
    sentences = [f"{'; '.join(filter(None, (each.line(), each.remedy())))}." for each in shown]
    return [*sentences, f"Training may be refused: {plan.text_fault}."] if plan.text_fault else sentences


def search_sentence(plan: Plan) -> str:
    """How many layouts were tried; empty where there was no search."""
    search = plan.search
    if search is None:
        return ""
    return (
        f"{human_count(search.considered)} layouts were computed in {human_seconds(search.seconds)}, "
        f"{human_count(search.fitting)} of them fit."
    )


def price_sentence(plan: Plan) -> str:
    """Where the prices come from; empty where nothing says it."""
    return f"Prices: {one_line(plan.machine.price_checked)}." if plan.machine.price_checked else ""


def calibration_sentence(plan: Plan) -> str:
    """A sentence on whether short runs set the rates."""
    if plan.calibration is None:
        return (
            "Not calibrated: rates follow from the machine's data sheet, not from a run on it. So the times here are "
            "the best to hope for, and the plan leads with the middle of the range that published runs span."
        )
    factor, runs = human_count(plan.calibration.factor), human_count(len(plan.calibration.runs))
    return f"Calibrated: rates are the predicted ones times {factor}, from {runs} measured runs."


def _text(plan: Plan) -> Iterator[str]:
    grid = tables.text_table(plan)
    yield from _grid(grid)
    if plan.text and not grid.rows:
        yield grid.caption
    for sentence in text_sentences(plan):
        yield from _wrapped(LEFT_MARGIN, sentence)


def _bars(plan: Plan, grid: Grid, parts: dict[str, list[float]]) -> Iterator[str]:
    """The parts, with bars for the phase where they add up to the most, and under them their sums."""
    sums = [sum(column) for column in zip(*parts.values(), strict=True)]
    heaviest = sums.index(max(sums)) if sums else 0
    column = [row[heaviest] for row in parts.values()]
    caption, *rows = _grid(grid)
    yield f"{caption}, bars for: {tables.phase_names(plan)[heaviest]}" if len(sums) > 1 else caption
    for line_number, line in enumerate(rows):
        share = column[line_number - 1] / max(column) if 1 <= line_number <= len(column) else 0
        if line_number == len(column) + 1 and column:
            yield ""
        yield f"{line}{LEFT_MARGIN}{'#' * round(share * BAR_COLUMNS)}".rstrip()


def _choices(plan: Plan) -> Iterator[str]:
    grid = tables.choices_table(plan)
    yield grid.caption
    for name, value, why in grid.rows:
        yield from _wrapped(LEFT_MARGIN, f"{name}: {value}")
        yield from _wrapped(LEFT_MARGIN * 3, why)


def _list(grid: Grid) -> list[str]:
    if not grid.rows:
        return []
    return [grid.caption, *_named([(row[0], row[1]) for row in grid.rows])]


def _named(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield from _wrapped(LEFT_MARGIN, value, mark=f"{name:{width}}{LEFT_MARGIN}")


def _grid(grid: Grid) -> Iterator[str]:
    """Caption, header and rows; numbers to the right, words to the left, the marked row with a star."""
    if not grid.rows:
        return
    yield grid.caption
    cells = (grid.columns, *grid.rows)
    widths = [max(len(row[place]) for row in cells) for place in range(len(grid.columns))]
    for number_of_row, row in enumerate(cells):
        star = "* " if grid.marked is not None and number_of_row == grid.marked + 1 else LEFT_MARGIN
        texts = [
            f"{cell:<{width}}" if place == 0 or place in grid.words else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"{star}{LEFT_MARGIN.join(texts)}".rstrip()


def _wrapped(indent: str, sentence: str, mark: str = "") -> list[str]:
    room = max(LINE_COLUMNS, len(indent) + len(mark) + NARROWEST)
    return textwrap.wrap(
        sentence,
        room,
        initial_indent=f"{indent}{mark}",
        subsequent_indent=indent + " " * len(mark),
        break_on_hyphens=False,
    )
