"""Measuring of merges for `auto`: one model in memory, into which the weights of each point are copied.

Text, windows and sums are those of `evaluate`. No merge is written to disk before one is chosen.
"""

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.core.errors import DataError
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.heldout import RETAINED_KEY, by_target
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_candidate, open_model
from anadil.evaluate.own_chat import NUMBERS, ONE_IN, retained_tuning, target_tuning
from anadil.merge.auto import Choice, Figures, Limits, Point, RetainedFigures, Score, choose
from anadil.model.load import free_memory
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import Document
from anadil.text.metrics import bits_per_byte

log = logging.getLogger(__name__)

MAX_DOCUMENTS, MAX_CHARS = 64, 2_000
"""Most documents of a text, and characters of each. Chosen by us: a dozen points are measured, also on CPUs, and all of them on
the same documents."""
FEW_DOCUMENTS = 4
"""Least documents of a text from which intervals tell something. Chosen by us: those of the built-in English."""
TARGET = "target"
"""Name of the text in the taught language."""

LoadInto = Callable[[Any, float, Sequence[float]], None]
"""Copies the merge of a base share and weights into a loaded model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTexts:
    """Text by which values are chosen, cut to what is measured."""

    target: tuple[Document, ...]
    retained: tuple[Document, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Documents of each text."""
        return {TARGET: len(self.target), **Counter(document.lang for document in self.retained)}


def read_tuning_texts(job: Job) -> TuningTexts:
    """Read the parts for tuning of the held-out text and of each retained text."""
    recipe = job.recipe
    targets, others = by_target(job.of_sources("corpus"), recipe.target_sources)
    target = [replace(document, lang=TARGET) for document in target_tuning(targets)]
    if not target:
        raise DataError(
            f"merge: the corpus has no held-out document for tuning (one in {ONE_IN} is, unless none is left to score); "
            f"raise clean.heldout_fraction, {NUMBERS}"
        )
    retained = retained_tuning(recipe, job.side_files.get(RETAINED_KEY, ()), others)
    texts = TuningTexts(target=_sample(target), retained=_sample(retained))
    log.info(
        "tuning on documents that scores do not use, at most %d of a text and %s characters of each: %s",
        MAX_DOCUMENTS, f"{MAX_CHARS:,}", ", ".join(f"{text} {count}" for text, count in texts.counts.items()),
    )  # fmt: skip
    if few := [f"{text} {count}" for text, count in texts.counts.items() if count < FEW_DOCUMENTS]:
        log.warning(
            "so few documents hardly tell one merge from another: %s; raise clean.heldout_fraction, give more text in %s, %s",
            ", ".join(few), RETAINED_KEY, NUMBERS,
        )  # fmt: skip
    return texts


def _sample(documents: Sequence[Document]) -> tuple[Document, ...]:
    """Return the same documents of each text wherever they are read, and their beginnings."""
    texts: dict[str, list[Document]] = defaultdict(list)
    # By digest, since a corpus lies in the order of its files, and a text would be the first file alone.
    for document in sorted(documents, key=lambda each: hashlib.sha256(each.text.encode()).digest()):
        texts[document.lang].append(document)
    return tuple(
        replace(document, text=document.text[:MAX_CHARS])
        for each in texts.values()
        for document in each[:MAX_DOCUMENTS]
    )


def score_of(recipe: Recipe, base: Path, model: Path, load_into: LoadInto, texts: TuningTexts) -> Score:
    """Load the model, and return the function that measures a merge; the base is measured first and freed.

    Args:
        recipe: Windows are those of `evaluate`.
        base: Directory of the base, with its own tokenizer, to which retained texts are compared as the gate does.
        model: Directory of a model of the merge's shape, with its tokenizer.
        load_into: Copies a merge into the loaded model.
        texts: What is measured.
    """
    before, candidate = open_model("base", base), open_model("merged", model)
    target = encode_for_all([candidate], texts.target)
    retained = encode_for_all([before, candidate], texts.retained)
    members = _members(retained, texts)
    base_nats = _nats_of(before, retained, recipe)
    loaded = open_candidate(candidate, recipe)

    def score(base_share: float, weights: tuple[float, ...]) -> Figures:
        load_into(loaded.model, base_share, weights)
        nats = loaded.nats(target.ids[candidate.name])
        retained_nats = loaded.nats(retained.ids[candidate.name])
        return Figures(
            target=bits_per_byte(float(nats.sum()), int(target.num_bytes.sum())),
            retained={
                text: _retained_figures(
                    retained_nats[of_it], base_nats[of_it], retained.num_bytes[of_it], recipe.seed
                )
                for text, of_it in members.items()
            },
        )

    return score


