"""Mistral and Ministral."""

from anadil.model.family import ALL_LAYOUTS, TENSOR_LAYOUTS, Architecture, Family

FAMILIES = (
    Family(
        model_type="mistral",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8}),
    ),
    Family(model_type="ministral", layouts=TENSOR_LAYOUTS),
    Family(model_type="ministral3", layouts=TENSOR_LAYOUTS),
)
