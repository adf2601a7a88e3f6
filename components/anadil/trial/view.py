"""The part of pages on the trial of tokenizers."""

from collections.abc import Mapping, Sequence

from anadil.artifacts.artifact import Manifest
from anadil.core.format import human_parameters, number
from anadil.core.table import Table
from anadil.page.format import clip, figure
from anadil.page.part import Part
from anadil.page.values import Json, list_of, named_tables, table_of

FILE = "trial.json"


def part(made: Json, recipe: Json, manifests: Mapping[str, Manifest]) -> Part | None:  # noqa: ARG001  all views have these
    """The part: the finalists beside each other; None without any."""
    finalists = named_tables(made.get("finalists"))
    if not finalists:
        return None
    winner = clip(made.get("winner"), 80)
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
    reason, steps = clip(made.get("reason"), 300), figure(made.get("steps"))
    return Part(
        section="tokenizer",
        title="Tried at equal compute",
        words=f"{winner} is chosen: {reason}. Each was trained with the compute of {steps} steps of the base's vocabulary.",
        tables=[table],
        metrics={f"trial_bits_per_byte_{name}": each.get("bits_per_byte") for name, each in finalists},
    )


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
