"""The first two sections: what became of the text, and how the tokenizers cut it."""

from dataclasses import dataclass

from anadil.report.charts import Bar
from anadil.report.figures import clip, figure, first, list_of, number, percent, plain, table_of
from anadil.report.read import Facts, Json, last_part, named_tables
from anadil.report.view import Chart, Table, bars

MAX_RULES = 30
MAX_SAMPLE = 600
"""Characters of a rejected document that the page shows."""
MAX_WORDS = 16
MAX_PIECES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """One dropped document, to judge the rule by."""

    rule: str
    text: str
    source: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusView:
    """Section 1."""

    came: str
    kept: str
    kept_share: str
    funnel: Chart | None
    dropped: Chart | None
    rejected: tuple[Rejected, ...]
    size: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One word and how each candidate cuts it."""

    word: str
    pieces: tuple[tuple[str, tuple[str, ...]], ...]
    """(candidate, its pieces), the candidates in the order of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerView:
    """Section 2."""

    chosen: str
    reason: str
    candidates: Table
    fertility: Chart | None
    cuts: tuple[Cut, ...]


def corpus_view(facts: Facts) -> CorpusView:
    """What came in, what stayed, and why the rest did not."""
    stats = facts.stats
    came, kept = number(stats.get("in")), number(stats.get("kept"))
    share = percent(kept / came) if came and kept is not None else percent(None)
    return CorpusView(
        came=figure(came),
        kept=figure(kept),
        kept_share=share,
        funnel=_funnel(facts),
        dropped=_dropped(stats),
        rejected=tuple(_rejected(rule, lines[0]) for rule, lines in facts.rejected.items() if lines)[
            :MAX_RULES
        ],
        size=_size(stats),
    )


def drops(stats: Json) -> list[tuple[str, float]]:
    """(rule, documents) of every rule that dropped some, the largest first."""
    counts = [(rule, number(count)) for rule, count in table_of(stats.get("dropped")).items()]
    found = [(rule, float(count)) for rule, count in counts if count]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def parts_of(facts: Facts) -> list[tuple[str, float]]:
    """(part, documents) of the corpus: what is trained on, what is held out."""
    manifest = facts.manifests.get("corpus")
    records: dict[str, object] = dict(manifest.records) if manifest else {}
    found = []
    for part, label in (("train", "training"), ("heldout", "held out")):
        count = number(first({"s": facts.stats, "r": records}, f"s.{part}", f"s.parts.{part}", f"r.{part}"))
        if count is not None:
            found.append((label, float(count)))
    return found


def _funnel(facts: Facts) -> Chart | None:
    stages = [("came in", number(facts.stats.get("in"))), ("kept", number(facts.stats.get("kept")))]
    stages += parts_of(facts)
    known = [(label, float(count)) for label, count in stages if count is not None]
    came = known[0][1] if known else 0
    rows = tuple((label, figure(int(n)), percent(n / came if came else None)) for label, n in known)
    drawn = [Bar(label=label, value=n, colour=0 if place == 0 else 1) for place, (label, n) in enumerate(known)]
    table = Table(caption="Documents on their way into the corpus", columns=("", "documents", "of all"), rows=rows)
    return bars("From raw text to training", "documents", drawn, table)


def _dropped(stats: Json) -> Chart | None:
    found = drops(stats)
    total = sum(count for _, count in found)
    came = number(stats.get("in"))
    rows = tuple(
        (rule, figure(int(count)), percent(count / total), percent(count / came if came else None))
        for rule, count in found
    )
    rest = sum(count for _, count in found[MAX_RULES:])
    drawn = [Bar(label=rule, value=count) for rule, count in found[:MAX_RULES]]
    if rest:
        drawn.append(Bar(label="other rules", value=rest, colour=0))
    table = Table(
        caption="Dropped documents by the first rule that they broke",
        columns=("rule", "documents", "of dropped", "of all"),
        rows=rows,
    )
    return bars("Dropped by rule", "documents", drawn, table)


def _rejected(rule: str, line: Json) -> Rejected:
    source = first(line, "url") or last_part(str(line.get("source") or ""))
    known = {"id", "text", "source", "url", "rule", "reason"}
    more = [f"{key} {plain(value)}" for key, value in line.items() if key not in known]
    detail = ", ".join(item for item in more if not item.endswith(("\N{EM DASH}", " ")))
    return Rejected(
        rule=rule,
        text=clip(line.get("text"), MAX_SAMPLE),
        source=clip(source, 160),
        detail=clip(detail, 200),
    )


def _size(stats: Json) -> Table:
    rows = [
        (key.replace("_", " "), figure(value))
        for key, value in stats.items()
        if number(value) is not None and key not in ("in", "kept")
    ]
    return Table(caption="The corpus in numbers", columns=("", "value"), rows=tuple(rows[:30]))


def tokenizer_view(facts: Facts) -> TokenizerView:
    """The candidates beside each other, and which one goes on."""
    candidates = candidates_of(facts)
    chosen = chosen_of(facts)
    names = [name for name, _ in candidates]
    rows = tuple(
        (
            name,
            figure(first(table, "vocab_size", "vocabulary", "num_tokens_vocab", "size")),
            figure(table.get("fertility")),
            figure(table.get("bytes_per_token")),
            figure(first(table, "words_in_context")),
        )
        for name, table in candidates
    )
    columns = ("candidate", "vocabulary", "tokens per word", "bytes per token", "words in context")
    if all(row[4] == figure(None) for row in rows):
        columns, rows = columns[:4], tuple(row[:4] for row in rows)
    table = Table(
        caption="Tokenizers that were compared on held-out text",
        columns=columns,
        rows=rows,
        marked=names.index(chosen) if chosen in names else None,
    )
    drawn = [
        Bar(label=name, value=float(value), colour=1 if name == chosen else 0)
        for name, item in candidates
        if (value := number(item.get("fertility"))) is not None
    ]
    return TokenizerView(
        chosen=chosen,
        reason=clip(first(facts.choice, "reason", "why") or "", 300),
        candidates=table,
        fertility=bars("Fertility by tokenizer", "tokens per word", drawn, table),
        cuts=_cuts(candidates),
    )


def candidates_of(facts: Facts) -> list[tuple[str, Json]]:
    """(name, figures) of every tokenizer that was compared."""
    return named_tables(facts.fertility.get("candidates", facts.fertility))


def chosen_of(facts: Facts) -> str:
    """Name of the tokenizer that goes on; the only one where there was no choice."""
    found = first({"c": facts.choice, "f": facts.fertility}, "c.chosen", "c.name", "c.choice", "f.chosen", "f.choice")
    names = [name for name, _ in candidates_of(facts)]
    if found is None and len(names) == 1:
        return names[0]
    return "" if found is None else clip(found, 80)


def _cuts(candidates: list[tuple[str, Json]]) -> tuple[Cut, ...]:
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, table in candidates:
        for word, pieces in _segmentations(table):
            cut = tuple(clip(piece, 40) for piece in pieces[:MAX_PIECES])
            found.setdefault(word, []).append((name, cut))
    return tuple(Cut(word=clip(word, 80), pieces=tuple(cuts)) for word, cuts in found.items())[:MAX_WORDS]


def _segmentations(table: Json) -> list[tuple[str, list[object]]]:
    samples = first(table, "samples", "segmentations", "examples")
    if isinstance(samples, dict):
        return [(str(word), list_of(pieces)) for word, pieces in samples.items()]
    entries = [table_of(entry) for entry in list_of(samples)]
    return [(str(e.get("word", "")), list_of(first(e, "pieces", "tokens"))) for e in entries]
