"""Check before a release: the gate passed, and the bytes are those that were scored."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest, verify
from anadil.artifacts.find import root_of
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute, join
from anadil.core.candidates import BY_KIND, BY_NAME, answers
from anadil.core.errors import DataError, GateError, IntegrityError
from anadil.report.model_card import newest_scores
from anadil.report.verdict import before, check_words, checks_of, outcome_words

log = logging.getLogger(__name__)

AGAINST_CHAMPION = {"bits_per_byte_to_champion": 1.0, "answers_to_champion": 0.0}
"""Checks that compare with the champion, and the value at which both are equal; less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotable:
    """A model, merged model or adapter whose gate was passed."""

    uri: str
    manifest: Manifest
    scores: str
    scores_manifest: Manifest
    table: dict[str, Any]

    @property
    def candidate(self) -> str:
        """Name of the model in the scores."""
        return BY_KIND[self.manifest.kind].name

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The gate's checks of this candidate."""
        return checks_of(self.table, self.candidate)

    def has_beaten(self, champion: str) -> bool:
        """True if the scores show with 95 % confidence that it beats this champion.

        All comparisons hold, and the 95 % interval of one of them excludes equality.
        """
        if self.scores_manifest.origin.get("input champion") != champion:
            return False
        rows = [(AGAINST_CHAMPION.get(str(row["name"]).partition(".")[2]), row) for row in self.checks]
        compared = [(equal, row) for equal, row in rows if equal is not None and row.get("value") is not None]
        deciding = [(equal, row) for equal, row in compared if row.get("enforced", True)]
        # A model that answers is compared by its answers; its running text is only shown.
        is_asked = answers(self.manifest.kind, self.manifest.figures)
        compared = deciding if is_asked and deciding else compared
        better = [max(row.get("interval") or [row["value"]]) < equal for equal, row in compared]
        return any(better) and all(row["passed"] for _, row in compared)

    def was_compared_with(self, champion: str) -> bool:
        """True if the scores include the champion of this digest."""
        return champion in (self.manifest.digest, self.scores_manifest.origin.get("input champion"))


def check_promotable(scores: str, model: str) -> Promotable:
    """Verify a model whose scores passed the gate, by the checks of its own candidate."""
    folder, scored = fetch(scores, "scores")
    table = _table_of(scores, folder / "scores.json")
    manifest = artifact.finished_manifest(model, *BY_KIND)
    if scored.origin.get(f"input {manifest.kind}") != manifest.digest:
        raise IntegrityError(
            f"{scores}: the scores are not of {model}; give the {manifest.kind} that was evaluated, or evaluate it"
        )
    gate, candidate = table["gate"], BY_KIND[manifest.kind].name
    checks = checks_of(table, candidate)
    if not checks:
        raise DataError(f"{scores}: holds no checks of the {candidate} model; run evaluate again")
    failed = [check for check in checks if check.get("enforced", True) and not check["passed"]]
    # Scores of an earlier release have checks and no verdicts.
    verdict = (gate.get("verdicts") or {}).get(manifest.kind, {"passed": True})
    if failed or not verdict["passed"]:
        reasons = [
            f"{check_words(check, candidate, before(table))} {outcome_words(check)}" for check in failed
        ]
        passed = BY_NAME.get(str(gate.get("released")))
        other = f"; the {passed.name} model passed: promote the {passed.kind}" if passed else ""
        raise GateError(
            f"{model}: the gate was not passed: {'; '.join(reasons) or ', '.join(verdict.get('failed', []))}; "
            f"nothing was promoted{other}"
        )
    verify(model, manifest)
    return Promotable(
        uri=absolute(model), manifest=manifest, scores=absolute(scores), scores_manifest=scored, table=table
    )


def find_scores(model: str, manifest: Manifest, root: str | None) -> str:
    """Find the newest scores of a model, beside it or below a recipe's `storage.root`."""
    beside = root_of(model)
    roots = [beside, absolute(root or beside)]
    if scores := newest_scores(roots, manifest):
        log.info("scores: %s", scores[0])
        return scores[0]
    raise DataError(
        f"{model}: no scores of it in {join(roots[-1], 'scores')}; run evaluate, or name them by --scores URI"
    )


def _table_of(scores: str, path: Path) -> dict[str, Any]:
    """Read `scores.json`."""
    table = json.loads(path.read_text(encoding="utf-8"))
    gate = table.get("gate")
    checks = gate.get("checks") if isinstance(gate, dict) else None
    if not isinstance(checks, list) or not all({"name", "passed"} <= set(check) for check in checks):
        raise DataError(f"{scores}: scores.json holds no verdict of the gate; run evaluate again")
    return dict(table)
