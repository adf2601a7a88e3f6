"""The section on the tokenizer: the candidates, which one was chosen and why, and how they cut words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from anadil.core.format import number
from anadil.report.charts import Bar
from anadil.report.elements import Chart, TextTable, bars
from anadil.report.format import clip, figure, percent
from anadil.report.read import Facts, Json, field, list_of, named_tables, table_of
from anadil.text.language_data import Language

MAX_WORDS = 16
MAX_PIECES = 60

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
"""Path in a candidate's entry, what the row is called, and how its cells are printed."""


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
    rule: str
    why_not: TextTable
    """A row for each rejected candidate."""
    warnings: tuple[str, ...]
    """Candidates whose tokens the corpus hardly uses."""
    candidates: TextTable
    """A column for each."""
    costs: Chart | None
    cuts: tuple[Cut, ...]
    has_fragments: bool
    """Some piece is part of a letter."""


def tokenizer_view(facts: Facts) -> TokenizerView:
    """The candidates beside each other, and which one was chosen."""
    candidates = [(name, _derived(name, table, facts)) for name, table in tokenizers_of(facts)]
    chosen = clip(facts.trial.get("winner") or facts.fertility.get("chosen"), 80)
    table = _table(candidates, chosen)
    cuts = _cuts(candidates, facts.language)
    reasons = [
        (name, clip(why, 300))
        for name, entry in named_tables(facts.choice.get("candidates"))
        if (why := entry.get("why_not"))
    ]
    return TokenizerView(
        chosen=chosen,
        reason=clip(facts.choice.get("reason"), 600),
        rule=clip(field(facts.choice, "rule.text"), 900),
        why_not=TextTable(
            caption="Why not the others", columns=("candidate", "why not"), rows=tuple(reasons), words=(1,)
        ),
        warnings=tuple(clip(text, 400) for text in list_of(facts.fertility.get("warnings"))),
        candidates=table,
        costs=_chart(candidates, chosen, table),
        cuts=cuts,
        has_fragments=any("\ufffd" in piece for cut in cuts for _, own in cut.pieces for piece in own),
    )


def tokenizers_of(facts: Facts) -> list[tuple[str, Json]]:
    """(name, figures) of every tokenizer that was compared."""
    return named_tables(facts.fertility.get("candidates"))


def _derived(name: str, table: Json, facts: Facts) -> Json:
    """The figures of a candidate with those that follow from them."""
    domains = [entry for _, entry in named_tables(table.get("domains"))]
    weights = [float(number(entry.get("num_words")) or 0) for entry in domains]
    own, seen = number(table.get("own_tokens")), number(table.get("own_tokens_seen"))
    more: Json = {
        key: _mean([number(entry.get(key)) for entry in domains], weights)
        for key in ("words_in_context", "continued_words", "single_token_words")
    }
    words = more["words_in_context"]
    more["words_in_context"] = round(words) if isinstance(words, float) else None
    more["own_share"] = seen / own if own and seen is not None else None
    more["tokens_per_cpu_s"] = field(facts.tokenizer_speed, f"{name}.tokens_per_cpu_s")
    return table | more


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The mean by number of words; None where nothing was measured."""
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _table(candidates: Sequence[tuple[str, Json]], chosen: str) -> TextTable:
    """A row for each figure that any candidate has, a column for each candidate."""
    rows = [
        (label, *(show(field(table, path)) for _, table in candidates))
        for path, label, show in FIGURES
        if any(number(field(table, path)) is not None for _, table in candidates)
    ]
    for part, text in (("domains", "tokens per word: {}"), ("keep", "tokens per word, to be kept: {}")):
        names = dict.fromkeys(name for _, table in candidates for name in table_of(table.get(part)))
        rows += [
            (
                text.format(clip(name, 60)),
                *(
                    figure(table_of(table_of(table.get(part)).get(name)).get("fertility"))
                    for _, table in candidates
                ),
            )
            for name in names
        ]
    heads = (f"{name} (chosen)" if name == chosen else name for name, _ in candidates)
    return TextTable(
        caption="Tokenizers that were compared on held-out text",
        columns=("", *heads),
        rows=tuple(rows),
        pinned=True,
    )


def _chart(candidates: Sequence[tuple[str, Json]], chosen: str, table: TextTable) -> Chart | None:
    """The figure that decides; of an artifact without it the tokens per word."""
    by_cost = any(number(field(table, "cost.relative")) is not None for _, table in candidates)
    path = "cost.relative" if by_cost else "fertility"
    drawn = [
        Bar(label=name, value=float(value), colour=1 if name == chosen else 0)
        for name, item in candidates
        if (value := number(field(item, path))) is not None
    ]
    if by_cost:
        return bars("Compute per word by tokenizer", "over the base's", drawn, table)
    return bars("Fertility by tokenizer", "tokens per word", drawn, table)


def _cuts(candidates: Sequence[tuple[str, Mapping[str, object]]], language: Language) -> tuple[Cut, ...]:
    """The sample words in the language's script, such as no names of programs in Japanese; all where none is."""
    by_word: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, table in candidates:
        for word, pieces in table_of(table.get("samples")).items():
            cut = tuple(clip(piece, 40) for piece in list_of(pieces)[:MAX_PIECES])
            by_word.setdefault(word, []).append((name, cut))
    own = {word: cuts for word, cuts in by_word.items() if any(map(language.is_script, word))} or by_word
    return tuple(Cut(word=clip(word, 80), pieces=tuple(cuts)) for word, cuts in own.items())[:MAX_WORDS]
