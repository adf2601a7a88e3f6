"""A plan for the terminal: plain lines of at most 100 columns, the answer first. What is not known is a dash."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from anadil.core.format import (
    DASH,
    hours_and_days,
    human_bandwidth,
    human_bytes,
    human_count,
    human_dollars,
    human_flop,
    human_hours,
    human_parameters,
    human_percent,
    human_range,
    human_seconds,
    one_line,
    short_count,
    stored_bytes,
)
from anadil.core.table import Table
from anadil.estimate.fit import FitVerdict
from anadil.estimate.instances import CPU
from anadil.estimate.text_use import basis_of, human_epochs
from anadil.plan.schema import Plan

LINE_COLUMNS = 96
BAR_COLUMNS = 20
"""Length of the longest bar."""
LEFT_MARGIN = "  "
LAYOUT_COLUMNS = 27
"""Width of a layout's name in the table of layouts."""
NARROWEST = 20
"""Columns that a wrapped text keeps, however long its name is."""
VERDICTS: dict[FitVerdict, str] = {"fits": "Fits", "tight": "Tight", "no": "Does not fit"}
PHASE_LABELS = {"new_rows": "new rows", "embeddings": "embeddings", "all": "whole model"}
Rows = Sequence[Sequence[str]]


def plan_lines(plan: Plan) -> list[str]:
    """Every section of a plan as lines of plain text."""
    blocks: Sequence[list[str]] = (
        _wrapped("", f"{one_line(plan.recipe)}. {answer_sentence(plan)}"),
        _pairs("", [(name, value) for name, value in headlines(plan) if value != DASH]),
        _text(plan),
        *(_pairs(each.title, each.need.pairs()) for each in plan.needs if each.need),
        _memory(plan),
        _grid(
            "Memory after pre-training",
            ("stage", "on", "needs", "device", "main memory", "verdict"),
            [
                (each.stage, each.where, *map(human_bytes, (each.total_bytes, each.device_bytes, each.host_bytes or None)), each.verdict)
                for each in plan.after
            ],
            words=(1, 5),
        ),
        _step(plan),
        _phases(plan),
        ["Settings and why", *(line for each in plan.choices for line in _choice(each.setting, each.value, each.why))],
        cost_lines(plan),
        *_consequences(plan),
        _layouts(plan),
        ["Assumptions", *(line for each in plan.assumptions for line in _wrapped(LEFT_MARGIN, each, mark="- "))],
    )  # fmt: skip
    return "\n\n".join("\n".join(block) for block in blocks if block).splitlines()


def answer_sentence(plan: Plan) -> str:
    """The plan in one sentence: whether it fits, on what, how long, and what it costs."""
    memory, times, costs = plan.peak.memory, _time_range(plan), _cost_range(plan)
    duration = hours_and_days(plan.expected_hours)
    ending = f"{duration} ({times})" if times else duration
    if plan.expected_cost is not None:
        ending += f" and {human_dollars(plan.expected_cost)} on demand" + (f" ({costs})" if costs else "")
    if times and plan.calibration is None:
        ending = f"about {ending}"
    if plan.verdict == "no":
        ending = f"it would take {ending}"
    total, limit, device = map(human_bytes, (memory.total_bytes, memory.limit_bytes, memory.device_bytes))
    machine = plan.machine
    cluster = f"{human_count(machine.nodes)} x {one_line(machine.instance)} ({human_count(machine.devices)} x {one_line(machine.device)})"
    return f"{VERDICTS[plan.verdict]}: {total} per device (safe up to {limit} of {device}) on {cluster}; {ending}."


