"""Content of `scores.json` over all candidates, and its summary in the log."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.core.candidates import BY_NAME, before_finetuning
from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.candidate import Material, ModelScores
from anadil.evaluate.gate import GateVerdict, log_verdict
from anadil.evaluate.heldout import Contamination, Heldout
from anadil.evaluate.models import EncodedDocuments

log = logging.getLogger(__name__)

MADE = ("base", *BY_NAME)
PAIRS = (
    *((name, earlier) for place, name in enumerate(MADE) for earlier in MADE[:place]),
    *((name, "champion") for name in BY_NAME),
)
"""Candidates that are compared: the second is taken from the first."""


def differences_of(
    results: Mapping[str, ModelScores], material: Material, contamination: Contamination, seed: int
) -> dict[str, Difference]:
    """Compare pairs in bits per byte: held-out text, also without contaminated, retained languages, unseen answers."""
    encoded, retained, questions = material.heldout, material.retained, material.questions
    languages = np.array([document.lang for document in retained.documents])
    is_heldout = ~questions.is_seen
    contaminated = set(contamination.contaminated)
    clean = np.array([document.id not in contaminated for document in encoded.documents])
    differences = {}
    for name, other in PAIRS:
        if not {name, other} <= results.keys():
            continue
        new, old, pair = results[name], results[other], f"{name} - {other}"
        differences[pair] = paired_difference(new.nats, old.nats, encoded.num_bytes, seed)
        if clean.any() and not clean.all():
            differences[f"{pair}, uncontaminated"] = paired_difference(
                new.nats[clean], old.nats[clean], encoded.num_bytes[clean], seed
            )
        for language in dict.fromkeys(languages.tolist()):
            of_it = languages == language
            differences[f"{pair}, retained {language}"] = paired_difference(
                new.retained[of_it], old.retained[of_it], retained.num_bytes[of_it], seed
            )
        if is_heldout.any():
            differences[f"{pair}, answers"] = paired_difference(
                new.answers[is_heldout], old.answers[is_heldout], questions.num_bytes[is_heldout], seed
            )
    return differences


def scores_table(
    heldout: Heldout,
    material: Material,
    results: Mapping[str, ModelScores],
    differences: Mapping[str, Difference],
    contamination: Contamination,
    verdict: GateVerdict,
    tasks: Mapping[str, Any],
) -> dict[str, Any]:
    """Return all of `scores.json`; `tasks` are the results of the stage of that name."""
    encoded = material.heldout
    chat = {"own_chat": material.own_chat.facts()} if material.own_chat else {}
    return {
        "candidates": {name: result.table for name, result in results.items()},
        **chat,
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
            "listed": [
                {
                    "id": question.chat.id,
                    "source": question.chat.source,
                    "seen": question.seen,
                    "num_bytes": question.num_bytes,
                    "nats": {name: float(result.answers[index]) for name, result in results.items()},
                }
                for index, question in enumerate(material.questions.listed)
            ],
        },
    }


def _by_document(encoded: EncodedDocuments, nats: Mapping[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    """Return the nats of each document, so that any interval can be computed again."""
    return [
        {
            "id": document.id,
            "lang": document.lang,
            "num_bytes": len(document.text.encode()),
            "nats": {name: float(each[index]) for name, each in nats.items()},
        }
        for index, document in enumerate(encoded.documents)
    ]


def log_scores(
    verdict: GateVerdict,
    results: Mapping[str, ModelScores],
    contamination: Contamination,
    differences: Mapping[str, Difference],
) -> None:
    """Log what was measured, the verdict last."""
    before = before_finetuning(results)
    for name in (
        "adapted - base", "merged - adapted", f"finetuned - {before}", f"finetuned - {before}, answers",
    ):  # fmt: skip
        if difference := differences.get(name):
            log.info(
                "bits per byte, %s: %+.4f [%+.4f, %+.4f] over %d",
                name, difference.value, difference.low, difference.high, difference.num_documents,
            )  # fmt: skip
    tables = {name: result.table["retained"] for name, result in results.items()}
    for language in next(iter(tables.values())):
        figures = ", ".join(f"{name} {table[language]:.4f}" for name, table in tables.items())
        log.info("bits per byte on the retained text %s: %s", language, figures)
    if leaks := contamination.contaminated:
        log.warning(
            "held-out: %d of %d documents are also in the training part (%d as a whole): %s%s",
            len(leaks), contamination.num_documents, len(contamination.exact),
            ", ".join(leaks[:5]), ", ..." if len(leaks) > 5 else "",
        )  # fmt: skip
    log_verdict(verdict)
