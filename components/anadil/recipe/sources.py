"""The recipe's table `sources`: named bodies of text, each with its own inputs, language and rules."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from anadil.recipe.clean import Clean
from anadil.recipe.fields import NEUTRAL, StrictModel, Text
from anadil.text.language import load_language

MAX_EPOCHS = 4
"""Passes over a source that are nearly as good as new text. Source: Muennighoff et al. 2023, arXiv:2305.16264."""
SourceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,29}$")]
"""It becomes part of the names of steps, artifacts and metrics, so it is no path."""


def has_language(language: str) -> str:
    """Return the language as it is, or raise with the remedy."""
    load_language(language)
    return language


class Source(StrictModel):
    """A body of text that phases of training draw from by `mix`."""

    # Decided by the content of its corpus, which is an input of the stages that read it.
    inputs: Annotated[tuple[str, ...], NEUTRAL] = ()
    """Files as of `clean.inputs`."""
    language: Annotated[Text | None, AfterValidator(lambda each: each and has_language(each)), NEUTRAL] = None
    """Language of the text, as `language` of the recipe; left out, that of the recipe."""
    clean: Annotated[Clean, NEUTRAL] = Clean()
    """Keys of the section `clean` that are others for this source; a key left out is that of the recipe."""
    max_tokens: PositiveInt | None = None
    """Most tokens that are used, a random sample of its documents; left out, all."""
    max_epochs: PositiveInt = MAX_EPOCHS
    """Most passes over it; then its share goes to the others. Source: arXiv:2305.16264."""
