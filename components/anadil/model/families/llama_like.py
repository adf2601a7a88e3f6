"""Types that nothing here has to treat otherwise than a Llama, but for the layouts that are tested for them."""

from anadil.model.family import (
    ALL_LAYOUTS,
    LLAMA_GGUF,
    PIPELINE_LAYOUTS,
    SHARD_LAYOUTS,
    TENSOR_LAYOUTS,
    Family,
    Gguf,
    ModuleNames,
)

FAMILIES = (
    Family(model_type="apertus", layouts=PIPELINE_LAYOUTS),
    Family(
        model_type="arcee",
        layouts=PIPELINE_LAYOUTS,
        gguf=Gguf(
            architecture="arcee",
            turns_neighbours=True,
            scalings=LLAMA_GGUF.scalings,
            fixed={"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False},
        ),
    ),
    Family(model_type="bitnet", layouts=SHARD_LAYOUTS),
    Family(model_type="cwm", layouts=TENSOR_LAYOUTS, gguf=LLAMA_GGUF),
    Family(model_type="diffllama", layouts=frozenset()),
    Family(
        model_type="ernie4_5",
        layouts=ALL_LAYOUTS,
        published_tied=True,
        gguf=Gguf(architecture="ernie4_5", fixed={"hidden_act": "silu", "use_bias": False}),
    ),
    Family(
        model_type="exaone4",
        gguf=Gguf(architecture="exaone4", fixed={"hidden_act": "silu", "sliding_window": None}),
    ),
    Family(
        model_type="granite",
        layouts=TENSOR_LAYOUTS,
        gguf=Gguf(
            architecture="granite",
            turns_neighbours=True,
            scalings=LLAMA_GGUF.scalings,
            numbers={
                "attention.layer_norm_rms_epsilon": "rms_norm_eps",
                "attention.scale": "attention_multiplier",
                "embedding_scale": "embedding_multiplier",
                "logit_scale": "logits_scaling",
                "residual_scale": "residual_multiplier",
            },
        ),
    ),
    Family(model_type="helium", layouts=ALL_LAYOUTS),
    Family(
        model_type="hunyuan_v1_dense",
        gguf=Gguf(architecture="hunyuan-dense", fixed={"hidden_act": "silu", "attention_bias": False}),
    ),
    Family(model_type="hyperclovax"),
    Family(model_type="jais2"),
    # Its convolutions look back over the edge of a slice, which other layouts cut.
    Family(model_type="lfm2", layouts=frozenset(["shard"]), names=ModuleNames(norm="model.embedding_norm")),
    Family(model_type="persimmon", layouts=frozenset()),
    Family(
        model_type="seed_oss",
        layouts=ALL_LAYOUTS,
        gguf=Gguf(
            architecture="seed_oss",
            fixed={"hidden_act": "silu", "attention_out_bias": False, "mlp_bias": False},
        ),
    ),
    Family(
        model_type="smollm3",
        layouts=TENSOR_LAYOUTS,
        published_tied=True,
        gguf=Gguf(
            architecture="smollm3",
            turns_neighbours=True,
            own_head_size=False,
            fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        ),
    ),
    Family(
        model_type="starcoder2",
        layouts=PIPELINE_LAYOUTS,
        gguf=Gguf(
            architecture="starcoder2",
            own_head_size=False,
            fixed={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
            numbers={"attention.layer_norm_epsilon": "norm_epsilon"},
        ),
    ),
)
