"""The limits of the document filters as a recipe names them."""

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from anadil.recipe.fields import UNION_TAG, StrictModel
from anadil.text.filter_rules import limits_model

NO_RULES: Literal["none"] = "none"
"""Word for rules of which none judges."""


class Rules(limits_model(StrictModel, has_defaults=False)):  # type: ignore[misc]  # the table of rules has its fields
    """Limits of the document filters; a key left out takes the language's own limit. `rules: none`: no limit judges, and only empty documents go."""


RulesOrNone = Annotated[
    Annotated[Literal["none"], Tag(f"{UNION_TAG}word")] | Annotated[Rules, Tag(f"{UNION_TAG}limits")],
    Discriminator(lambda value: f"{UNION_TAG}{'word' if isinstance(value, str) else 'limits'}"),
]
