"""The verdict: large figures with their change, candidates, contamination, gate."""

from dataclasses import dataclass

from anadil.core.format import DASH, number
from anadil.report.charts import Bar, Estimate
from anadil.report.elements import Chart, TextTable, bars, facts_table, intervals
from anadil.report.format import (
    MINUS,
    change_percent,
    clip,
    figure,
    percent,
    plain_value,
    setting,
    signed_percent,
    words_of,
)
from anadil.report.read import Facts, Json, field, list_of, named_tables, table_of
from anadil.text.metrics import SURE_DOCUMENTS

COLOURS = {"base": 0, "adapted": 1, "finetuned": 2}
CANDIDATES = tuple(COLOURS)
MAX_DIFFERENCES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One large figure: what it is, before, after, and what others published."""

    name: str
    unit: str
    before: str
    after: str
    change: str
    better: bool | None
    published: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresView:
    """Section 5, and the head of the page."""

    verdict: str
    passed: bool | None
    headlines: tuple[Headline, ...]
    candidates: TextTable
    charts: tuple[Chart, ...]
    differences: TextTable
    few: str
    """A warning where there are too few documents to be sure of; empty otherwise."""
    contamination: TextTable
    heldout: TextTable
    checks: TextTable


def scores_view(facts: Facts) -> ScoresView:
    """Everything that `scores.json` says."""
    scores = facts.scores
    candidates = candidates_of(facts)
    passed = field(scores, "gate.passed")
    return ScoresView(
        verdict=gate_verdict(scores),
        passed=passed if isinstance(passed, bool) else None,
        headlines=_headlines(candidates),
        candidates=_candidate_table(candidates),
        charts=_charts(scores, candidates),
        differences=_differences(scores),
        few=_few(candidates),
        contamination=facts_table(
            "Held-out text that training has seen", table_of(scores.get("contamination"))
        ),
        heldout=facts_table("The held-out text", table_of(scores.get("heldout"))),
        checks=_checks(scores),
    )


def candidates_of(facts: Facts) -> dict[str, Json]:
    """Figures of each candidate: base, adapted, finetuned, then any other."""
    found = dict(named_tables(facts.scores.get("candidates")))
    names = [name for name in CANDIDATES if name in found]
    return {name: found[name] for name in [*names, *(other for other in found if other not in COLOURS)]}


def loop_rate(candidate: Json) -> float | None:
    """Share of a candidate's greedy generations that end in a loop; sampling hides loops."""
    return number(field(candidate, "repetition.greedy.loop_rate"))


def gate_verdict(scores: Json) -> str:
    """What the gate says, in a sentence: which model may be released, or why none."""
    passed = field(scores, "gate.passed")
    if not isinstance(passed, bool):
        return "No quality gate was applied."
    checks = [table_of(check) for check in list_of(field(scores, "gate.checks"))]
    deciding = [check for check in checks if check.get("enforced", True)]
    judged = [name for name in CANDIDATES if _of(name, deciding)]
    last = judged[-1] if judged else "adapted"
    own = _of(last, deciding)
    if passed:
        what = f": all {len(own)} deciding checks hold" if len(own) > 1 else ""
        return f"The {last} model passed the quality gate{what}."
    failed = [
        f"{_check_name(check, last)} is {plain_value(check.get('value'))}, the limit {setting(check.get('limit'))}"
        for check in own
        if check.get("passed") is False
    ]
    why = f": {'; '.join(failed[:5])}" if failed else ""
    others = [name for name in judged[:-1] if all(check.get("passed") for check in _of(name, deciding))]
    alone = "".join(f" The {name} model by itself passed." for name in others)
    return f"The {last} model did not pass the quality gate{why}.{alone}"


def _of(name: str, checks: list[Json]) -> list[Json]:
    """The checks that decide about a candidate."""
    return [check for check in checks if str(check.get("name")).startswith(f"{name}.")]


def _check_name(check: Json, candidate: str = "") -> str:
    name = str(check.get("name") or "").removeprefix(f"{candidate}.")
    return words_of(clip(name, 80).replace(".", " "))


def _headlines(candidates: dict[str, Json]) -> tuple[Headline, ...]:
    base, adapted = candidates.get("base", {}), candidates.get("adapted", {})
    context = number(adapted.get("context"))
    room = f"in {figure(context)} tokens, more is better" if context is not None else "more is better"
    rows = (
        ("Bits per byte", "lower is better", "bits_per_byte", -1, "0.6830 to 0.5795 (\N{MINUS SIGN}15.2 %)"),
        ("Fertility", "tokens per word, lower is better", "fertility", -1, "3.22 to 1.59 (\N{MINUS SIGN}50.6 %)"),
        ("Words in context", room, "words_in_context", 1, "about 40,000 to about 80,000"),
    )  # fmt: skip
    found = [
        _headline(name, unit, base.get(key), adapted.get(key), wanted, published)
        for name, unit, key, wanted, published in rows
    ]
    return (*found, _loop_headline(loop_rate(base), loop_rate(adapted)))


def _headline(name: str, unit: str, before: object, after: object, wanted: int, published: str) -> Headline:
    return Headline(
        name=name,
        unit=unit,
        before=figure(before),
        after=figure(after),
        change=signed_percent(change_percent(before, after)),
        better=_better(before, after, wanted),
        published=published,
    )


