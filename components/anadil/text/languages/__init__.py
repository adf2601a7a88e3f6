"""What differs between languages: data and small pure functions, a module for each."""

import importlib

from anadil.text.language import Language


def language(code: str) -> Language:
    """The language of an ISO 639-1 code that the recipe allows, such as `az`."""
    found: Language = importlib.import_module(f"anadil.text.languages.{code}").LANGUAGE
    return found
