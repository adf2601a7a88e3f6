"""Qwen 2, whose queries, keys and values always have biases, and Qwen 3, which norms each head instead."""

from anadil.model.family import ALL_LAYOUTS, LLAMA_TENSOR_PLAN, Architecture, Family, Gguf

FAMILIES = (
    Family(
        model_type="qwen2",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(bias="inputs", has_bias=True, defaults={"num_key_value_heads": 32}),
        gguf=Gguf(architecture="qwen2"),
    ),
    Family(
        model_type="qwen3",
        layouts=ALL_LAYOUTS,
        tensor_plan={**LLAMA_TENSOR_PLAN, "self_attn.q_norm": "norm", "self_attn.k_norm": "norm"},
        architecture=Architecture(head_norms="head", defaults={"num_key_value_heads": 32, "head_dim": 128}),
        gguf=Gguf(architecture="qwen3", fixed={"hidden_act": "silu", "attention_bias": False}),
    ),
)