def _members(retained: EncodedDocuments, texts: TuningTexts) -> dict[str, NDArray[np.bool_]]:
    """Return which documents are of each text."""
    names = dict.fromkeys(document.lang for document in texts.retained)
    of_document = np.array([document.lang for document in retained.documents])
    members = {name: of_document == name for name in names}
    for name, of_it in members.items():
        if not of_it.any():
            raise DataError(
                f"merge: a tokenizer alters every document for tuning of the retained text {name} "
                f"({', '.join(retained.altered)}); add documents to {RETAINED_KEY}, {NUMBERS}"
            )
    return members


def _nats_of(candidate: ScoredModel, encoded: EncodedDocuments, recipe: Recipe) -> NDArray[np.float64]:
    """Load a model, measure it, and free its memory."""
    loaded = open_candidate(candidate, recipe)
    nats = loaded.nats(encoded.ids[candidate.name])
    loaded.free()
    return nats


def _retained_figures(
    nats: NDArray[np.float64], base_nats: NDArray[np.float64], num_bytes: NDArray[np.int64], seed: int
) -> RetainedFigures:
    size = int(num_bytes.sum())
    bits, before = (bits_per_byte(float(each.sum()), size) for each in (nats, base_nats))
    # As the gate has it, which does not release a model whose interval holds the limit.
    difference = paired_difference(nats, base_nats, num_bytes, seed)
    return RetainedFigures(bits_per_byte=bits, ratio=bits / before, high=1 + difference.high / before)


def choose_values(job: Job, base: Path, model: Path, load_into: LoadInto) -> tuple[Choice, dict[str, Any]]:
    """Choose what the recipe's `merge` calls `auto`; return it with its entry in `merge.json`."""
    recipe, merge = job.recipe, job.recipe.merge
    assert merge
    texts = read_tuning_texts(job)
    gate = recipe.evaluate.gate
    limits = Limits(retained=gate.max_retained_ratio, target=gate.max_finetuned_bits_per_byte_ratio)
    share, *weights = map(_open_value, (merge.base_share, *(each.weight for each in merge.add)))
    choice = choose(score_of(recipe, base, model, load_into, texts), share, weights, limits)
    free_memory()
    log_choice(choice)
    return choice, choice.as_json() | {"limits": asdict(limits), "texts": texts.counts}


def _open_value(value: float | str) -> float | None:
    return None if isinstance(value, str) else value


def log_choice(choice: Choice) -> None:
    """Log the points as a table, the rules, and what was chosen."""
    for line in table_lines(choice):
        log.info("%s", line)
    for rule in choice.rules:
        log.info("rule of %s", rule)
    for warning in choice.warnings:
        log.warning("%s", warning)
    for reason in choice.reasons:
        if reason not in choice.warnings:
            log.info("chosen: %s", reason)


def table_lines(choice: Choice) -> list[str]:
    """The points in columns of one width: a retained text as its ratio to the base, and the end of its interval."""
    names = list(choice.points[0].figures.retained)
    head = ("base_share", *(["weights"] if choice.weights else []), TARGET, *names, "within", "")
    rows = [head, *(_cells(point, choice) for point in choice.points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cells(point: Point, choice: Choice) -> tuple[str, ...]:
    chosen = (point.base_share, point.weights) == (choice.base_share, choice.weights)
    return (
        f"{point.base_share:g}",
        *([" ".join(f"{weight:g}" for weight in point.weights)] if point.weights else []),
        f"{point.target:.4f}",
        *(f"{text.ratio:.3f} (to {text.high:.3f})" for text in point.figures.retained.values()),
        "yes" if point.within else "no",
        "<- chosen" if chosen else "",
    )
