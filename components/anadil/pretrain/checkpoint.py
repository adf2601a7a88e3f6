"""Checkpoints: directories that are whole or do not count, checked byte by byte when read.

`step-N/` holds `model.safetensors`, `optimizer.safetensors` (not at a phase border, where
the next phase begins with a new optimizer), `state.json` and a manifest. It is written under
another name, flushed and renamed, so a run killed at any moment leaves old or new, never half.
"""

import json
import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from anadil import artifact, storage
from anadil.errors import IntegrityError, RecipeError

log = logging.getLogger(__name__)

KIND = "checkpoint"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the run stands."""

    step: int
    """Optimizer steps done."""
    tokens: int
    """Target tokens trained on."""
    seconds: float
    """Time in training, over all starts."""


def save(
    folder: Path, state: State, model: Tensors, optimizer: Tensors, *, origin: dict[str, str], keep: int
) -> None:
    """Write a generation and remove those beyond the newest `keep`.

    Args:
        folder: Where all generations are.
        state: Where the run stands.
        model: Parameters by name, tied ones once.
        optimizer: Moments by name; empty at a phase border.
        origin: What decides the losses; a resume with another one is refused.
        keep: Generations to keep.
    """
    target = folder / f"step-{state.step:08}"
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(model, partial / MODEL)
    if optimizer:
        save_file(optimizer, partial / OPTIMIZER)
    (partial / STATE).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    artifact.seal(partial, kind=KIND, origin=origin)
    storage.store(str(target)).put_directory(partial, str(target))
    for old in generations(folder)[keep:]:
        storage.store(str(old)).remove_directory(str(old))


def generations(folder: Path) -> list[Path]:
    """Finished generations, the newest first."""
    found = [path for path in folder.glob("step-*") if path.suffix == ""]
    return sorted(found, reverse=True)


def newest(folder: Path, origin: dict[str, str]) -> tuple[Path, State] | None:
    """The newest generation whose every byte is right; damaged ones are set aside.

    Raises:
        RecipeError: It belongs to a run with other settings, data or base.
    """
    for half in folder.glob("*.partial"):
        shutil.rmtree(half, ignore_errors=True)
    for path in generations(folder):
        try:
            manifest = artifact.read_manifest(str(path))
            if manifest is None:
                raise IntegrityError(f"{path}: has no manifest")
            artifact.verify(path, manifest, str(path))
        except IntegrityError as error:
            aside = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            log.warning("damaged checkpoint set aside as %s, going back to the one before: %s", aside, error)
            continue
        causes = artifact.differences(manifest.origin, origin)
        if causes:
            raise RecipeError(
                f"{path}: checkpoint of a run with other settings ({'; '.join(causes[:5])}); "
                f"restore them, give another --out, or remove {folder} to begin anew"
            )
        return path, State(**json.loads((path / STATE).read_text(encoding="utf-8")))
    return None


def load(path: Path) -> tuple[Tensors, Tensors]:
    """Parameters and moments of a generation that `newest` has checked."""
    optimizer = load_file(path / OPTIMIZER) if (path / OPTIMIZER).is_file() else {}
    return load_file(path / MODEL), optimizer
