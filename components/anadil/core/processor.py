"""Abilities of this machine's processor, asked without torch."""

import os
import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
"""As Linux names products of BF16 matrices on x86-64 and on ARM."""
MAX_ISA = "ONEDNN_MAX_CPU_ISA"
"""Caps what oneDNN, which computes torch's products, uses of a processor."""
ISAS_WITH_BF16 = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")
"""Words in the names of those instruction sets. Source: oneDNN 3, "CPU Dispatcher Control"."""


AMX_FLAG, ISAS_WITH_AMX = "amx_bf16", ("AMX", "AVX10", "DEFAULT", "ALL")
"""The same for products of tiles, several times as fast as vectors."""


def has_bf16_products() -> bool:
    """Return whether the processor multiplies BF16 matrices itself.

    Without, torch computes them in a plain loop, 10 to 200 times as slowly as FP32.
    Source: aten/src/ATen/native/mkldnn/Matmul.cpp of torch 2.13.
    """
    return bool(_flags(ISAS_WITH_BF16) & BF16_FLAGS)


def has_amx_products() -> bool:
    """Return whether it multiplies tiles of BF16, and oneDNN may use them."""
    return AMX_FLAG in _flags(ISAS_WITH_AMX)


def _flags(isas: tuple[str, ...]) -> set[str]:
    """Return the abilities that Linux names, or none where oneDNN is capped below instruction sets."""
    most = os.environ.get(MAX_ISA, "DEFAULT").upper()
    if not any(word in most for word in isas):
        return set()
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return set()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(flags[1].split()) if flags else set()
