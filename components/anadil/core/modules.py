"""Modules that are loaded when something needs them."""

import atexit
import gc
import importlib
import sys
from types import ModuleType


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
