"""The verdict: large figures with their change, candidates, contamination, gate."""

from dataclasses import dataclass, replace

from anadil.core.candidates import COLOURS
from anadil.core.format import DASH, number
from anadil.core.table import Table
from anadil.report.charts import Bar, Chart, bars, facts_table, intervals
from anadil.report.format import MINUS, change_percent, clip, figure, percent, plain_value, signed_percent
from anadil.report.measures_view import UNSURE, UNSURE_NOTE, ends_of, estimates, interval_words
from anadil.report.read import Facts, Json, field, named_tables, table_of
from anadil.report.verdict import (
    before,
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
# Language of the published figures; they say nothing about words and bytes of others.
PUBLISHED_LANGUAGE = "az"
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
    """One large figure: before, after, and as others published it."""

    name: str
    unit: str
    of: str
    compared: str = "base"
    before: str
    after: str
    change: str
    better: bool | None
    """True if the figure moved in the better direction; None if unchanged or unknown."""
    published: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresView:
    """Scores of the held-out text, and the large figures at the head of the page."""

    headlines: tuple[Headline, ...]
    candidates: Table
    counters: Table
    charts: tuple[Chart, ...]
    differences: Table
    contamination: Table
    heldout: Table
    checks: Table

    @property
    def has_published(self) -> bool:
        """True if others published such figures for this language."""
        return any(headline.published for headline in self.headlines)


def scores_view(facts: Facts) -> ScoresView:
    """Build the section on scores from `scores.json`."""
    scores = facts.scores
    candidates, differences = candidates_of(scores), _differences(scores)
    return ScoresView(
        headlines=_headlines(scores, facts.language.code),
        candidates=_figures("Candidates on the same held-out text", candidates, FIGURES),
        counters=_figures("Counts behind the figures", candidates, COUNTERS),
        charts=_charts(candidates, differences),
        differences=_difference_table("Differences in bits per byte, paired by document", differences),
        contamination=facts_table(
            "Held-out text that training has seen", table_of(scores.get("contamination"))
        ),
        heldout=facts_table("The held-out text", table_of(scores.get("heldout")) | _tuning(scores)),
        checks=_checks(scores),
    )


def _tuning(scores: Json) -> Json:
    """Documents of each text that are not scored, since a merge was tuned by them."""
    tuning = table_of(scores.get("tuning"))
    texts = {"heldout": table_of(tuning.get("heldout")), **dict(named_tables(tuning.get("retained")))}
    return {
        f"for_tuning_{name}": f"{figure(each.get('tuning'))} not scored, {figure(each.get('scored'))} scored"
        for name, each in texts.items()
        if each
    }


def loop_rate(candidate: Json) -> float | None:
    """Share of a candidate's greedy generations that end in a loop; sampling hides loops."""
    return number(field(candidate, "repetition.greedy.loop_rate"))


def _headlines(scores: Json, language: str) -> tuple[Headline, ...]:
    """Large figures of the released model; without one, of the adapted model, and nothing is marked better."""
    candidates, released = candidates_of(scores), released_name(scores)
    of = released or next(iter(subjects_of(scores)), "adapted")
    earlier = before(scores)
    base, trained, model = (candidates.get(name, {}) for name in ("base", earlier, of))
    context = number(model.get("context"))
    room = f"in {figure(context)} tokens, more is better" if context is not None else "more is better"
    rows = (
        ("Bits per byte", "lower is better", "bits_per_byte", -1, "0.6830 to 0.5795 (\N{MINUS SIGN}15.2 %)"),
        ("Fertility", "tokens per word, lower is better", "fertility", -1, "3.22 to 1.59 (\N{MINUS SIGN}50.6 %)"),
        ("Words in context", room, "words_in_context", 1, "about 40,000 to about 80,000"),
    )  # fmt: skip
    headlines = [
        _headline(
            name, unit, of, base.get(key), model.get(key), better_way=better_way,
            published=published if language == PUBLISHED_LANGUAGE else "",
        )
        for name, unit, key, better_way, published in rows
    ]  # fmt: skip
    first, last = (field(each, "questions.bits_per_byte") for each in (trained, model))
    if of == "finetuned" and number(first) is not None and number(last) is not None:
        unit = "bits per byte of answers to unseen questions, lower is better"
        headlines.append(_headline("Answers", unit, of, first, last, compared=earlier))
    else:
        headlines.append(_loop_headline(of, loop_rate(base), loop_rate(model)))
    # A model that is not released gets no green figure, whatever moved.
    refused = isinstance(field(scores, "gate.passed"), bool) and not released
    return tuple(replace(each, better=None) if refused and each.better else each for each in headlines)


def _headline(
    name: str,
    unit: str,
    of: str,
    before: object,
    after: object,
    *,
    better_way: int = -1,
    compared: str = "base",
    published: str = "",
) -> Headline:
    change = signed_percent(change_percent(before, after))
    return Headline(
        name=name, unit=unit, of=of, compared=compared, before=figure(before), after=figure(after), change=change,
        better=_better(number(before), number(after), better_way), published=published,
    )  # fmt: skip


def _loop_headline(of: str, before: float | None, after: float | None) -> Headline:
    moved = None if before is None or after is None else (after - before) * 100
    change = DASH if moved is None else f"{signed_percent(moved).removesuffix(' %')} points"
    return Headline(
        name="Loop rate", unit="greedy texts that end in a loop", of=of, before=percent(before),
        after=percent(after), change=change, better=_better(before, after, -1),
    )  # fmt: skip


def _better(before: float | None, after: float | None, better_way: int) -> bool | None:
    """True if a figure moved in the better direction (1 up, -1 down); None if unchanged or unknown."""
    return None if before is None or after is None or before == after else (after - before) * better_way > 0


def _figures(caption: str, candidates: dict[str, Json], known: tuple[tuple[str, str], ...]) -> Table:
    """A row for each candidate, a column for each figure that any of them has."""
    figures = {name: item | {"loops": loop_rate(item)} for name, item in candidates.items()}
    present = [
        (key, label)
        for key, label in known
        if any(number(item.get(key)) is not None for item in figures.values())
    ]
    rows = []
    for name, item in figures.items():
        cells = {key: figure(item.get(key)) for key, _ in present}
        if "loops" in cells:
            count = number(field(item, "repetition.greedy.samples"))
            of = "" if count is None or item.get("loops") is None else f" of {figure(count)}"
            cells["loops"] = f"{percent(item.get('loops'))}{of}"
        rows.append((name, *cells.values()))
    return Table(caption, ("candidate", *(label for _, label in present)), rows if present else ())


def _charts(candidates: dict[str, Json], differences: list[tuple[str, Json]]) -> tuple[Chart, ...]:
    charts = []
    for key, title, unit in (
        ("bits_per_byte", "Bits per byte", "bits per byte, lower is better"),
        ("fertility", "Fertility", "tokens per word, lower is better"),
    ):
        values = [(name, n) for name, item in candidates.items() if (n := number(item.get(key))) is not None]
        drawn = [Bar(name, float(value), COLOURS.get(name, 3)) for name, value in values]
        rows = [(bar.label, figure(bar.value)) for bar in drawn]
        charts.append(bars(title, unit, drawn, Table(title, ("candidate", unit), rows)))
    text = [(label, item) for label, item in differences if "," not in label]
    answers = [
        (label.removesuffix(OF_ANSWERS), item) for label, item in differences if label.endswith(OF_ANSWERS)
    ]
    charts.append(_difference_chart("Differences on held-out text", text))
    charts.append(_difference_chart("Differences on answers to unseen questions", answers))
    return tuple(chart for chart in charts if chart)


def _difference_chart(title: str, named: list[tuple[str, Json]]) -> Chart | None:
    drawn = estimates([(label, item, COLOURS.get(label.partition(" ")[0], 3)) for label, item in named])
    return intervals(title, "bits per byte, below zero is better", drawn, _difference_table(title, named))


def _differences(scores: Json) -> list[tuple[str, Json]]:
    named = named_tables(scores.get("differences"))[:MAX_DIFFERENCES]
    return [(clip(name, 80).replace(" - ", f" {MINUS} "), item) for name, item in named]


def _difference_table(caption: str, named: list[tuple[str, Json]]) -> Table:
    rows = []
    for label, item in named:
        sure = item.get("significant")
        clear = ("yes" if sure else "no, the interval holds 0") if isinstance(sure, bool) else DASH
        ends = interval_words(ends_of(item))
        rows.append((label, figure(item.get("value")), ends, figure(item.get("num_documents")), clear))
    columns = ("difference", "bits per byte", "95 % interval", "documents", "clear")
    return Table(caption, columns, rows, words=(4,))


def _checks(scores: Json) -> Table:
    rows = []
    with_intervals = any(check.get("interval") for check in checks_of(scores))
    for check in checks_of(scores)[:MAX_DIFFERENCES]:
        passed = check.get("passed")
        outcome = ("passed" if passed else "not passed") if isinstance(passed, bool) else DASH
        rows.append(
            (
                check_words(check, before=before(scores)),
                "undecided" if check.get("undecided") is True else outcome,
                f"{plain_value(check.get('value'))}{UNSURE if check.get('unsure') is True else ''}",
                limit_words(check),
                *([interval_words(check.get("interval"))] if with_intervals else []),
                "decides" if check.get("enforced", True) else "shown only",
            )
        )
    # A phone shows the first columns of a table: those that say how it ended.
    columns = ("check", "outcome", "value", "limit", *(["95 % interval"] if with_intervals else []), "weight")
    note = UNSURE_NOTE if any(check.get("unsure") is True for check in checks_of(scores)) else ""
    words = (1, len(columns) - 1)
    return Table("Checks of the quality gate", columns, rows, words=words, note=note)
