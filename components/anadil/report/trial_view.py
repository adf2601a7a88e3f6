"""The trial of tokenizers: what each finalist gives at equal compute, and which of them no other beats in all."""

from collections.abc import Sequence
from dataclasses import dataclass

from anadil.core.format import human_parameters, number
from anadil.report.elements import TextTable
from anadil.report.format import clip, figure
from anadil.report.read import Facts, Json, list_of, named_tables, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """Beside the tokenizers, where `tokenizer.trial` is set."""

    winner: str
    reason: str
    steps: str
    finalists: TextTable
    front: tuple[str, ...]
    """Finalists that no other one equals or beats in every figure, and beats in one."""


def trial_view(facts: Facts) -> TrialView | None:
    """The finalists beside each other; None where nothing was tried."""
    finalists = named_tables(facts.trial.get("finalists"))
    if not finalists:
        return None
    winner = clip(facts.trial.get("winner"), 80)
    names = [name for name, _ in finalists]
    keep_names = list(dict.fromkeys(kind for _, each in finalists for kind in table_of(each.get("keep"))))
    front = pareto_front(finalists)
    table = TextTable(
        caption="Tokenizers that were tried at equal compute",
        columns=(
            "tokenizer",
            "bits per byte",
            *(f"{clip(kind, 40)}, bits per byte" for kind in keep_names),
            "parameters",
            "words in the context",
            "steps",
            "on the front",
        ),
        rows=tuple(
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
        ),
        marked=names.index(winner) if winner in names else None,
        note="Intervals are 95 % over documents. No tokenizer on the front is beaten in every figure.",
    )
    return TrialView(
        winner=winner,
        reason=clip(facts.trial.get("reason"), 300),
        steps=figure(facts.trial.get("steps")),
        finalists=table,
        front=front,
    )


def pareto_front(finalists: Sequence[tuple[str, Json]]) -> tuple[str, ...]:
    """Finalists that no other is as good as in all figures and better than in one.

    Fewer bits per byte, on the target and on each text of `tokenizer.keep`, fewer parameters and more words in the
    context are better.
    """
    figures = {name: _figures(each) for name, each in finalists}

    def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    return tuple(
        name for name, own in figures.items() if not any(beats(other, own) for other in figures.values())
    )


def _figures(each: Json) -> tuple[float, ...]:
    """All of them so that less is better."""
    keep_bits = [table_of(figures).get("bits_per_byte") for figures in table_of(each.get("keep")).values()]
    figures = [each.get("bits_per_byte"), *keep_bits, each.get("parameters")]
    words = number(each.get("words_in_context")) or 0
    return (*(number(value) or 0.0 for value in figures), -words)


def _scored(table: Json) -> str:
    low, high = (figure(value) for value in (list_of(table.get("interval")) or [None, None])[:2])
    return f"{figure(table.get('bits_per_byte'))} [{low}, {high}]"