def _loop_headline(before: float | None, after: float | None) -> Headline:
    moved = None if before is None or after is None else (after - before) * 100
    points = signed_percent(moved).removesuffix(" %")
    return Headline(
        name="Loop rate",
        unit="greedy texts that end in a loop",
        before=percent(before),
        after=percent(after),
        change=DASH if moved is None else f"{points} points",
        better=_better(before, after, -1),
        published="",
    )


def _better(before: object, after: object, wanted: int) -> bool | None:
    """Whether a figure went the wanted way (1 up, -1 down); None if it did not move or is not known."""
    old, new = number(before), number(after)
    return None if old is None or new is None or old == new else (new - old) * wanted > 0


def _candidate_table(candidates: dict[str, Json]) -> TextTable:
    known = (
        ("bits_per_byte", "bits per byte"),
        ("retained", "bits per byte on English"),
        ("loops", "share of looping texts"),
        ("fertility", "tokens per word"),
        ("bytes_per_token", "bytes per token"),
        ("words_in_context", "words in context"),
        ("num_tokens", "tokens"),
        ("num_words", "words"),
        ("num_bytes", "bytes"),
        ("num_documents", "documents"),
    )
    figures = {
        name: item | {"retained": field(item, "retained.en"), "loops": loop_rate(item)}
        for name, item in candidates.items()
    }
    present = [
        (key, label)
        for key, label in known
        if any(number(item.get(key)) is not None for item in figures.values())
    ]
    rows = tuple((name, *(figure(item.get(key)) for key, _ in present)) for name, item in figures.items())
    return TextTable(
        caption="Candidates on the same held-out text",
        columns=("candidate", *(label for _, label in present)),
        rows=rows,
    )


def _charts(scores: Json, candidates: dict[str, Json]) -> tuple[Chart, ...]:
    charts = []
    for key, title, unit in (
        ("bits_per_byte", "Bits per byte", "bits per byte, lower is better"),
        ("fertility", "Fertility", "tokens per word, lower is better"),
    ):
        known = [(name, number(item.get(key))) for name, item in candidates.items()]
        found = [(name, float(value)) for name, value in known if value is not None]
        drawn = [Bar(label=name, value=value, colour=COLOURS.get(name, 3)) for name, value in found]
        rows = tuple((name, figure(value)) for name, value in found)
        charts.append(
            bars(title, unit, drawn, TextTable(caption=title, columns=("candidate", unit), rows=rows))
        )
    gains = [
        Estimate(label=label, value=value, low=low, high=high, colour=COLOURS.get(label.partition(" ")[0], 3))
        for label, item in _all_differences(scores)
        if (value := number(item.get("value"))) is not None and (ends := _ends(item)) is not None
        for low, high in [ends]
    ]
    table = _differences(scores)
    charts.append(
        intervals("Differences between candidates", "bits per byte, below zero is better", gains, table)
    )
    return tuple(chart for chart in charts if chart)


def _ends(item: Json) -> tuple[float, float] | None:
    """Low and high of an interval."""
    low, high = number(item.get("low")), number(item.get("high"))
    return None if low is None or high is None else (low, high)


def _all_differences(scores: Json) -> list[tuple[str, Json]]:
    named = named_tables(scores.get("differences"))[:MAX_DIFFERENCES]
    return [(clip(name, 80).replace(" - ", f" {MINUS} "), item) for name, item in named]


def _differences(scores: Json) -> TextTable:
    rows = []
    for label, item in _all_differences(scores):
        ends = _ends(item)
        sure = item.get("significant")
        clear = ("yes" if sure else "no, the interval holds 0") if isinstance(sure, bool) else DASH
        shown = DASH if ends is None else f"{figure(ends[0])} to {figure(ends[1])}"
        rows.append((label, figure(item.get("value")), shown, figure(item.get("num_documents")), clear))
    return TextTable(
        caption="Differences in bits per byte, paired by document",
        columns=("difference", "bits per byte", "95 % interval", "documents", "clear"),
        rows=tuple(rows),
        words=(4,),
    )


def _few(candidates: dict[str, Json]) -> str:
    counts = [number(item.get("num_documents")) for item in candidates.values()]
    fewest = min((count for count in counts if count is not None), default=SURE_DOCUMENTS)
    if fewest >= SURE_DOCUMENTS:
        return ""
    return f"Only {figure(fewest)} documents were scored; under {SURE_DOCUMENTS} an interval says little."


def _checks(scores: Json) -> TextTable:
    rows = []
    for entry in list_of(field(scores, "gate.checks"))[:MAX_DIFFERENCES]:
        check = table_of(entry)
        passed, enforced = check.get("passed"), check.get("enforced", True)
        outcome = ("passed" if passed else "not passed") if isinstance(passed, bool) else DASH
        weight = "decides" if enforced else "shown only"
        name = _check_name(check)
        rows.append((name, plain_value(check.get("value")), setting(check.get("limit")), outcome, weight))
    return TextTable(
        caption="Checks of the quality gate: a value must not exceed its limit",
        columns=("check", "value", "limit", "outcome", "weight"),
        rows=tuple(rows),
        words=(3, 4),
    )
