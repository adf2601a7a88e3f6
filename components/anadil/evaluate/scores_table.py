"""`scores.json`: what is written of all candidates together, and what the log says of it."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.candidate import Material, ModelScores
from anadil.evaluate.contamination import Contamination
from anadil.evaluate.gate import GateVerdict, log_verdict
from anadil.evaluate.heldout import Heldout
from anadil.evaluate.models import EncodedDocuments

log = logging.getLogger(__name__)

PAIRS = (
    ("adapted", "base"),
    ("finetuned", "base"),
    ("finetuned", "adapted"),
    ("adapted", "champion"),
    ("finetuned", "champion"),
)
"""Candidates that are compared: the second is taken from the first."""


def differences_of(
    results: Mapping[str, ModelScores], material: Material, contamination: Contamination, seed: int
) -> dict[str, Difference]:
    """Bits per byte of each pair: on held-out text, also without contaminated documents, on each retained language, on unseen answers."""
    encoded, retained, questions = material.heldout, material.retained, material.questions
    languages = np.array([document.lang for document in retained.documents])
    num_bytes, is_heldout = encoded.num_bytes, ~questions.is_seen
    contaminated = set(contamination.contaminated)
    clean = np.array([document.id not in contaminated for document in encoded.documents])
    made = {}
    for name, other in PAIRS:
        if not {name, other} <= results.keys():
            continue
        nats, before = results[name].nats, results[other].nats
        made[f"{name} - {other}"] = paired_difference(nats, before, num_bytes, seed)
        if clean.any() and not clean.all():
            made[f"{name} - {other}, uncontaminated"] = paired_difference(
                nats[clean], before[clean], num_bytes[clean], seed
            )
        for language in dict.fromkeys(languages.tolist()):
            own = languages == language
            made[f"{name} - {other}, retained {language}"] = paired_difference(
                results[name].retained[own], results[other].retained[own], retained.num_bytes[own], seed
            )
        if is_heldout.any():
            made[f"{name} - {other}, answers"] = paired_difference(
                results[name].answers[is_heldout], results[other].answers[is_heldout],
                questions.num_bytes[is_heldout], seed,
            )  # fmt: skip
    return made


def scores_table(
    heldout: Heldout,
    material: Material,
    results: Mapping[str, ModelScores],
    differences: Mapping[str, Difference],
    contamination: Contamination,
    verdict: GateVerdict,
    tasks: Mapping[str, Any],
) -> dict[str, Any]:
    """All of `scores.json`; `tasks` is what the stage `tasks` found."""
    encoded = material.heldout
    return {
        "candidates": {name: result.table for name, result in results.items()},
        "differences": {
            name: asdict(one) | {"significant": one.significant, "unsure": one.unsure}
            for name, one in differences.items()
        },
        "contamination": asdict(contamination)
        | {"share": len(contamination.contaminated) / contamination.num_documents},
        "gate": asdict(verdict),
        "tasks": tasks,
        "heldout": {
            "source": heldout.source,
            "files": heldout.files,
            "sha256": heldout.sha256,
            "num_documents": len(heldout.documents),
            "empty": heldout.empty,
            "repeated": heldout.repeated,
            "altered": encoded.altered,
        },
        "documents": _by_document(encoded, {name: result.nats for name, result in results.items()}),
        "retained": {
            "altered": material.retained.altered,
            "documents": _by_document(
                material.retained, {name: result.retained for name, result in results.items()}
            ),
        },
        "questions": {
            "source": "files" if material.questions.files else "adapter",
            "files": material.questions.files,
            "listed": _by_question(material, results),
        },
    }


def _by_document(encoded: EncodedDocuments, nats: Mapping[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Nats of each document, so that any interval can be computed again."""
    return [
        {
            "id": document.id,
            "lang": document.lang,
            "num_bytes": len(document.text.encode()),
            "nats": {name: float(each[index]) for name, each in nats.items()},
        }
        for index, document in enumerate(encoded.documents)
    ]


def _by_question(material: Material, results: Mapping[str, ModelScores]) -> list[dict[str, Any]]:
    """Nats of each right answer, for the same."""
    return [
        {
            "id": question.chat.id,
            "source": question.chat.source,
            "seen": question.seen,
            "num_bytes": question.num_bytes,
            "nats": {name: float(result.answers[index]) for name, result in results.items()},
        }
        for index, question in enumerate(material.questions.listed)
    ]


def log_scores(
    verdict: GateVerdict,
    results: Mapping[str, ModelScores],
    contamination: Contamination,
    differences: Mapping[str, Difference],
) -> None:
    """Say what was found, the verdict last."""
    for name in ("adapted - base", "finetuned - adapted", "finetuned - adapted, answers"):
        if difference := differences.get(name):
            log.info(
                "bits per byte, %s: %+.4f [%+.4f, %+.4f] over %d",
                name, difference.value, difference.low, difference.high, difference.num_documents,
            )  # fmt: skip
    _log_retained(results)
    leaks = contamination.contaminated
    if leaks:
        log.warning(
            "held-out: %d of %d documents are also in the training part (%d as a whole): %s%s",
            len(leaks), contamination.num_documents, len(contamination.exact),
            ", ".join(leaks[:5]), ", ..." if len(leaks) > 5 else "",
        )  # fmt: skip
    log_verdict(verdict)


def _log_retained(results: Mapping[str, ModelScores]) -> None:
    tables = {name: result.table["retained"] for name, result in results.items()}
    for language in next(iter(tables.values())):
        figures = ", ".join(f"{name} {table[language]:.4f}" for name, table in tables.items())
        log.info("bits per byte on the retained text %s: %s", language, figures)
