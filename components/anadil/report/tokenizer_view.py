"""The section on the tokenizer: candidates, choice, cuts of words, and the trial of finalists at equal compute."""

from collections.abc import Callable, Sequence

from anadil.core.format import human_parameters, number
from anadil.core.table import Table
from anadil.report.charts import Bar, Chart, bars
from anadil.report.format import clip, figure, percent, ratio
from anadil.report.read import Facts, Json, field, list_of, named_tables, table_of
from anadil.text.language_data import Language

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


def tokenizer_view(facts: Facts) -> dict[str, object]:
    """Build the section on the tokenizer, by the names of the template."""
    candidates = [(name, _derived(name, table, facts)) for name, table in tokenizers_of(facts)]
    chosen = clip(facts.trial.get("winner") or facts.fertility.get("chosen"), 80)
    table = _table(candidates, chosen)
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
    """The figures of a candidate with those that follow from them."""
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


def _table(candidates: Sequence[tuple[str, Json]], chosen: str) -> Table:
    """A row for each figure that any candidate has, a column for each candidate."""
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
    return Table("Tokenizers that were compared on held-out text", ("", *heads), rows, pinned=True)


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


def trial_view(facts: Facts) -> dict[str, object] | None:
    """The finalists beside each other, by the names of the template; None without a trial."""
    finalists = named_tables(facts.trial.get("finalists"))
    if not finalists:
        return None
    winner = clip(facts.trial.get("winner"), 80)
    names = [name for name, _ in finalists]
    keep_names = list(dict.fromkeys(kind for _, each in finalists for kind in table_of(each.get("keep"))))
    front = pareto_front(finalists)
    columns = (
        "tokenizer", "bits per byte", *(f"{clip(kind, 40)}, bits per byte" for kind in keep_names), "parameters",
        "words in the context", "steps", "on the front",
    )  # fmt: skip
    rows = [
        (
            name,
            _scored(each),
            *(_scored(table_of(table_of(each.get("keep")).get(kind))) for kind in keep_names),
            human_parameters(int(number(each.get("parameters")) or 0)),
            figure(each.get("words_in_context")),
            figure(each.get("steps")),
            "yes" if name in front else "no",
        )
        for name, each in finalists
    ]
    table = Table(
        "Tokenizers that were tried at equal compute",
        columns,
        rows,
        marked=names.index(winner) if winner in names else None,
        note="Intervals are 95 % over documents. No tokenizer on the front is beaten in every figure.",
    )
    reason, steps = clip(facts.trial.get("reason"), 300), figure(facts.trial.get("steps"))
    return {"winner": winner, "reason": reason, "steps": steps, "finalists": table}


def pareto_front(finalists: Sequence[tuple[str, Json]]) -> tuple[str, ...]:
    """Finalists that no other is as good as in all figures and better than in one.

    Fewer bits per byte, on the target and on each text of `tokenizer.keep`, fewer parameters and more words in the
    context are better.
    """
    # Words are negative, so that less is better in each figure.
    figures = {}
    for name, each in finalists:
        keep = [table_of(text).get("bits_per_byte") for text in table_of(each.get("keep")).values()]
        values = [each.get("bits_per_byte"), *keep, each.get("parameters")]
        words = number(each.get("words_in_context")) or 0
        figures[name] = (*(number(value) or 0.0 for value in values), -words)

    def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    return tuple(
        name
        for name, values in figures.items()
        if not any(beats(other, values) for other in figures.values())
    )


def _scored(table: Json) -> str:
    low, high = (figure(value) for value in (list_of(table.get("interval")) or [None, None])[:2])
    return f"{figure(table.get('bits_per_byte'))} [{low}, {high}]"
