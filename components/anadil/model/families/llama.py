"""Llama."""

from anadil.model.family import ALL_LAYOUTS, LLAMA_GGUF, Architecture, Family

LLAMA_3 = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
LLAMA_1B = {
    **LLAMA_3,
    "hidden_size": 2_048,
    "intermediate_size": 8_192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
LLAMA_3B = {
    **LLAMA_3,
    "hidden_size": 3_072,
    "intermediate_size": 8_192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "tie_word_embeddings": True,
}
LLAMA_8B = {
    **LLAMA_3,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_70B = {
    **LLAMA_3,
    "hidden_size": 8_192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LLAMA_405B = {
    **LLAMA_3,
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
FAMILIES = (
    Family(
        model_type="llama",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(mlp_bias=True),
        liger="apply_liger_kernel_to_llama",
        gguf=LLAMA_GGUF,
        # Source: config.json of each model; Llama 3, arXiv:2407.21783, table 3.
        known={
            "meta-llama/Llama-3.2-1B": LLAMA_1B,
            "meta-llama/Llama-3.2-3B": LLAMA_3B,
            "meta-llama/Llama-3.1-8B": LLAMA_8B,
            "meta-llama/Llama-3.1-70B": LLAMA_70B,
            "meta-llama/Llama-3.3-70B": LLAMA_70B,
            "meta-llama/Llama-3.1-405B": LLAMA_405B,
        },
    ),
)
