"""Mistral and Ministral."""

from anadil.model.family import ALL_LAYOUTS, LLAMA_GGUF, TENSOR_LAYOUTS, Architecture, Family

FAMILIES = (
    Family(
        model_type="mistral",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8}),
        gguf=LLAMA_GGUF,
    ),
    Family(model_type="ministral", layouts=TENSOR_LAYOUTS, gguf=LLAMA_GGUF),
    Family(model_type="ministral3", layouts=TENSOR_LAYOUTS),
)
