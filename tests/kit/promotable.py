"""Models, adapters and their scores, small and sealed, for what is done with a finished model."""

import json
from pathlib import Path

from anadil.artifacts import artifact


def model(folder: Path, text: str = "weights", kind: str = "model") -> Path:
    """A model or an adapter whose weights are this text."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(text)
    artifact.seal(folder, kind=kind, origin={"stage": "pretrain"})
    return folder


def scores(folder: Path, *of: Path, adapted: bool = True, finetuned: bool = True) -> Path:
    """Scores of a model and perhaps an adapter, whose checks of bits per byte hold or not."""
    folder.mkdir(parents=True)
    checks = [
        {"name": "adapted.fertility", "value": 0.5, "limit": 1.0, "passed": True, "enforced": True},
        {"name": "adapted.bits_per_byte", "value": 1.25, "limit": 1.0, "passed": adapted, "enforced": True},
        {
            "name": "adapted.bits_per_byte_significant",
            "value": 0.1, "limit": 0, "passed": False, "enforced": False,
        },
    ]  # fmt: skip
    manifests = [artifact.read_manifest(str(path)) for path in of]
    origin = {f"input {found.kind}": found.digest for found in manifests if found is not None}
    passed = adapted
    if "input adapter" in origin:
        row = {"name": "finetuned.bits_per_byte", "value": 1.21, "limit": 1.05, "passed": finetuned}
        checks.append(row | {"enforced": True})
        passed = finetuned
    (folder / "scores.json").write_text(json.dumps({"gate": {"passed": passed, "checks": checks}}))
    artifact.seal(folder, kind="scores", origin=origin)
    return folder
