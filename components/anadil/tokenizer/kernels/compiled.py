"""Modules of the tokenizer stage that are compiled to machine code."""

from pathlib import Path

from anadil.core.compiled import Kernels

KERNELS = Kernels(Path(__file__).parent, ("../word_counts",))
compiled = KERNELS.compiled
