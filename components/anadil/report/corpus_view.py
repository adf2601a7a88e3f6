"""The section on the corpus: documents read, kept and dropped, with the reasons."""

from collections.abc import Callable, Sequence

from anadil.core.format import human_bytes, integer_if_whole, number
from anadil.core.table import Table
from anadil.page.charts import Bar, Chart, bars, facts_table
from anadil.page.format import clip, figure, percent, plain_value, ratio, setting, words_of
from anadil.page.values import Json, field, last_part, list_of, named_tables, table_of
from anadil.report.data_card import corpora_table, directions_of, rules_note
from anadil.report.read import CorpusFacts, Facts, recipe_language
from anadil.text.language_data import Language

PARTS = {"train": "training", "heldout": "held out"}
CHARTED = (
    "in", "kept", "dropped", "rules", "limits_tried", "lengths", "by_source", "hosts", "bytes_dropped", "extraction",
    "quality",
)  # fmt: skip
"""Keys that charts and other tables show."""
EXTRACTORS = ("resiliparse", "trafilatura")
MAX_RULES = 30
MAX_REJECTED_SAMPLE = 600
"""Characters of a rejected document that the page shows."""
MAX_EXCERPT = 200
MAX_WORDS = 16
MAX_PIECES = 60
Cuts = list[tuple[str, list[tuple[str, tuple[str, ...]]]]]
"""(word, [(candidate, its pieces)]), the candidates in the order of the table."""
Print = Callable[[object], str]
FIGURES: tuple[tuple[str, str, Print], ...] = (
    ("cost.relative", "compute per word, over the base's", figure),
    ("cost.tokens_per_word", "tokens per word, mean of the domains", figure),
    ("fertility", "tokens per word, all held-out text", figure),
    ("bytes_per_token", "bytes per token", figure),
    ("words_in_context", "words in the context", figure),
    ("continued_words", "words cut into several tokens", percent),
    ("single_token_words", "different words that are one token", percent),
    ("morphology.score", "token borders agree with suffixes", percent),
    ("vocab_size", "vocabulary", figure),
    ("cost.embedding_parameters_added", "embedding parameters added", figure),
    ("own_tokens", "own tokens", figure),
    ("own_share", "of them used often enough to be learnt", percent),
    ("uses.never", "tokens the corpus never uses", figure),
    ("uses.under_10", "tokens used under 10 times", figure),
    ("uses.under_100", "tokens used under 100 times", figure),
    ("tokens_per_cpu_s", "tokens encoded per CPU-second", figure),
)
"""Path in a candidate's entry, label of the row, and the format of its cells."""


def corpus_view(facts: Facts) -> dict[str, object]:
    """Build the section on the corpora, by the names of the template."""
    stats = facts.stats
    num_read, num_kept = number(stats.get("in")), number(stats.get("kept"))
    words, size = number(stats.get("words_out")), number(stats.get("bytes_out"))
    extent = [] if words is None else [f"{figure(integer_if_whole(words))} words"]
    return {
        "came": figure(num_read),
        "kept": figure(num_kept),
        "kept_known": num_kept is not None,
        "kept_share": percent(ratio(num_read, num_kept)),
        "extent": ", ".join(extent if size is None else [*extent, human_bytes(size)]),
        "mixture": corpora_table(facts.corpora, facts.training_summary),
        "parts": [_part(each) for each in facts.corpora],
    }


