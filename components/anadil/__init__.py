"""Teach a foundation model a language: raw text in, an adapted model and a report out.

To Python, such as a notebook, this module offers `run` and `stage`; both are loaded when they are used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anadil.release.python_calls import run as run
    from anadil.release.python_calls import stage as stage

__version__ = "0.1.0"


# An import at the top would load recipe and release wherever a light module asks for the version.
def __getattr__(name: str) -> object:
    if name not in ("run", "stage"):
        raise AttributeError(f"module 'anadil' has no attribute {name!r}; it offers run and stage")
    import importlib

    return getattr(importlib.import_module("anadil.release.python_calls"), name)
