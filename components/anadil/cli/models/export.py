"""`anadil export`: a finished model, an adapter or a checkpoint in the files of those who serve it."""

import argparse
import logging
from pathlib import Path
from typing import Any

from anadil.artifacts.prefetch import fetch
from anadil.cli.options import place
from anadil.core.errors import RecipeError
from anadil.core.format import human_bytes
from anadil.preflight.this_machine import require_packages
from anadil.recipe.load import load_recipe
from anadil.release.export.export_model import DTYPES, FORMATS, QUANTIZATIONS, export
from anadil.release.model_source import ModelSource, find_model
from anadil.release.registry.client import SCHEME
from anadil.runtime.entry_point import add_recipe_options
from anadil.runtime.execute import base_cache
from anadil.runtime.signals import Stop
from anadil.runtime.tracking_spool import tracking_uri

log = logging.getLogger(__name__)

DESCRIPTION = """Every byte of an artifact is compared with its manifest first, and PATH is written whole or not at all.

  hf    a directory that transformers 4 and 5 and vLLM load as it is; of an adapter its merged model
  gguf  one file for llama.cpp, Ollama and LM Studio; Modelfile, card and licence beside it

A checkpoint of pretrain (.../checkpoints/step-N) also needs --recipe and --tokenizer of its run; a name of the registry
is looked up at the recipe's tracking.uri, or MLFLOW_TRACKING_URI."""


def add_export(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description = f"{command.description}\n\n{DESCRIPTION}"
    help_text = "model or adapter artifact, checkpoint, Hugging Face directory, or models:/NAME@ALIAS"
    command.add_argument("uri", metavar="URI", help=help_text)
    command.add_argument("--format", choices=FORMATS, default="hf", help="default: %(default)s")
    help_text = "directory to write; with --format gguf also a file NAME.gguf"
    command.add_argument("--out", type=place, required=True, metavar="PATH", help=help_text)
    help_text = "precision of the weights (default: as they are stored)"
    command.add_argument("--precision", choices=list(DTYPES), help=help_text)
    help_text = "with --format gguf: weights in 8 bits, a scale for each 32"
    command.add_argument("--quantize", choices=QUANTIZATIONS, help=help_text)
    help_text = "of a base of text and images: write the weights back into it, so that the model sees images"
    command.add_argument("--with-images", action="store_true", help=help_text)
    help_text = "scores artifact whose figures the model card shows"
    command.add_argument("--scores", metavar="URI", help=help_text)
    add_recipe_options(command)
    command.add_argument("--tokenizer", metavar="URI", help="of a checkpoint: tokenizer artifact of its run")
    command.set_defaults(command=run_export)


def run_export(options: argparse.Namespace) -> int:
    """Write the model whole or not at all, and print its place."""
    _check(options)
    Stop().listen()  # so that a partial export is removed
    registered = options.uri.startswith(SCHEME)
    tracking = tracking_uri(load_recipe(options.recipe, options.set)) if registered else None
    source = find_model(options.uri, tracking=tracking)
    exported = export(
        source, Path(options.out), options.format, precision=options.quantize or options.precision,
        scores=options.scores, checkpoint=_checkpoint(options, source), image_base=_image_base(options, source),
    )  # fmt: skip
    log.info("%s: %s", source.uri, human_bytes(exported.num_bytes))
    print(exported.path)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.quantize and options.format != "gguf":
        raise RecipeError(f"--quantize {options.quantize}: only with --format gguf")
    if options.quantize and options.precision:
        raise RecipeError(
            f"--quantize {options.quantize} and --precision {options.precision}: give one of them"
        )
    if options.with_images and options.format != "hf":
        raise RecipeError("--with-images: only with --format hf")
    if options.format == "gguf":
        require_packages("gguf")
    elif options.precision or options.with_images:
        require_packages("pretrain")


def _image_base(options: argparse.Namespace, source: ModelSource) -> Path | None:
    """The model of text and images that the weights go back into, if that is asked."""
    if not options.with_images:
        return None
    from anadil.release.export.image_model import image_base

    return image_base(source, base_cache(load_recipe(options.recipe, options.set)))


def _checkpoint(options: argparse.Namespace, source: ModelSource) -> Any:
    """A function that writes a checkpoint as a Hugging Face directory; None for other models."""
    if source.kind != "checkpoint":
        return None
    if options.tokenizer is None:
        raise RecipeError(f"{source.uri}: is a checkpoint; give --recipe and --tokenizer of its run")
    require_packages("pretrain")
    import torch

    from anadil.model.tiny import base_model
    from anadil.pretrain.checkpoint.hf_export import export_checkpoints

    recipe = load_recipe(options.recipe, options.set)
    tokenizer, _ = fetch(options.tokenizer, "tokenizer")
    dtype = getattr(torch, DTYPES[options.precision]) if options.precision else None

    def write(directory: Path) -> None:
        base = base_model(recipe.base, base_cache(recipe))
        report = export_checkpoints([Path(source.uri)], base, tokenizer, directory, dtype=dtype)
        log.info("step %s: %s tensors", f"{report['step']:,}", report["tensors"])

    return write
