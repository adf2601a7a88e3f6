"""Whether artifacts that are read together belong together."""

from collections.abc import Mapping

from anadil.artifacts.artifact import Manifest
from anadil.core.errors import IntegrityError

MADE_FROM = {"adapter": ("model",), "scores": ("model", "adapter")}
"""Artifact -> those whose content it speaks of; beside others of its kind its figures would be of something else."""
DIGITS = 16


def refuse_strangers(manifests: Mapping[str, Manifest], uris: Mapping[str, str]) -> None:
    """Refuse an adapter beside a model that it was not trained on, and scores beside a model that they are not of.

    Args:
        manifests: Artifact word -> manifest, of all that a stage reads.
        uris: Artifact word -> where it lies.

    Raises:
        IntegrityError: With both digests.
    """
    for word, others in MADE_FROM.items():
        for other in others:
            if word not in manifests or other not in manifests:
                continue
            expected = manifests[word].origin.get(f"input {other}")
            digest = manifests[other].digest
            if expected not in {None, digest}:
                raise IntegrityError(
                    f"{uris[word]}: is made from the {other} {str(expected)[:DIGITS]}, and {uris[other]} is the {other} "
                    f"{digest[:DIGITS]}; give the {other} that it was made from, or make the {word} again"
                )
