"""Modules that Python code imports, read without running it, and modules that are loaded when something needs them."""

import ast
import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType


def required_imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a file, without the optional ones."""
    optional = {id(inner) for node in ast.walk(tree) if _is_optional(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in optional:
            yield node


def _is_optional(node: ast.AST) -> bool:
    if isinstance(node, ast.Try):
        return not any(isinstance(inner, ast.Raise) for each in node.handlers for inner in ast.walk(each))
    return isinstance(node, ast.If) and any(
        word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__main__")
    )


def load_module(name: str) -> ModuleType:
    """Import a module that may import thousands, without looks for garbage among them."""
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    # Nothing of what an import makes is garbage. Looking for it takes a tenth of the import, .8 CPU seconds with torch and
    # transformers, and as long again at each full collection later.
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries tell of what is left at the end