def _part(corpus: CorpusFacts) -> dict[str, object]:
    stats, counts = corpus.stats, dict(drops(corpus.stats))
    # One sample of each rule, in the order of the chart.
    ordered = sorted(corpus.rejected, key=lambda rule: (-counts.get(rule, 0), rule))
    shown = [(rule, corpus.rejected[rule][0]) for rule in ordered if corpus.rejected[rule]]
    return {
        "source": corpus.source,
        "lang": recipe_language(corpus.recipe).lang,
        "rules_note": rules_note(stats),
        "funnel": _funnel(stats),
        "dropped": _dropped(stats),
        "rules": _rules(stats),
        "limits": _limits(stats),
        "quality": _quality(stats),
        "prose": _prose(stats),
        "lengths": _lengths(stats),
        "rejected": [_sample(rule, line, counts.get(rule)) for rule, line in shown[:MAX_RULES]],
        "samples": [_sample("kept", line, None) for line in corpus.samples],
        "size": facts_table(
            "The corpus in numbers", {key: stats[key] for key in stats if key not in CHARTED}
        ),
    }


def drops(stats: Json) -> list[tuple[str, float]]:
    """(rule, documents) of every rule that dropped some, the largest first."""
    counts = [(rule, number(count)) for rule, count in table_of(stats.get("dropped")).items()]
    return sorted([(rule, float(n)) for rule, n in counts if n], key=lambda item: (-item[1], item[0]))


def parts_of(stats: Json) -> list[tuple[str, float]]:
    """(part, documents) of the corpus: those to train on, and those held out."""
    counts = [(part, number(field(stats, f"records.{part}"))) for part in PARTS]
    return [(part, float(count)) for part, count in counts if count is not None]


def _funnel(stats: Json) -> Chart | None:
    stages = [("read", number(stats.get("in"))), ("kept", number(stats.get("kept")))]
    stages += [(PARTS[part], count / directions_of(stats)) for part, count in parts_of(stats)]
    known = [(label, float(count)) for label, count in stages if count is not None]
    came = known[0][1] if known else 0
    rows = [(label, figure(int(n)), percent(ratio(came, n))) for label, n in known]
    drawn = [Bar(label, n, min(place, 1)) for place, (label, n) in enumerate(known)]
    table = Table("Documents by step", ("", "documents", "of all"), rows)
    return bars("From raw text to training", "documents", drawn, table)


def _dropped(stats: Json) -> Chart | None:
    dropped = drops(stats)
    total = sum(count for _, count in dropped)
    rows = [
        (words_of(rule), figure(int(n)), percent(n / total), percent(ratio(stats.get("in"), n)))
        for rule, n in dropped
    ]
    # The chart shows the largest rules; the table below it has all.
    drawn = [Bar(words_of(rule), count) for rule, count in dropped[:MAX_RULES]]
    if rest := sum(count for _, count in dropped[MAX_RULES:]):
        drawn.append(Bar("other rules", rest, 0))
    caption = "Dropped documents by the first rule that they broke"
    table = Table(caption, ("rule", "documents", "of dropped", "of all"), rows)
    return bars("Dropped by rule", "documents", drawn, table)


def _rules(stats: Json) -> Table:
    """A row for each rule: drops alone, drops of no other rule, drops as the first reason."""
    rows = []
    for rule, counts in named_tables(stats.get("rules")):
        shown = [number(counts.get(key)) for key in ("marginal", "unique", "chosen")]
        mode = "only counted" if counts.get("mode") == "report" else "drops"
        rows.append((words_of(rule), mode, *map(figure, shown), percent(ratio(stats.get("in"), shown[0]))))
    return Table(
        "Documents that each rule drops",
        ("rule", "", "alone", "no other", "first", "alone, of all"),
        rows,
        words=(1,),
        note="Alone: dropped if it were the only rule. No other: kept without it. First: it is the stated reason. Pages dropped before extraction were judged by one rule.",
    )


def _limits(stats: Json) -> Table:
    """Limits beside those in force, each with the share of the documents that it would drop."""
    rows = []
    for key, table in named_tables(stats.get("limits_tried")):
        tried = [[*list_of(pair), None, None][:2] for pair in list_of(table.get("tried"))]
        rows.append(
            (key, *(f"{setting(limit)}: {percent(ratio(table.get('documents'), n))}" for limit, n in tried))
        )
    return Table(
        "What other limits would drop",
        ("clean.rules", "half", "three quarters", "in force", "1.5 times", "twice"),
        rows,
        note="Share of the documents that no other rule drops, before deduplication. A smaller max_ limit and a larger min_ limit drop more.",
    )


