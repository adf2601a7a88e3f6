"""Mistral and Ministral."""

from anadil.model.family import EVERY_LAYOUT, TENSOR, Architecture, Family

FAMILIES = (
    Family(
        model_type="mistral",
        layouts=EVERY_LAYOUT,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8}),
    ),
    Family(model_type="ministral", layouts=TENSOR),
    Family(model_type="ministral3", layouts=TENSOR),
)
