"""Gemma, which scales its embeddings; Gemma 3's layers have one of two rotations."""

from anadil.model.family import Architecture, Family, Version4Keys

FAMILIES = (
    Family(model_type="gemma"),
    Family(
        model_type="gemma3_text",
        version_4=Version4Keys(sliding_theta="rope_local_base_freq"),
        architecture=Architecture(
            norms_after=True,
            head_norms="head",
            norms_in_fp32=True,
            defaults={"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True},
        ),
    ),
)
