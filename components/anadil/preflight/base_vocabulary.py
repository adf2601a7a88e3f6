"""Checks of the base's tokenizer before the corpus is made."""

from pathlib import Path

from anadil.artifacts.base_vocabulary import read_base, require_byte_level, require_end
from anadil.core.errors import PreflightError
from anadil.plan.model_shape import NotPlannedError, base_shape
from anadil.recipe.sections import Recipe


def check_base_vocabulary(recipe: Recipe, folder: Path, *, changes: bool) -> int:
    """Number of tokens of the base's tokenizer.

    Args:
        recipe: What is to run.
        folder: The base's tokenizer.
        changes: Candidates are made of it, or tried.

    Raises:
        DataError: It names no end of text, or the recipe's strategies cannot change it.
        PreflightError: A trial is asked for of a model whose compute is not known.
    """
    tokenizer = read_base(folder)
    require_end(folder, tokenizer)
    if changes and set(recipe.tokenizer.strategies) - {"base"}:
        require_byte_level(tokenizer, recipe.base.model)
    if changes and recipe.tokenizer.trial:
        _require_compute(recipe)
    return tokenizer.get_vocab_size()


def gguf_detail(folder: Path) -> str:
    """A note on export as GGUF, which else shows only after training.

    Args:
        folder: The base; nothing is said of one without a config.json.
    """
    if not (folder / "config.json").is_file():
        return ""
    try:  # loads transformers, which not every image has
        from anadil.release.export.gguf_refusal import gguf_refusal, gguf_words
    except ModuleNotFoundError as error:
        return f"GGUF not checked ({error.name} is not installed here)"
    if fault := gguf_refusal(folder):
        return f"no GGUF ({fault})"
    return f"GGUF as {gguf_words(folder)}"


def _require_compute(recipe: Recipe) -> None:
    """Else the finalists of a trial could not be given equal shares."""
    try:
        base_shape(recipe)
    except NotPlannedError as error:
        raise PreflightError(
            f"tokenizer.trial: gives every finalist the same compute, and that of the model type {error.model_type!r} of "
            f"base.model {recipe.base.model} is not known; leave tokenizer.trial out, and the cheapest by tokens is taken"
        ) from None
