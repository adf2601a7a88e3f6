"""Gemma, which scales its embeddings; Gemma 3's layers have one of two rotations."""

from anadil.model.family import Architecture, Family, Gguf, Version4Keys

FAMILIES = (
    Family(
        model_type="gemma",
        gguf=Gguf(
            architecture="gemma",
            norm_offset=1.0,
            fixed={"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True},
        ),
    ),
    Family(
        model_type="gemma3_text",
        version_4=Version4Keys(sliding_theta="rope_local_base_freq"),
        architecture=Architecture(
            norms_after=True,
            head_norms="head",
            norms_in_fp32=True,
            defaults={"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True},
        ),
        gguf=Gguf(
            architecture="gemma3",
            norm_offset=1.0,
            windows="own_base",
            fixed={
                "hidden_activation": "gelu_pytorch_tanh",
                "attention_bias": False,
                "attn_logit_softcapping": None,
                "use_bidirectional_attention": False,
            },
            numbers={
                "attention.layer_norm_rms_epsilon": "rms_norm_eps",
                "final_logit_softcapping": "final_logit_softcapping",
            },
        ),
    ),
)