def headlines(plan: Plan) -> list[tuple[str, str]]:
    """Layout, rate, time and cost, each with its range where one is known."""
    layout, peak, time = plan.layout.layout, plan.peak, plan.time
    times, costs = _time_range(plan), _cost_range(plan)
    # Each source has epochs of its own; the table of text says them.
    has_sources = any(each.source for each in plan.text)
    epochs = "" if time.epochs is None or has_sources else f" {human_count(time.epochs)} epochs,"
    # Nothing in the way: the time beside it is longer, as published runs took longer.
    best = "at best " if plan.calibration is None and peak.tokens_per_s is not None else ""
    rate, each = human_count(peak.tokens_per_s, "tokens/s"), human_count(peak.tokens_per_s_per_device)
    batch, whole = human_count(layout.micro_batch_size), human_count(plan.layout.batch_size)
    length = human_count(plan.layout.sequence_length)
    after = ""
    if plan.expected_hours and time.hours and time.hours_after:
        hours = plan.expected_hours * time.hours_after / time.hours
        after = f", of which finetuning and scoring take {human_hours(hours)}"
    price = f"{human_dollars(plan.expected_cost)} on demand" + (f", {costs}" if costs else "")
    model, experts = plan.model, list[tuple[str, str]]()
    if model.active_parameters < model.parameters:
        sizes = map(human_parameters, (model.parameters, model.active_parameters))
        experts = [("model", "{} parameters, of which a token meets {}".format(*sizes))]
    return [
        *experts,
        ("layout", f"{layout.name()}, batch {batch} per device and {whole} in all, {length} tokens a sequence"),
        ("rate", f"{best}{rate}, {each} per device, {human_percent(peak.mfu)} of the peak"),
        ("work", f"{human_count(time.steps)} steps, {short_count(time.tokens)} tokens,{epochs} {human_flop(time.flops)}"),
        ("time", hours_and_days(plan.expected_hours) + (f", {times}" if times else "") + after),
        ("cost", DASH if plan.expected_cost is None else price),
    ]  # fmt: skip


def calibration_sentence(plan: Plan) -> str:
    """A sentence on where the rates come from."""
    measured = plan.calibration
    if measured is None:
        if plan.machine.device == CPU:
            return "Not calibrated: rates follow from products that were timed on this CPU, not from a training on it."
        return (
            "Not calibrated: rates follow from the machine's data sheet and a run on one H100, not from a run on it. So the times "
            "here are the best to hope for, and the plan leads with the middle of the range that published runs span."
        )
    return (
        f"Calibrated: rates are the predicted ones times {human_count(measured.factor)}, as the training of "
        f"{one_line(measured.run)} reached on {one_line(measured.machines)}."
    )


def _time_range(plan: Plan) -> str:
    """Text such as `between 8 h and 12 h`; empty where no range is known."""
    return _between(human_range(plan.time.hours_low, plan.time.hours_high, human_hours))


def _cost_range(plan: Plan) -> str:
    return _between(human_range(plan.cost.on_demand.low, plan.cost.on_demand.high, human_dollars))


def _between(text: str) -> str:
    return f"between {text.replace(' to ', ' and ')}" if text else ""


def _text(plan: Plan) -> list[str]:
    rows = [
        (
            each.name, short_count(each.tokens), basis_of(each.basis).short, each.shares_text(), human_epochs(each.asked_epochs),
            human_epochs(each.epochs), DASH if each.exhausted_at is None else human_count(each.exhausted_at),
        )
        for each in plan.text if each.source
    ]  # fmt: skip
    columns = ("source", "tokens", "known by", "share", "epochs asked", "made", "out at step")
    lines = _grid("Text", columns, rows, words=(2, 3))
    if plan.text and not rows:
        lines.append("Text")
    # The table says the rest.
    sentences = [
        f"{'; '.join(filter(None, (each.line(), each.remedy())))}."
        for each in plan.text
        if not each.source or each.remedy()
    ]
    if plan.text_fault:
        sentences.append(f"Training may be refused: {plan.text_fault}.")
    return [*lines, *(line for each in sentences for line in _wrapped(LEFT_MARGIN, each))]


