"""Gemma, which scales its embeddings; Gemma 3's layers have one of two rotations."""

from anadil.model.family import Family, Version4Keys

FAMILIES = (
    Family(model_type="gemma"),
    Family(model_type="gemma3_text", version_4=Version4Keys(sliding_theta="rope_local_base_freq")),
)
