"""Llama."""

from anadil.model.family import ALL_LAYOUTS, LLAMA_GGUF, Architecture, Family


def _llama_3(width: int, mlp_width: int, layers: int, heads: int, **others: object) -> dict[str, object]:
    return {
        "model_type": "llama",
        "vocab_size": 128_256,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **others,
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
            "meta-llama/Llama-3.2-1B": _llama_3(2_048, 8_192, 16, 32, head_dim=64, tie_word_embeddings=True),
            "meta-llama/Llama-3.2-3B": _llama_3(3_072, 8_192, 28, 24, tie_word_embeddings=True),
            "meta-llama/Llama-3.1-8B": _llama_3(4_096, 14_336, 32, 32),
            "meta-llama/Llama-3.1-70B": _llama_3(8_192, 28_672, 80, 64),
            "meta-llama/Llama-3.3-70B": _llama_3(8_192, 28_672, 80, 64),
            "meta-llama/Llama-3.1-405B": _llama_3(16_384, 53_248, 126, 128),
            # The built-in base, whose package is fetched when a run begins.
            "smollm2": {
                "model_type": "llama",
                "hidden_size": 576,
                "intermediate_size": 1_536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "vocab_size": 49_152,
                "tie_word_embeddings": True,
            },
        },
    ),
)
