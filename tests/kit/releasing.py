"""A retraining's last step: a model and scores that compare it with a champion, small and sealed."""

import json
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release.registry.client import RegisteredModel
from tests.kit.promotable import model

BEATEN: dict[str, Any] = {"value": 0.9, "passed": True, "interval": [0.85, 0.95]}
UNSURE: dict[str, Any] = {"value": 0.99, "passed": True, "interval": [0.95, 1.03]}


def week(
    root: Path,
    text: str,
    champion: str,
    *,
    by_gate: bool = True,
    recipe: dict[str, object] | None = None,
    **ratio: Any,
) -> dict[str, str]:
    """URIs of a model whose weights are this text, and of its scores against the champion of a digest."""
    made = root / "model" / text.replace(" ", "-")
    if not made.exists():
        model(made, text)
        artifact.seal(made, kind="model", origin={"stage": "pretrain"}, recipe=recipe or {})
    manifest = artifact.finished_manifest(str(made), "model")
    checks: list[dict[str, Any]] = [
        {"name": "adapted.fertility", "value": 0.5, "limit": 1.0, "passed": by_gate, "enforced": True},
        {"name": "adapted.bits_per_byte_to_champion", "limit": 1.02, "enforced": True, **(ratio or BEATEN)},
    ]
    verdict = {"candidate": "adapted", "use": "continuing text", "passed": by_gate, "failed": []}
    gate = {
        "passed": by_gate,
        "released": "adapted" if by_gate else None,
        "checks": checks,
        "verdicts": {"model": verdict},
    }
    scores = root / "scores" / f"{made.name}-{by_gate}-{len(ratio)}"
    if not scores.exists():
        scores.mkdir(parents=True)
        (scores / "scores.json").write_text(json.dumps({"candidates": {"adapted": {}}, "gate": gate}))
        origin = {"input model": manifest.digest, "input champion": champion, "input corpus": "c" * 64}
        artifact.seal(scores, kind="scores", origin=origin)
    return {"model": str(made), "scores": str(scores)}


def retraining(root: Path, tracking: str, champion: RegisteredModel) -> Recipe:
    """The recipe that `anadil retrain` derives, as far as the release step reads it."""
    began = {
        "name": champion.name,
        "version": champion.version,
        "uri": champion.uri,
        "digest": champion.digest,
        "artifacts": {},
    }
    return parse_recipe(
        json.dumps({
            "language": "az", "storage": {"root": str(root)}, "tracking": {"uri": tracking},
            "retrain": {"champion": began},
        }),
        "retrain.yaml",
    )  # fmt: skip