def _quality(stats: Json) -> Table:
    """A row for each tenth of the documents by their score, with a text of it."""
    quality = table_of(stats.get("quality"))
    rows, words = [], 0.0
    for each in map(table_of, list_of(quality.get("tenths"))):
        words += number(each.get("words")) or 0
        share = percent(ratio(quality.get("words"), words))
        rows.append(
            (
                setting(each.get("from")),
                figure(each.get("documents")),
                share,
                clip(each.get("text"), MAX_EXCERPT),
            )
        )
    note = "Documents that no rule drops and that repeat no other. `clean.quality: top 15 %` keeps the best of them by words."
    if (threshold := number(quality.get("threshold"))) is not None:
        part = percent(ratio(quality.get("words"), number(quality.get("words_kept"))))
        note += f" This corpus keeps scores of {threshold:.4f} and more, with {part} of the words."
    columns = ("score from", "documents", "words from here up", "a text")
    return Table("Quality scores by tenth", columns, rows, words=(3,), note=note if rows else "")


def _prose(stats: Json) -> Table:
    """Prose of web pages that extractors discarded, by extractor."""
    extraction = table_of(stats.get("extraction"))
    rows = [
        (name.capitalize(), *(figure(extraction.get(f"{count}_{name}")) for count in ("pages_by", "restored_after", "lost_by")))
        for name in EXTRACTORS
        if number(extraction.get(f"pages_by_{name}"))
    ]  # fmt: skip
    note = "Sentences outside of menus, footers and lists of links. Sentences within the article are put back in place. Those before or after it, such as comments, are not."
    if named := number(extraction.get("lost_by_name")):
        note += f" Menus, footers, dialogs and captions hold {named:,.0f} more characters of sentences."
    if deleted := number(extraction.get("deleted")):
        note += f" Text that pages show crossed out went: {deleted:,.0f} characters."
    columns = ("extractor", "pages", "characters put back", "characters lost")
    return Table("Prose of web pages that the extractors discarded", columns, rows, note=note)


def _lengths(stats: Json) -> list[Chart]:
    histogram = [table_of(row) for row in list_of(stats.get("lengths"))]
    charts = []
    for word in ("kept", "dropped"):
        counts = [(number(row.get("bytes")), number(row.get(word))) for row in histogram]
        known = [(human_bytes(size), float(count)) for size, count in counts if size and count is not None]
        rows = [(label, figure(int(count))) for label, count in known]
        title = f"{word.capitalize()} documents by length"
        table = Table(title, ("text of this size up to twice it", "documents"), rows)
        drawn = [Bar(f"from {label}", n, int(word == "kept")) for label, n in known]
        charts.append(bars(title, "documents", drawn if any(n for _, n in known) else [], table))
    return [chart for chart in charts if chart]


def _sample(rule: str, line: Json, count: float | None) -> dict[str, str]:
    known = {"id", "text", "source", "url", "lang", "rule", "reason"}
    more = [
        f"{words_of(key)} {plain_value(value)}"
        for key, value in line.items()
        if value not in (None, "") and key not in known
    ]
    return {
        "rule": words_of(rule),
        "count": "" if count is None else f"{figure(integer_if_whole(count))} document{'s' * (count != 1)}",
        "text": clip(line.get("text"), MAX_REJECTED_SAMPLE),
        "source": clip(line.get("url") or last_part(str(line.get("source") or "")), 160),
        "detail": clip(", ".join(more), 200),
    }


