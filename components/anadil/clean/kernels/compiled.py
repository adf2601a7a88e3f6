"""Decorator of the functions of cleaning that are compiled to machine code."""

from pathlib import Path

from anadil.clean.kernels.columns import STATISTICS
from anadil.core.compiled import Kernels

# The order of the columns comes from the table of rules, outside this folder, and is compiled in.
KERNELS = Kernels(Path(__file__).parent, constants=STATISTICS)
compiled = KERNELS.compiled
