"""The section on the tokenizer: the candidates, which one goes on, and how they cut words."""

from dataclasses import dataclass

from anadil.core.format import number
from anadil.report.charts import Bar
from anadil.report.elements import Chart, TextTable, bars
from anadil.report.format import clip, figure
from anadil.report.read import Facts, Json, list_of, named_tables, table_of

MAX_WORDS = 16
MAX_PIECES = 60


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
    warnings: tuple[str, ...]
    """Of candidates whose tokens the corpus hardly uses."""
    candidates: TextTable
    fertility: Chart | None
    cuts: tuple[Cut, ...]
    has_fragments: bool
    """Whether a piece is part of a letter."""


def tokenizer_view(facts: Facts) -> TokenizerView:
    """The candidates beside each other, and which one goes on."""
    candidates = tokenizers_of(facts)
    chosen = clip(facts.fertility.get("chosen"), 80)
    names = [name for name, _ in candidates]
    rows = tuple(
        (
            name,
            figure(table.get("vocab_size")),
            figure(table.get("fertility")),
            figure(table.get("bytes_per_token")),
        )
        for name, table in candidates
    )
    table = TextTable(
        caption="Tokenizers that were compared on held-out text",
        columns=("candidate", "vocabulary", "tokens per word", "bytes per token"),
        rows=rows,
        marked=names.index(chosen) if chosen in names else None,
    )
    drawn = [
        Bar(label=name, value=float(value), colour=1 if name == chosen else 0)
        for name, item in candidates
        if (value := number(item.get("fertility"))) is not None
    ]
    cuts = _cuts(candidates)
    return TokenizerView(
        chosen=chosen,
        reason=clip(facts.choice.get("reason"), 300),
        warnings=tuple(clip(text, 400) for text in list_of(facts.fertility.get("warnings"))),
        candidates=table,
        fertility=bars("Fertility by tokenizer", "tokens per word", drawn, table),
        cuts=cuts,
        has_fragments=any("\ufffd" in piece for cut in cuts for _, own in cut.pieces for piece in own),
    )


def tokenizers_of(facts: Facts) -> list[tuple[str, Json]]:
    """(name, figures) of every tokenizer that was compared."""
    return named_tables(facts.fertility.get("candidates"))


def _cuts(candidates: list[tuple[str, Json]]) -> tuple[Cut, ...]:
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, table in candidates:
        for word, pieces in table_of(table.get("samples")).items():
            cut = tuple(clip(piece, 40) for piece in list_of(pieces)[:MAX_PIECES])
            found.setdefault(word, []).append((name, cut))
    return tuple(Cut(word=clip(word, 80), pieces=tuple(cuts)) for word, cuts in found.items())[:MAX_WORDS]