def tokenizer_view(facts: Facts) -> dict[str, object]:
    """Build the section on the tokenizer, by the names of the template."""
    candidates = [(name, _derived(name, table, facts)) for name, table in tokenizers_of(facts)]
    chosen = clip(facts.winner or facts.fertility.get("chosen"), 80)
    rows = [
        (label, *(show(field(table, path)) for _, table in candidates))
        for path, label, show in FIGURES
        if any(number(field(table, path)) is not None for _, table in candidates)
    ]
    for part, text in (("domains", "tokens per word: {}"), ("keep", "tokens per word, to be kept: {}")):
        parts = [table_of(table.get(part)) for _, table in candidates]
        for name in dict.fromkeys(name for names in parts for name in names):
            cells = (figure(table_of(names.get(name)).get("fertility")) for names in parts)
            rows.append((text.format(clip(name, 60)), *cells))
    heads = (f"{name} (chosen)" if name == chosen else name for name, _ in candidates)
    table = Table("Tokenizers that were compared on held-out text", ("", *heads), rows, pinned=True)
    cuts = _cuts(candidates, facts.language)
    reasons = [
        (name, clip(why, 300))
        for name, entry in named_tables(facts.choice.get("candidates"))
        if (why := entry.get("why_not"))
    ]
    return {
        "chosen": chosen,
        "reason": clip(facts.choice.get("reason"), 600),
        "rule": clip(field(facts.choice, "rule.text"), 900),
        "why_not": Table("Why not the others", ("candidate", "why not"), reasons, words=(1,)),
        "warnings": [clip(text, 400) for text in list_of(facts.fertility.get("warnings"))],
        "candidates": table,
        "costs": _chart(candidates, chosen, table),
        "cuts": cuts,
        "has_fragments": any("\ufffd" in piece for _, cut in cuts for _, pieces in cut for piece in pieces),
    }


def tokenizers_of(facts: Facts) -> list[tuple[str, Json]]:
    """(name, figures) of every tokenizer that was compared."""
    return named_tables(facts.fertility.get("candidates"))


def _derived(name: str, table: Json, facts: Facts) -> Json:
    domains = [entry for _, entry in named_tables(table.get("domains"))]
    more: Json = {
        key: _mean([(number(entry.get(key)), number(entry.get("num_words"))) for entry in domains])
        for key in ("words_in_context", "continued_words", "single_token_words")
    }
    words = more["words_in_context"]
    more["words_in_context"] = round(words) if isinstance(words, float) else None
    more["own_share"] = ratio(table.get("own_tokens"), table.get("own_tokens_seen"))
    more["tokens_per_cpu_s"] = field(facts.tokenizer_speed, f"{name}.tokens_per_cpu_s")
    return table | more


def _mean(values: Sequence[tuple[float | None, float | None]]) -> float | None:
    """The mean of (figure, number of words) by words; None where nothing was measured."""
    pairs = [(value, float(weight or 0)) for value, weight in values if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _chart(candidates: Sequence[tuple[str, Json]], chosen: str, table: Table) -> Chart | None:
    """The figure that decides; tokens per word if the artifact lacks it."""
    by_cost = any(number(field(table, "cost.relative")) is not None for _, table in candidates)
    path = "cost.relative" if by_cost else "fertility"
    drawn = [
        Bar(name, float(value), int(name == chosen))
        for name, item in candidates
        if (value := number(field(item, path))) is not None
    ]
    if by_cost:
        return bars("Compute per word by tokenizer", "over the base's", drawn, table)
    return bars("Fertility by tokenizer", "tokens per word", drawn, table)


def _cuts(candidates: Sequence[tuple[str, Json]], language: Language) -> Cuts:
    """The sample words in the language's script, such as no names of programs in Japanese; all where none is."""
    by_word: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, table in candidates:
        for word, pieces in table_of(table.get("samples")).items():
            cut = tuple(clip(piece, 40) for piece in list_of(pieces)[:MAX_PIECES])
            by_word.setdefault(word, []).append((name, cut))
    in_script = {word: cuts for word, cuts in by_word.items() if any(map(language.is_script, word))}
    return [(clip(word, 80), cuts) for word, cuts in (in_script or by_word).items()][:MAX_WORDS]
