"""Teach a foundation model a language: raw text in, an adapted model and a report out.

In Python, such as in a notebook, this module offers what the command line does after a run:
`anadil.run`, `anadil.load_recipe`, `anadil.list_runs`, `anadil.compare`. Each is loaded when it is used.
`__init__.pyi` has their types.
"""

import importlib

__version__ = "0.1.0"

OFFERED = {
    "compare": "anadil.release.compare",
    "list_runs": "anadil.release.runs",
    "load_recipe": "anadil.recipe.load",
    "run": "anadil.release.start_run",
}
"""Function -> module that holds it."""


def __getattr__(name: str) -> object:
    if name not in OFFERED:
        raise AttributeError(f"module 'anadil' has no attribute {name!r}; it offers {', '.join(OFFERED)}")
    found = getattr(importlib.import_module(OFFERED[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*OFFERED, "__version__"})
