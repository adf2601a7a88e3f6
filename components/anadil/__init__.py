"""Teach a foundation model a language: raw text in, an adapted model and a report out.

To Python, such as a notebook, this module offers what the command line does around a run: run, list, compare,
trace, ask. Each function is loaded when it is used; `__init__.pyi` has the types.
"""

import importlib

__version__ = "0.1.0"

OFFERED = {
    "Chat": "anadil.release.chat.conversation",
    "ChatSettings": "anadil.release.chat.conversation",
    "compare": "anadil.release.compare.comparison",
    "find_model": "anadil.release.model_source",
    "list_runs": "anadil.release.runs",
    "load_recipe": "anadil.recipe.load",
    "open_chat": "anadil.release.chat.conversation",
    "run": "anadil.release.start_run",
    "trace": "anadil.release.trace.lineage",
}
"""Name -> module that holds it."""


def __getattr__(name: str) -> object:
    if name not in OFFERED:
        raise AttributeError(f"module 'anadil' has no attribute {name!r}; it offers {', '.join(OFFERED)}")
    found = getattr(importlib.import_module(OFFERED[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*OFFERED, "__version__"})
