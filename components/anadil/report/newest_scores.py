"""The newest scores of a model, where a run keeps them."""

from collections.abc import Sequence

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below


def newest_scores(roots: Sequence[str], model: Manifest) -> tuple[str, Manifest] | None:
    """Find the newest scores of a model or adapter below some storage roots."""
    scores = artifacts_below(roots, "scores")
    return next((pair for pair in scores if pair[1].origin.get(f"input {model.kind}") == model.digest), None)
