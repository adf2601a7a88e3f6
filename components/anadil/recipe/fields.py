"""Parts of every section of a recipe: the closed, frozen table and its field types."""

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator


def _reachable(place: str) -> str:
    if place.startswith("~"):
        raise ValueError("`~` is another place on every machine; write the directory out")
    return _refuse_address(place, "s3")


def _refuse_address(place: str, *known: str) -> str:
    if fault := address_fault(place, *known):
        raise ValueError(fault)
    return place


def address_fault(place: str, *known: str) -> str:
    """Reason that a place is neither a local path nor an address of a known scheme, or nothing."""
    scheme = SCHEME.match(place)
    if not scheme:
        return ""
    name, rest = scheme[0].lower(), place[scheme.end() + 1 :].lstrip("/")
    if name not in known:
        schemes = " or ".join(f"{each}://" for each in known)
        return f"storage {name}:// is not supported; use a local path{schemes and f' or {schemes}'}"
    if not rest:
        return f"names no bucket, write {name}://bucket/key"
    return "" if place == f"{name}://{rest}" else f"is no address, write {name}://{rest}"


def _absolute(place: str) -> str:
    if not place.startswith("/"):
        raise ValueError("a directory of a container begins with /")
    return place.rstrip("/") or "/"


SCHEME = re.compile(r"(s3|hf|file|https?|builtin)(?=:)|[a-z][\w+.-]*(?=:/)", re.IGNORECASE)
"""Begins an address. One slash, or none, is how people mistype one, and a directory of that name would be made."""
CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
PROSE = dict.fromkeys(("system", "prompts"), re.compile(r"[\x00-\x08\x0e-\x1f\x7f]"))
"""Keys whose texts may have lines -> what these may not have."""
T = TypeVar("T")
NEAR = 0.7
"""Least likeness of a word that is offered for another; difflib's own 0.6 takes `minhash_rows` for `min_char`."""
UNION_TAG = "*"
"""Begins the names of the kinds of value that a key may hold; they are no part of the key's path."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text, AfterValidator(_reachable)]
Directory = Annotated[Text, AfterValidator(_absolute)]
Model = Annotated[Text, AfterValidator(_refuse_address)]
"""Directory or id of the hub."""
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

    @field_validator("*")
    @classmethod
    def _is_plain(cls, value: T, info: ValidationInfo) -> T:
        # A line feed would begin a line of a manifest; no path and no variable holds a zero byte.
        strange = PROSE.get(info.field_name or "", CONTROL)
        if any(map(strange.search, _texts_of(value))):
            raise ValueError("holds a line feed or another control character; write it without")
        return value


def _texts_of(value: object) -> Iterator[str]:
    """Yield all texts of a value, keys too, but for those of sections within."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for each in itertools.chain(value, value.values()) if isinstance(value, Mapping) else value:
            yield from _texts_of(each)


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