def _memory(plan: Plan) -> list[str]:
    phases = [phase.memory for phase in plan.phases]
    parts = _by_phase([each.parts for each in phases]) | _by_phase([each.outside for each in phases])
    sums = [
        ("allocated", *(human_bytes(each.allocated_bytes) for each in phases)),
        ("in all", *(human_bytes(each.total_bytes) for each in phases)),
        ("safe up to", *(human_bytes(each.limit_bytes) for each in phases)),
        ("device", *(human_bytes(each.device_bytes) for each in phases)),
        ("worst moment", *(each.moment for each in phases)),
    ]
    rows = [(name, *map(human_bytes, values)) for name, values in parts.items()]
    return _bars(plan, "Memory of one device", [*rows, *sums], parts)


def _step(plan: Plan) -> list[str]:
    parts = _by_phase([phase.step_parts_s or {} for phase in plan.phases])
    rows = [(name, *map(human_seconds, values)) for name, values in parts.items()]
    return _bars(
        plan,
        "Time of one step",
        [*rows, ("step", *(human_seconds(each.step_s) for each in plan.phases))],
        parts,
    )


def _by_phase(phases: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """A part's value in each phase, of the parts that are more than nothing in one of them."""
    names = dict.fromkeys(name for parts in phases for name in parts)
    values = {name: [parts.get(name, 0.0) for parts in phases] for name in names}
    return {name: row for name, row in values.items() if any(value > 0 for value in row)}


def _phases(plan: Plan) -> list[str]:
    rows = [
        (
            PHASE_LABELS[phase.trains], human_count(phase.steps), short_count(phase.tokens), human_count(phase.tokens_per_s),
            human_count(phase.tokens_per_s_per_device), human_percent(phase.mfu), human_hours(phase.hours), phase.bound or DASH,
        )
        for phase in plan.phases
    ]  # fmt: skip
    columns = ("phase", "steps", "tokens", "tokens/s", "per device", "MFU", "time", "bound by")
    return [*_grid("Phases", columns, rows, words=(7,)), *_wrapped(LEFT_MARGIN, calibration_sentence(plan))]


def _choice(setting: str, value: str, why: str) -> list[str]:
    return [*_wrapped(LEFT_MARGIN, f"{setting}: {value}"), *_wrapped(LEFT_MARGIN * 3, one_line(why, 600))]


def cost_lines(plan: Plan) -> list[str]:
    """Cost of the hours by the way of buying them, and where the prices come from; empty where no price is known."""
    cost = plan.cost
    prices = (("on demand", cost.on_demand), ("spot", cost.spot), ("training plan", cost.training_plan))
    lines: list[str] = []
    if any(price.per_hour is not None for _, price in prices):
        rows = [
            (
                name, human_dollars(price.per_hour), human_dollars(price.predicted),
                human_range(price.low, price.high, human_dollars) or DASH,
            )
            for name, price in prices
        ]  # fmt: skip
        # Rates that no run has set are the best that the machine may reach.
        predicted = "cost at best" if plan.calibration is None else "predicted cost"
        lines = _grid("Cost", ("bought", "an hour", predicted, "range"), rows)
    checked = plan.machine.price_checked
    return [*lines, *(_wrapped(LEFT_MARGIN, f"Prices: {one_line(checked)}.") if checked else [])]


def _consequences(plan: Plan) -> Iterator[list[str]]:
    checkpoints, storage, failures = plan.checkpoints, plan.storage, plan.reliability
    yield _pairs(
        "Checkpoints",
        [
            ("checkpoint", stored_bytes(checkpoints.bytes)),
            ("bytes a parameter", human_count(checkpoints.bytes_per_parameter)),
            ("training waits for", human_seconds(checkpoints.stall_s)),
            ("writing rate", human_bandwidth(checkpoints.bandwidth_bytes_per_s)),
            ("checkpoints kept", human_count(checkpoints.generations)),
            ("kept in all", stored_bytes(checkpoints.storage_bytes)),
        ],
    )
    rows = [
        (each.rule, human_seconds(each.interval_s), human_count(each.steps), human_percent(each.waste))
        for each in checkpoints.intervals
    ]
    yield _grid("How often to save", ("rule", "a checkpoint every", "steps", "time lost"), rows)
    yield _pairs(
        "Storage",
        [
            ("data", stored_bytes(storage.data_bytes)),
            ("checkpoints", stored_bytes(storage.checkpoints_bytes)),
            ("in all", stored_bytes(storage.total_bytes)),
            ("loading before the start", human_seconds(storage.preload_s)),
        ],
    )
    yield _pairs(
        "Reliability",
        [
            ("mean time between failures", human_seconds(failures.mtbf_s)),
            ("failures to expect", human_count(failures.expected_failures)),
            ("restart", human_seconds(failures.restart_s)),
            ("lost by a failure", human_seconds(failures.lost_s_per_failure)),
            ("share of time that trains", human_percent(failures.effective_training_time_ratio)),
        ],
    )


def _layouts(plan: Plan) -> list[str]:
    """The best layouts of the search, the plan's own with a star."""
    search = plan.search
    if search is None:
        return []
    chosen = [number for number, each in enumerate(search.best) if each.layout == plan.layout.layout]
    rows = [
        (
            one_line(each.layout.name(), LAYOUT_COLUMNS), human_count(each.layout.micro_batch_size), each.layout.recompute,
            human_bytes(each.total_bytes), each.verdict, human_count(each.tokens_per_s_per_device), human_hours(each.hours),
            human_dollars(each.cost).removeprefix("USD "),
        )
        for each in search.best
    ]  # fmt: skip
    columns = ("layout", "batch", "recompute", "memory", "verdict", "tokens/s", "time", "USD")
    caption, marked = "Best layouts, batch and tokens/s per device", chosen[0] if chosen else None
    sentence = (
        f"{human_count(search.considered)} layouts were computed in {human_seconds(search.seconds)}, "
        f"{human_count(search.fitting)} of them fit."
    )
    return [*_grid(caption, columns, rows, words=(2, 4), marked=marked), *_wrapped(LEFT_MARGIN, sentence)]


def _bars(plan: Plan, caption: str, rows: Rows, parts: Mapping[str, Sequence[float]]) -> list[str]:
    """The parts, with bars for the phase where they add up to the most, and under them their sums."""
    names = [PHASE_LABELS[phase.trains] for phase in plan.phases]
    sums = [sum(column) for column in zip(*parts.values(), strict=True)]
    heaviest = sums.index(max(sums)) if sums else 0
    column = [row[heaviest] for row in parts.values()]
    _, header, *lines = _grid(caption, ("part", *names), rows)
    barred = [
        f"{line}{LEFT_MARGIN}{'#' * round(value / max(column) * BAR_COLUMNS)}".rstrip()
        for line, value in zip(lines, column, strict=False)
    ]
    title = f"{caption}, bars for: {names[heaviest]}" if len(sums) > 1 else caption
    return [title, header, *barred, *([""] if barred else []), *lines[len(barred) :]]


def _pairs(caption: str, rows: Rows) -> list[str]:
    width = max(len(name) for name, _ in rows)
    named = (_wrapped(LEFT_MARGIN, value, mark=f"{name:{width}}{LEFT_MARGIN}") for name, value in rows)
    return [*([caption] if caption else []), *(line for lines in named for line in lines)]


def _grid(
    caption: str, columns: Sequence[str], rows: Rows, *, words: Sequence[int] = (), marked: int | None = None
) -> list[str]:
    lines = Table(caption, columns, rows, words=words, marked=marked).lines(LEFT_MARGIN)
    return [caption, *lines] if lines else []


def _wrapped(indent: str, sentence: str, mark: str = "") -> list[str]:
    room = max(LINE_COLUMNS, len(indent) + len(mark) + NARROWEST)
    return textwrap.wrap(
        sentence,
        room,
        initial_indent=f"{indent}{mark}",
        subsequent_indent=indent + " " * len(mark),
        break_on_hyphens=False,
    )
