"""Qwen 2, whose queries, keys and values always have biases, and Qwen 3, which norms each head instead."""

from anadil.model.family import EVERY_LAYOUT, PIPELINE, Architecture, Family

FAMILIES = (
    Family(
        model_type="qwen2",
        layouts=EVERY_LAYOUT,
        architecture=Architecture(bias="inputs", has_bias=True, defaults={"num_key_value_heads": 32}),
    ),
    Family(
        model_type="qwen3",
        layouts=PIPELINE,
        architecture=Architecture(head_norms="head", defaults={"num_key_value_heads": 32, "head_dim": 128}),
    ),
)
