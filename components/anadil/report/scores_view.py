"""The verdict: large figures with their change, candidates, contamination, gate."""

from dataclasses import dataclass, replace

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
    signed_percent,
)
from anadil.report.measures_view import UNSURE, UNSURE_NOTE, interval_of, interval_words
from anadil.report.read import Facts, Json, field, named_tables, table_of
from anadil.report.verdict import (
    COLOURS,
    candidates_of,
    check_words,
    checks_of,
    limit_words,
    released_name,
    subjects_of,
)

MAX_DIFFERENCES = 40
OF_ANSWERS = ", answers"
FIGURES = (
    ("bits_per_byte", "bits per byte"),
    ("loops", "greedy texts that loop"),
    ("fertility", "tokens per word"),
    ("bytes_per_token", "bytes per token"),
    ("words_in_context", "words in context"),
)
PUBLISHED_LANGUAGE = "az"
"""Language of the published figures; they say nothing about words and bytes of others."""
COUNTERS = (
    ("num_documents", "documents"),
    ("num_words", "words"),
    ("num_bytes", "bytes"),
    ("num_tokens", "tokens"),
    ("parameters", "parameters"),
    ("context", "context"),
    ("stride", "stride"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One large figure: what it is, before, after, and what others published."""

    name: str
    unit: str
    of: str = "adapted"
    """Whose figure `after` is."""
    compared: str = "base"
    """Whose figure `before` is."""
    before: str
    after: str
    change: str
    better: bool | None
    published: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresView:
    """Scores of the held-out text, and the large figures at the head of the page."""

    headlines: tuple[Headline, ...]
    candidates: TextTable
    counters: TextTable
    """Counts behind each candidate's figures."""
    charts: tuple[Chart, ...]
    differences: TextTable
    contamination: TextTable
    heldout: TextTable
    checks: TextTable

    @property
    def has_published(self) -> bool:
        """True if others published such figures for this language."""
        return any(headline.published for headline in self.headlines)


def scores_view(facts: Facts) -> ScoresView:
    """Everything that `scores.json` says."""
    scores = facts.scores
    candidates = candidates_of(scores)
    return ScoresView(
        headlines=_headlines(scores, facts.language.code),
        candidates=_figures("Candidates on the same held-out text", candidates, FIGURES),
        counters=_figures("What they were counted over", candidates, COUNTERS),
        charts=_charts(scores, candidates),
        differences=_difference_table(
            "Differences in bits per byte, paired by document", _all_differences(scores)
        ),
        contamination=facts_table(
            "Held-out text that training has seen", table_of(scores.get("contamination"))
        ),
        heldout=facts_table("The held-out text", table_of(scores.get("heldout"))),
        checks=_checks(scores),
    )


def loop_rate(candidate: Json) -> float | None:
    """Share of a candidate's greedy generations that end in a loop; sampling hides loops."""
    return number(field(candidate, "repetition.greedy.loop_rate"))


def _headlines(scores: Json, language: str) -> tuple[Headline, ...]:
    """Large figures of the released model; without one, of the adapted model, and nothing is marked better."""
    candidates, released = candidates_of(scores), released_name(scores)
    of = released or next(iter(subjects_of(scores)), "adapted")
    base, own = candidates.get("base", {}), candidates.get(of, {})
    context = number(own.get("context"))
    room = f"in {figure(context)} tokens, more is better" if context is not None else "more is better"
    rows = (
        ("Bits per byte", "lower is better", "bits_per_byte", -1, "0.6830 to 0.5795 (\N{MINUS SIGN}15.2 %)"),
        ("Fertility", "tokens per word, lower is better", "fertility", -1, "3.22 to 1.59 (\N{MINUS SIGN}50.6 %)"),
        ("Words in context", room, "words_in_context", 1, "about 40,000 to about 80,000"),
    )  # fmt: skip
    headlines = [
        _headline(
            name,
            unit,
            base.get(key),
            own.get(key),
            better,
            published if language == PUBLISHED_LANGUAGE else "",
        )
        for name, unit, key, better, published in rows
    ]
    answers = _answer_headline(candidates) if of == "finetuned" else None
    loops = replace(_loop_headline(loop_rate(base), loop_rate(own)), of=of)
    tiles = (*(replace(each, of=of) for each in headlines), answers or loops)
    # A model that is not released gets no green figure, whatever moved.
    refused = isinstance(field(scores, "gate.passed"), bool) and not released
    return tuple(replace(each, better=None) if refused and each.better else each for each in tiles)


def _answer_headline(candidates: dict[str, Json]) -> Headline | None:
    """Change of answers to unseen questions by finetuning; None if unknown."""
    before, after = (
        number(field(candidates.get(name, {}), "questions.bits_per_byte"))
        for name in ("adapted", "finetuned")
    )
    if before is None or after is None:
        return None
    headline = _headline(
        "Answers", "bits per byte of answers to unseen questions, lower is better", before, after, -1, ""
    )
    return replace(headline, of="finetuned", compared="adapted")


def _headline(
    name: str, unit: str, before: object, after: object, better_way: int, published: str
) -> Headline:
    return Headline(
        name=name,
        unit=unit,
        before=figure(before),
        after=figure(after),
        change=signed_percent(change_percent(before, after)),
        better=_better(before, after, better_way),
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


def _better(before: object, after: object, better_way: int) -> bool | None:
    """True if a figure moved in the better direction (1 up, -1 down); None if unchanged or unknown."""
    old, new = number(before), number(after)
    return None if old is None or new is None or old == new else (new - old) * better_way > 0


def _figures(caption: str, candidates: dict[str, Json], known: tuple[tuple[str, str], ...]) -> TextTable:
    """A row for each candidate, a column for each figure that any of them has."""
    figures = {name: item | {"loops": loop_rate(item)} for name, item in candidates.items()}
    present = [
        (key, label)
        for key, label in known
        if any(number(item.get(key)) is not None for item in figures.values())
    ]
    rows = tuple(
        (name, *(_loop_cell(item) if key == "loops" else figure(item.get(key)) for key, _ in present))
        for name, item in figures.items()
    )
    return TextTable(
        caption=caption, columns=("candidate", *(label for _, label in present)), rows=rows if present else ()
    )


def _loop_cell(item: Json) -> str:
    """The share that the gate reads, and of how many texts it is."""
    count = number(field(item, "repetition.greedy.samples"))
    of = f" of {figure(count)}" if count is not None else ""
    return f"{percent(item.get('loops'))}{of if item.get('loops') is not None else ''}"


def _charts(scores: Json, candidates: dict[str, Json]) -> tuple[Chart, ...]:
    charts = []
    for key, title, unit in (
        ("bits_per_byte", "Bits per byte", "bits per byte, lower is better"),
        ("fertility", "Fertility", "tokens per word, lower is better"),
    ):
        known = [(name, number(item.get(key))) for name, item in candidates.items()]
        values = [(name, float(value)) for name, value in known if value is not None]
        drawn = [Bar(label=name, value=value, colour=COLOURS.get(name, 3)) for name, value in values]
        rows = tuple((name, figure(value)) for name, value in values)
        charts.append(
            bars(title, unit, drawn, TextTable(caption=title, columns=("candidate", unit), rows=rows))
        )
    text = [(label, item) for label, item in _all_differences(scores) if "," not in label]
    answers = [
        (label.removesuffix(OF_ANSWERS), item)
        for label, item in _all_differences(scores)
        if label.endswith(OF_ANSWERS)
    ]
    charts.append(_difference_chart("Differences on held-out text", text))
    charts.append(_difference_chart("Differences on answers to unseen questions", answers))
    return tuple(chart for chart in charts if chart)


def _difference_chart(title: str, named: list[tuple[str, Json]]) -> Chart | None:
    gains = [
        Estimate(label=label, value=value, low=low, high=high, colour=COLOURS.get(label.partition(" ")[0], 3))
        for label, item in named
        if (value := number(item.get("value"))) is not None and (ends := _ends(item)) is not None
        for low, high in [ends]
    ]
    return intervals(title, "bits per byte, below zero is better", gains, _difference_table(title, named))


def _ends(item: Json) -> tuple[float, float] | None:
    """Low and high of an interval, where it has a width: one document gives none."""
    return interval_of([item.get("low"), item.get("high")])


def _all_differences(scores: Json) -> list[tuple[str, Json]]:
    named = named_tables(scores.get("differences"))[:MAX_DIFFERENCES]
    return [(clip(name, 80).replace(" - ", f" {MINUS} "), item) for name, item in named]


def _difference_table(caption: str, named: list[tuple[str, Json]]) -> TextTable:
    rows = []
    for label, item in named:
        ends = _ends(item)
        sure = item.get("significant")
        clear = ("yes" if sure else "no, the interval holds 0") if isinstance(sure, bool) else DASH
        shown = DASH if ends is None else f"{figure(ends[0])} to {figure(ends[1])}"
        rows.append((label, figure(item.get("value")), shown, figure(item.get("num_documents")), clear))
    return TextTable(
        caption=caption,
        columns=("difference", "bits per byte", "95 % interval", "documents", "clear"),
        rows=tuple(rows),
        words=(4,),
    )


def _checks(scores: Json) -> TextTable:
    rows = []
    with_intervals = any(check.get("interval") for check in checks_of(scores))
    for check in checks_of(scores)[:MAX_DIFFERENCES]:
        passed, enforced = check.get("passed"), check.get("enforced", True)
        outcome = ("passed" if passed else "not passed") if isinstance(passed, bool) else DASH
        outcome = "undecided" if check.get("undecided") is True else outcome
        weight = "decides" if enforced else "shown only"
        interval = [interval_words(check.get("interval"))] if with_intervals else []
        value, limit = plain_value(check.get("value")), limit_words(check)
        value += UNSURE if check.get("unsure") is True else ""
        rows.append((check_words(check), value, *interval, limit, outcome, weight))
    columns = ("check", "value", *(["95 % interval"] if with_intervals else []), "limit", "outcome", "weight")
    return TextTable(
        caption="Checks of the quality gate",
        columns=columns,
        rows=tuple(rows),
        words=(len(columns) - 2, len(columns) - 1),
        note=UNSURE_NOTE if any(check.get("unsure") is True for check in checks_of(scores)) else "",
    )
