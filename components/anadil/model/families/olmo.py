"""OLMo, which from version 2 on norms after attention and the MLP, and queries and keys."""

from anadil.model.family import PIPELINE_LAYOUTS, Architecture, Family, Gguf

FIXED = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False}
FAMILIES = (
    Family(
        model_type="olmo",
        layouts=PIPELINE_LAYOUTS,
        gguf=Gguf(
            architecture="olmo",
            turns_neighbours=True,
            own_head_size=False,
            fixed={"hidden_act": "silu", "attention_bias": False},
            numbers={"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": "clip_qkv"},
        ),
    ),
    Family(
        model_type="olmo2",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(
            norms_before=False, norms_after=True, head_norms="width", norms_in_fp32=True, rotation="fp32"
        ),
        gguf=Gguf(architecture="olmo2", own_head_size=False, fixed=FIXED),
    ),
    Family(
        model_type="olmo3",
        gguf=Gguf(architecture="olmo2", windows="same_base", own_head_size=False, fixed=FIXED),
    ),
)
