"""`anadil export`: a checkpoint of pretrain as a directory that transformers and vLLM load."""

import argparse
import logging
import shutil
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact, storage
from anadil.artifacts.prefetch import fetch
from anadil.cli.doctor.local import require_packages
from anadil.core.errors import RecipeError
from anadil.core.format import human_bytes
from anadil.recipe.load import load_recipe
from anadil.runtime.entry_point import add_recipe_options
from anadil.runtime.execute import base_cache

log = logging.getLogger(__name__)


def add_export(name: str, commands: Any, text: str) -> None:
    """Put the command among those of `anadil`."""
    told = f"{text}; every byte of the checkpoint is compared with its manifest first"
    command = commands.add_parser(name, help=text, description=told)
    command.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a directory .../checkpoints/step-N"
    )
    add_recipe_options(command)
    command.add_argument("--tokenizer", required=True, metavar="URI", help="tokenizer artifact of the run")
    command.add_argument("--out", required=True, type=Path, metavar="DIR", help="directory to write")
    told = "precision of the weights (default: as they were trained)"
    command.add_argument("--precision", choices=["bf16", "fp32"], help=told)
    command.set_defaults(command=run_export)


def run_export(options: argparse.Namespace) -> int:
    """Write the directory whole or not at all, and print where it is."""
    require_packages("pretrain")
    import torch

    from anadil.model.tiny import base_model
    from anadil.pretrain.checkpoint import hf_export as exporting

    recipe = load_recipe(options.recipe, options.set)
    refuse_finished(options.checkpoint)
    storage.refuse_occupied(str(options.out))
    tokenizer, _ = fetch(options.tokenizer, "tokenizer")
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, None: None}
    draft = options.out.with_name(f"{options.out.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        base = base_model(recipe.base, base_cache(recipe))
        told = exporting.export_checkpoint(
            options.checkpoint, base, tokenizer, draft, dtype=dtypes[options.precision]
        )
        if options.out.is_dir():
            options.out.rmdir()  # an empty one
        draft.rename(options.out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    log.info("step %s: %s tensors, %s", f"{told['step']:,}", told["tensors"], human_bytes(told["bytes"]))
    print(options.out)
    return 0


def refuse_finished(path: Path) -> None:
    """Say what to do with an artifact, which needs no export.

    Raises:
        RecipeError: The directory holds an artifact, not a checkpoint.
    """
    manifest = artifact.read_manifest(str(path))
    if manifest is None or manifest.kind == "checkpoint":
        return
    ready = {"model": "", "adapter": "/merged"}
    if manifest.kind in ready:
        raise RecipeError(
            f"{path}: is a finished {manifest.kind}, not a checkpoint, and needs no export: transformers and vLLM load "
            f"{path}{ready[manifest.kind]} as it is"
        )
    raise RecipeError(
        f"{path}: holds a {manifest.kind}; give a checkpoint, a directory .../checkpoints/step-N"
    )
