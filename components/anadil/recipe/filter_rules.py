"""The limits of the document filters as a recipe names them."""

from anadil.recipe.fields import StrictModel
from anadil.text.filter_rules import limits_model


class Rules(limits_model(StrictModel, has_defaults=False)):  # type: ignore[misc]  # the table of rules has its fields
    """Limits of the document filters; a key left out takes the language's own limit."""
