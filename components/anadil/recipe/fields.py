"""Parts of every section of a recipe: the closed, frozen table and its field types."""

import ast
import contextlib
import difflib
import inspect
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _not_home(place: str) -> str:
    if place.startswith("~"):
        raise ValueError("`~` is another place on every machine; write the directory out")
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
Place = Annotated[Text, AfterValidator(_not_home)]
Directory = Annotated[Text, AfterValidator(_absolute)]
NEUTRAL = "leaves the result as it is"
"""Mark of a key that is no part of an artifact's key, as in `Annotated[int, NEUTRAL]`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Name of a Kubernetes object. Source: RFC 1123, DNS subdomain."""


def key_texts(model: type[BaseModel]) -> dict[str, str]:
    """Key of a section -> the docstring below it, where its class and those above have one."""
    # pydantic's `use_attribute_docstrings` parses all sections where they are imported: a quarter of that time, in every
    # process, for texts that the schema and the reference alone show.
    texts = {}
    for parent in reversed(model.__mro__):
        with contextlib.suppress(
            OSError, TypeError
        ):  # built in, or made of a table, which has texts of its own
            body = ast.parse(inspect.getsource(parent)).body[0]
            for key, text in itertools.pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
                match key, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(said))
                    ):
                        texts[name] = inspect.cleandoc(said)
    return {key: text for key, text in texts.items() if key in model.model_fields}


def _with_texts(schema: dict[str, Any], model: type[BaseModel]) -> None:
    for key, text in key_texts(model).items():
        schema["properties"][key].setdefault("description", text)


class StrictModel(BaseModel):
    """A section of the recipe: immutable, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        json_schema_extra=_with_texts,
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
