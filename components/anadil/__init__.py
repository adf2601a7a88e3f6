"""Teach a foundation model a language: raw text in, an adapted model and a report out.

To Python, such as a notebook, this module offers what the command line does: run all stages or one, list, compare,
trace, ask. Each function is loaded when it is used; `__init__.pyi` has the types.
"""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

OFFERED = {
    "Artifact": "anadil.release.artifact_object",
    "Chat": "anadil.release.chat.conversation",
    "ChatSettings": "anadil.release.chat.conversation",
    "clean": "anadil.release.stage_calls",
    "compare": "anadil.release.compare.comparison",
    "evaluate": "anadil.release.stage_calls",
    "find_model": "anadil.release.model_source",
    "finetune": "anadil.release.stage_calls",
    "list_runs": "anadil.release.runs",
    "load_recipe": "anadil.recipe.load",
    "open_artifact": "anadil.release.artifact_object",
    "open_chat": "anadil.release.chat.conversation",
    "pretrain": "anadil.release.stage_calls",
    "run": "anadil.release.stage_calls",
    "trace": "anadil.release.trace.lineage",
    "train_tokenizer": "anadil.release.stage_calls",
}
"""Name -> module that holds it."""
CALLABLE_PACKAGES = ("clean", "evaluate", "finetune", "pretrain")
"""Names that are also the package of their stage: whichever is imported first, `anadil.clean(...)` runs it."""


def __getattr__(name: str) -> object:
    if name not in OFFERED:
        raise AttributeError(f"module 'anadil' has no attribute {name!r}; it offers {', '.join(OFFERED)}")
    if name in CALLABLE_PACKAGES:
        return importlib.import_module(f"anadil.{name}")
    globals()[name] = offered = _load(name)
    return offered


def __dir__() -> list[str]:
    return sorted({*OFFERED, "__version__"})


def _load(name: str) -> object:
    return getattr(importlib.import_module(OFFERED[name]), name)


# Another name for the functions would have needed none of this. `anadil.clean` is what people try first, and a function
# in the package's place would break `import anadil.clean.run as module`.
class _StagePackage(ModuleType):
    """The package of a stage, which runs the stage where it is called; documentation is the function's."""

    def __call__(self, *arguments: object, **keys: object) -> object:
        return self._function(*arguments, **keys)  # type: ignore[operator]  # a function, by its name alone

    @property
    def _function(self) -> object:
        try:
            return _load(self.__name__.rpartition(".")[2])
        except (
            ModuleNotFoundError
        ) as error:  # in an image of one stage; whoever asks for a docstring gets none
            raise AttributeError(f"{self.__name__} cannot be called here: {error}") from None

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # of a module it is an attribute
        return self._function.__doc__

    @property
    def __signature__(self) -> object:
        return self._function.__signature__  # type: ignore[attr-defined]  # a function with keys has one


class _Package(ModuleType):
    """This module. An import of a stage's package binds it to the name of the stage's function."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in CALLABLE_PACKAGES and type(value) is ModuleType:
            value.__class__ = _StagePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
