"""The section on the corpus: documents read, kept and dropped, with the reasons."""

from dataclasses import dataclass

from anadil.core.format import human_bytes, integer_if_whole, number
from anadil.report.charts import Bar
from anadil.report.elements import Chart, TextTable, bars, facts_table
from anadil.report.format import clip, figure, percent, plain_value, setting, words_of
from anadil.report.read import Facts, Json, field, last_part, list_of, named_tables, table_of

PARTS = {"train": "training", "heldout": "held out"}
CHARTED = (
    "in",
    "kept",
    "dropped",
    "rules",
    "limits_tried",
    "lengths",
    "by_source",
    "hosts",
    "bytes_dropped",
    "extraction",
)
"""Keys that charts and other tables show."""
EXTRACTORS = ("resiliparse", "trafilatura")
MAX_RULES = 30
MAX_REJECTED_SAMPLE = 600
"""Characters of a rejected document that the page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """One dropped document, to judge the rule by."""

    rule: str
    count: str
    text: str
    source: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusView:
    """Section 1."""

    came: str
    kept: str
    kept_known: bool
    kept_share: str
    extent: str
    """Words and bytes of what stayed; empty if nothing says it."""
    funnel: Chart | None
    dropped: Chart | None
    rules: TextTable
    limits: TextTable
    prose: TextTable
    """Prose that extractors discarded or restored."""
    lengths: tuple[Chart, ...]
    rejected: tuple[Rejected, ...]
    samples: tuple[Rejected, ...]
    """Kept documents."""
    size: TextTable


def corpus_view(facts: Facts) -> CorpusView:
    """Build the section on the corpus."""
    stats = facts.stats
    num_read, num_kept = number(stats.get("in")), number(stats.get("kept"))
    share = percent(num_kept / num_read) if num_read and num_kept is not None else percent(None)
    return CorpusView(
        came=figure(num_read),
        kept=figure(num_kept),
        kept_known=num_kept is not None,
        kept_share=share,
        funnel=_funnel(facts),
        dropped=_dropped(stats),
        extent=_extent(stats),
        rules=_rules(stats),
        limits=_limits(stats),
        prose=_prose(stats),
        lengths=_lengths(stats),
        rejected=_rejected(facts),
        samples=tuple(_sample("kept", line, None) for line in facts.kept),
        size=facts_table("The corpus in numbers", {key: stats[key] for key in stats if key not in CHARTED}),
    )


def drops(stats: Json) -> list[tuple[str, float]]:
    """(rule, documents) of every rule that dropped some, the largest first."""
    counts = [(rule, number(count)) for rule, count in table_of(stats.get("dropped")).items()]
    dropped = [(rule, float(count)) for rule, count in counts if count]
    return sorted(dropped, key=lambda item: (-item[1], item[0]))


def parts_of(facts: Facts) -> list[tuple[str, float]]:
    """(part, documents) of the corpus: what is trained on, what is held out."""
    counts = [(part, number(field(facts.stats, f"records.{part}"))) for part in PARTS]
    return [(part, float(count)) for part, count in counts if count is not None]


def _funnel(facts: Facts) -> Chart | None:
    stages = [("came in", number(facts.stats.get("in"))), ("kept", number(facts.stats.get("kept")))]
    stages += [(PARTS[part], count) for part, count in parts_of(facts)]
    known = [(label, float(count)) for label, count in stages if count is not None]
    came = known[0][1] if known else 0
    rows = tuple((label, figure(int(n)), percent(n / came if came else None)) for label, n in known)
    drawn = [
        Bar(label=label, value=n, colour=0 if place == 0 else 1) for place, (label, n) in enumerate(known)
    ]
    table = TextTable(
        caption="Documents on their way into the corpus", columns=("", "documents", "of all"), rows=rows
    )
    return bars("From raw text to training", "documents", drawn, table)


def _dropped(stats: Json) -> Chart | None:
    dropped = drops(stats)
    total = sum(count for _, count in dropped)
    came = number(stats.get("in"))
    rows = tuple(
        (words_of(rule), figure(int(count)), percent(count / total), percent(count / came if came else None))
        for rule, count in dropped
    )
    # The chart shows the largest rules; the table below it has all.
    rest = sum(count for _, count in dropped[MAX_RULES:])
    drawn = [Bar(label=words_of(rule), value=count) for rule, count in dropped[:MAX_RULES]]
    if rest:
        drawn.append(Bar(label="other rules", value=rest, colour=0))
    table = TextTable(
        caption="Dropped documents by the first rule that they broke",
        columns=("rule", "documents", "of dropped", "of all"),
        rows=rows,
    )
    return bars("Dropped by rule", "documents", drawn, table)


def _rules(stats: Json) -> TextTable:
    """A row for each rule: drops alone, drops of no other rule, drops as the first reason."""
    came = number(stats.get("in"))
    rows = []
    for rule, counts in named_tables(stats.get("rules")):
        marginal, unique, chosen = (number(counts.get(key)) for key in ("marginal", "unique", "chosen"))
        share = percent(marginal / came if came and marginal is not None else None)
        mode = "only counted" if counts.get("mode") == "report" else "drops"
        rows.append((words_of(rule), mode, *map(figure, (marginal, unique, chosen)), share))
    return TextTable(
        caption="Documents that each rule drops",
        columns=("rule", "", "alone", "no other", "first", "alone, of all"),
        rows=tuple(rows),
        words=(1,),
        note="Alone: dropped if it were the only rule. No other: kept without it. First: it is the stated reason. Pages dropped before extraction were judged by one rule.",
    )


def _limits(stats: Json) -> TextTable:
    """Limits beside those in force, each with the share of the documents that it would drop."""
    rows = []
    for key, table in named_tables(stats.get("limits_tried")):
        documents = number(table.get("documents"))
        cells = []
        for limit, count, *_ in ([*list_of(pair), None, None] for pair in list_of(table.get("tried"))):
            dropped = number(count)
            share = percent(dropped / documents if documents and dropped is not None else None)
            cells.append(f"{setting(limit)}: {share}")
        rows.append((key, *cells))
    return TextTable(
        caption="What other limits would drop",
        columns=("clean.rules", "half", "three quarters", "in force", "1.5 times", "twice"),
        rows=tuple(rows),
        note="Share of the documents that no other rule drops, before deduplication. A smaller max_ limit and a larger min_ limit drop more.",
    )


def _prose(stats: Json) -> TextTable:
    """Prose of web pages that extractors discarded, by extractor."""
    extraction = table_of(stats.get("extraction"))
    named = number(extraction.get("lost_by_name"))
    counts = {
        name: [
            number(extraction.get(f"{count}_{name}")) for count in ("pages_by", "restored_after", "lost_by")
        ]
        for name in EXTRACTORS
    }
    return TextTable(
        caption="Prose of web pages that the extractors discarded",
        columns=("extractor", "pages", "characters put back", "characters lost"),
        rows=tuple((name.capitalize(), *map(figure, row)) for name, row in counts.items() if row[0]),
        note="Sentences outside of menus, footers and lists of links. Sentences within the article are put back in place. Those before or after it, such as comments, are not."
        + (
            f" Menus, footers, dialogs and captions hold {named:,.0f} more characters of sentences."
            if named
            else ""
        ),
    )


def _lengths(stats: Json) -> tuple[Chart, ...]:
    """Kept and dropped documents by bytes of text."""
    histogram = [table_of(row) for row in list_of(stats.get("lengths"))]
    charts = []
    for word in ("kept", "dropped"):
        counts = [(number(row.get("bytes")), number(row.get(word))) for row in histogram]
        known = [(human_bytes(size), float(count)) for size, count in counts if size and count is not None]
        table = TextTable(
            caption=f"{word.capitalize()} documents by length",
            columns=("text of this size up to twice it", "documents"),
            rows=tuple((label, figure(int(count))) for label, count in known),
        )
        drawn = [Bar(label=f"from {label}", value=n, colour=int(word == "kept")) for label, n in known]
        charts.append(bars(table.caption, "documents", drawn, table) if any(n for _, n in known) else None)
    return tuple(chart for chart in charts if chart)


def _extent(stats: Json) -> str:
    words, size = number(stats.get("words_out")), number(stats.get("bytes_out"))
    parts = [] if words is None else [f"{figure(integer_if_whole(words))} words"]
    return ", ".join(parts if size is None else [*parts, human_bytes(size)])


def _rejected(facts: Facts) -> tuple[Rejected, ...]:
    """One sample of each rule, in the order of the chart."""
    counts = dict(drops(facts.stats))
    ordered = sorted(facts.rejected, key=lambda rule: (-counts.get(rule, 0), rule))
    shown = [(rule, facts.rejected[rule][0]) for rule in ordered if facts.rejected[rule]]
    return tuple(_sample(rule, line, counts.get(rule)) for rule, line in shown[:MAX_RULES])


def _sample(rule: str, line: Json, count: float | None) -> Rejected:
    source = line.get("url") or last_part(str(line.get("source") or ""))
    known = {"id", "text", "source", "url", "lang", "rule", "reason"}
    more = [
        f"{words_of(key)} {plain_value(value)}"
        for key, value in line.items()
        if value not in (None, "") and key not in known
    ]
    return Rejected(
        rule=words_of(rule),
        count=""
        if count is None
        else f"{figure(integer_if_whole(count))} document{'' if count == 1 else 's'}",
        text=clip(line.get("text"), MAX_REJECTED_SAMPLE),
        source=clip(source, 160),
        detail=clip(", ".join(more), 200),
    )
