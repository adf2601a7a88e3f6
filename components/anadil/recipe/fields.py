"""Parts of every section of a recipe: the closed, frozen table and its field types."""

import difflib
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _reachable(place: str) -> str:
    if place.startswith("~"):
        raise ValueError("`~` is another place on every machine; write the directory out")
    if "://" in place and not place.startswith(("s3://", "hf://")):
        raise ValueError("storage of this kind is not supported: use a local path or s3://")
    return place


def _absolute(place: str) -> str:
    if not place.startswith("/"):
        raise ValueError("a directory of a container begins with /")
    return place.rstrip("/") or "/"


NEAR = 0.7
"""Least likeness of a word that is offered for another; difflib's own 0.6 takes `minhash_rows` for `min_char`."""
UNION_TAG = "*"
"""Begins the names of the kinds of value that a key may hold; they are no part of the key's path."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text, AfterValidator(_reachable)]
Directory = Annotated[Text, AfterValidator(_absolute)]
NEUTRAL = "leaves the result as it is"
"""Mark of a key that is no part of an artifact's key, as in `Annotated[int, NEUTRAL]`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Name of a Kubernetes object. Source: RFC 1123, DNS subdomain."""


class StrictModel(BaseModel):
    """A section of the recipe: immutable, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """The nearest of some words, as the end of a message; empty where none is near."""
    close = difflib.get_close_matches(word, words, n=1, cutoff=NEAR) or [
        each for each in words if _swapped(word, each)
    ]
    return f"; did you mean {close[0]!r}?" if close else ""


def _swapped(word: str, other: str) -> bool:
    """True if two neighbouring letters changed places: `onw` for `own`, which difflib finds too unlike."""
    unlike = [place for place, pair in enumerate(zip(word, other, strict=False)) if pair[0] != pair[1]]
    return len(word) == len(other) and len(unlike) == 2 and sorted(word) == sorted(other)
