"""What a plan says in sentences: first the answer, then what it rests on."""

from collections.abc import Callable

from anadil.plan.view.values import (
    DASH,
    Plan,
    at,
    count,
    days,
    dollars,
    flop,
    gib,
    hours,
    items,
    number,
    percent,
    seconds,
    short_count,
    span,
    text,
)

VERDICTS = {"fits": "Fits", "tight": "Tight", "no": "Does not fit"}
"""From the best to the worst."""


def verdict(plan: Plan) -> str:
    """`fits`, `tight` or `no`, of the phase that is worst off; empty where none is known."""
    found = [at(phase, "memory.verdict") for phase in items(plan, "phases")]
    return next((word for word in reversed(VERDICTS) if word in found), "")


def worst(plan: Plan) -> object:
    """The phase that needs the most memory; None where none is known."""
    known = [p for p in items(plan, "phases") if number(at(p, "memory.total_bytes")) is not None]
    return max(known, key=lambda phase: number(at(phase, "memory.total_bytes")) or 0.0, default=None)


def where(plan: Plan) -> str:
    """Text such as `2 x p4d.24xlarge (16 x A100 40 GB)`."""
    nodes, devices = count(at(plan, "machine.nodes")), count(at(plan, "machine.devices"))
    kind, device = text(at(plan, "machine.instance")), text(at(plan, "machine.device"))
    return f"{nodes} x {kind} ({devices} x {device})"


def lead(plan: Plan, path: str) -> object:
    """A time or price to begin with: the middle of its range until short runs have set the rates.

    Args:
        plan: A plan.
        path: Of the prediction; beside it stand `<path>_low` and `<path>_high`.
    """
    low, high = (number(at(plan, f"{path}_{end}")) for end in ("low", "high"))
    predicted = at(plan, path)
    if at(plan, "calibration") is not None or predicted is None or low is None or high is None:
        return predicted
    return (low + high) / 2


def ranged(plan: Plan, path: str, say: Callable[[object], str]) -> str:
    """Text such as `between 8 h and 12 h`; empty where no range is known."""
    low, high = (at(plan, f"{path}_{end}") for end in ("low", "high"))
    return f"between {say(low)} and {say(high)}" if span(low, high, say) else ""


def answer(plan: Plan) -> str:
    """The plan in one sentence: whether it fits, on what, how long, and what it costs."""
    peak = at(worst(plan), "memory")
    total, limit, device = (gib(at(peak, f"{key}_bytes")) for key in ("total", "limit", "device"))
    took, price = days(lead(plan, "time.hours")), dollars(lead(plan, "cost.on_demand"))
    times, costs = ranged(plan, "time.hours", hours), ranged(plan, "cost.on_demand", dollars)
    fits = VERDICTS.get(verdict(plan), "Not known whether it fits")
    ending = f"{took} ({times})" if times else took
    if price != DASH:
        ending += f" and {price} on demand" + (f" ({costs})" if costs else "")
    if times and at(plan, "calibration") is None:
        ending = f"about {ending}"
    if fits == VERDICTS["no"]:
        ending = f"it would take {ending}"
    return f"{fits}: {total} per device (safe up to {limit} of {device}) on {where(plan)}; {ending}."


def headlines(plan: Plan) -> list[tuple[str, str]]:
    """Layout, rate, time and cost, each with its range where one is known."""
    batch, whole = (count(at(plan, f"layout.{key}")) for key in ("micro_batch_size", "batch_size"))
    length = count(at(plan, "layout.sequence_length"))
    peak = worst(plan)
    rate, each = count(at(peak, "tokens_per_s"), "tokens/s"), count(at(peak, "tokens_per_s_per_device"))
    times, costs = ranged(plan, "time.hours", hours), ranged(plan, "cost.on_demand", dollars)
    name = text(at(plan, "layout.name"), 60)
    steps, tokens = count(at(plan, "time.steps")), short_count(at(plan, "time.tokens"))
    epochs, flops = count(at(plan, "time.epochs")), flop(at(plan, "time.flops"))
    passes = "" if epochs == DASH else f" {epochs} epochs,"
    price = dollars(lead(plan, "cost.on_demand"))
    # Nothing in the way: the time beside it is longer, as published runs took longer.
    best = "at best " if at(plan, "calibration") is None and rate != DASH else ""
    return [
        ("layout", f"{name}, batch {batch} per device and {whole} in all, {length} tokens a sequence"),
        ("rate", f"{best}{rate}, {each} per device, {percent(at(peak, 'mfu'))} of the peak"),
        ("work", f"{steps} steps, {tokens} tokens,{passes} {flops}"),
        ("time", days(lead(plan, "time.hours")) + (f", {times}" if times else "")),
        ("cost", DASH if price == DASH else f"{price} on demand" + (f", {costs}" if costs else "")),
    ]


def checked(plan: Plan) -> str:
    """How far the prediction lies from the real model's run without a device; empty where there was none."""
    exact = at(plan, "exact")
    difference = number(at(exact, "difference_percent"))
    if exact is None or difference is None:
        return ""
    real, took = gib(at(exact, "allocated_bytes")), seconds(at(exact, "seconds"))
    sign = "-" if difference < 0 else "+"
    return f"the real model's step allocates {real}, {sign}{abs(difference):.2g} % from the formulas ({took})"


def searched(plan: Plan) -> str:
    """How many layouts were looked at; empty where there was no search."""
    seen, fitting = (number(at(plan, f"search.{key}")) for key in ("considered", "fitting"))
    if seen is None:
        return ""
    took = seconds(at(plan, "search.seconds"))
    return f"{count(seen)} layouts were computed in {took}, {count(fitting)} of them fit."


def priced(plan: Plan) -> str:
    """Where the prices come from; empty where nothing says it."""
    origin = text(at(plan, "machine.price_checked"))
    return "" if origin == DASH else f"Prices: {origin}."


def calibrated(plan: Plan) -> str:
    """Whether the rates were set by short runs; empty where there are none."""
    if not items(plan, "phases"):
        return ""
    if at(plan, "calibration") is None:
        return (
            "Not calibrated: rates follow from the machine's data sheet, not from a run on it. So the times here are "
            "predictions, and the plan leads with the middle of the range that published runs span."
        )
    factor, runs = count(at(plan, "calibration.factor")), count(at(plan, "calibration.measured"))
    return f"Calibrated: rates are the predicted ones times {factor}, from {runs} measured runs."
