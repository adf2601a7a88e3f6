"""Phi-3, whose matrices for queries, keys and values are one."""

from anadil.model.family import PIPELINE_LAYOUTS, Family, Gguf, Version4Keys

FAMILIES = (
    Family(
        model_type="phi3",
        layouts=PIPELINE_LAYOUTS,
        # Version 4 refuses any other key.
        version_4=Version4Keys(scaling=frozenset(["short_factor", "long_factor"])),
        gguf=Gguf(architecture="phi3", own_head_size=False),
    ),
)
