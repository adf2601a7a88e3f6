"""The model families, by likeness; a new one is a record more."""

from dataclasses import replace

from anadil.model import gguf_layers, hybrids, layer_sizes
from anadil.model.family import (
    ALL_LAYOUTS,
    LLAMA_GGUF,
    LLAMA_TENSOR_PLAN,
    PIPELINE_LAYOUTS,
    SHARD_LAYOUTS,
    TENSOR_LAYOUTS,
    Architecture,
    Family,
    Gguf,
    LayerTables,
    LogitKeys,
    ModuleNames,
    Version4Keys,
)


def _llama_3(width: int, mlp_width: int, layers: int, heads: int, **others: object) -> dict[str, object]:
    return {
        "model_type": "llama", "vocab_size": 128_256, "head_dim": 128, "num_key_value_heads": 8,
        "tie_word_embeddings": False, "hidden_size": width, "intermediate_size": mlp_width,
        "num_hidden_layers": layers, "num_attention_heads": heads, **others,
    }  # fmt: skip


GEMMA_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True
}  # fmt: skip
GEMMA_4_DEFAULTS = {
    **GEMMA_DEFAULTS, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
}  # fmt: skip
GEMMA_LOGITS = LogitKeys(cap="final_logit_softcapping")
GEMMA_FIXED = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
GEMMA_NUMBERS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
EXPERT_COUNTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
OWN_WIDTH = {"expert_feed_forward_length": "moe_intermediate_size"}
SHARED_WIDTH = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
EXPERTS_IN_EACH = {"decoder_sparse_step": 1, "mlp_only_layers": []}
EVERY_LAYER = {"hidden_act": "silu", **EXPERTS_IN_EACH}
COHERE_FIXED = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True}
COHERE_NUMBERS = {"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"}
GLM_DEFAULTS = {
    "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5,
}  # fmt: skip
COHERE = Architecture(
    parallel=True,
    norm="centred",
    norms_in_fp32=True,
    defaults={"tie_word_embeddings": True, "logit_scale": 0.0625},
)
OLMO_2 = Architecture(
    norms_before=False, norms_after=True, head_norms="width", norms_in_fp32=True, rotation="fp32"
)
OLMO_FIXED = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False}


FAMILIES = (
    # Llama.
    Family(
        model_type="llama",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(mlp_bias_key="mlp_bias"),
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
    # Mistral and Ministral.
    Family(
        model_type="mistral",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8}),
        gguf=LLAMA_GGUF,
    ),
    Family(
        model_type="ministral",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8}),
        gguf=LLAMA_GGUF,
    ),
    Family(
        model_type="ministral3",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(bias="none", defaults={"num_key_value_heads": 8, "head_dim": 128}),
        gguf=Gguf(
            architecture="mistral3",
            turns_neighbours=True,
            numbers={
                "attention.layer_norm_rms_epsilon": "rms_norm_eps",
                "attention.temperature_scale": "llama_4_scaling_beta",
                "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
            },
        ),
    ),
    # Qwen 2, whose queries, keys and values always have biases, and Qwen 3, which norms each head instead.
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
    # Gemma, which scales its embeddings; Gemma 3's layers have one of two rotations.
    Family(
        model_type="gemma",
        architecture=Architecture(
            norms_in_fp32=True,
            defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True},
        ),
        gguf=Gguf(
            architecture="gemma",
            norm_offset=1.0,
            fixed={"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True},
        ),
    ),
    Family(
        model_type="gemma3_text",
        version_4=Version4Keys(sliding_theta="rope_local_base_freq"),
        logits=GEMMA_LOGITS,
        architecture=Architecture(
            norms_after=True,
            head_norms="head",
            norms_in_fp32=True,
            # The published 4B leaves out what its type's defaults say.
            defaults={**GEMMA_DEFAULTS, "vocab_size": 262_208},
        ),
        gguf=Gguf(
            architecture="gemma3",
            norm_offset=1.0,
            windows="own_base",
            widest=62,
            fixed={**GEMMA_FIXED, "attn_logit_softcapping": None, "use_bidirectional_attention": False},
            numbers=GEMMA_NUMBERS,
        ),
    ),
    Family(
        model_type="gemma2",
        logits=GEMMA_LOGITS,
        architecture=Architecture(
            norms_after=True,
            norms_in_fp32=True,
            defaults={**GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0},
        ),
        gguf=Gguf(
            architecture="gemma2",
            norm_offset=1.0,
            windows="same_base",
            period=2,
            queries="attn_q",
            widest=46,
            needs=("attn_logit_softcapping", "final_logit_softcapping"),
            fixed={**GEMMA_FIXED, "tie_word_embeddings": True},
            numbers={**GEMMA_NUMBERS, "attn_logit_softcapping": "attn_logit_softcapping"},
        ),
    ),
    # Its heads have two sizes, and its last layers may take keys and values of earlier ones.
    Family(
        model_type="gemma4_text",
        logits=GEMMA_LOGITS,
        architecture=Architecture(
            norms_after=True,
            head_norms="head",
            norms_in_fp32=True,
            values_normed=True,
            layer_sizes=layer_sizes.gemma_4,
            defaults=GEMMA_4_DEFAULTS,
        ),
        layer_tables=LayerTables(
            name="model.embed_tokens_per_layer.weight",
            rows="vocab_size_per_layer_input",
            width="hidden_size_per_layer_input",
        ),
        version_4=Version4Keys(is_known=False),
        gguf=Gguf(
            architecture="gemma4",
            windows="own_head",
            partial=True,
            scalings=frozenset(["proportional"]),
            kinds=frozenset(["sliding_attention", "full_attention"]),
            fault=gguf_layers.gemma_4_fault,
            fixed=GEMMA_FIXED,
            numbers=GEMMA_NUMBERS,
            counts={
                "attention.head_count_kv": gguf_layers.heads_by_layer,
                "attention.shared_kv_layers": "num_kv_shared_layers",
                "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            },
        ),
    ),
    # GLM, which rotates half of each head; GLM-4 norms after attention and the MLP too.
    Family(
        model_type="glm",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(fused_gate=True, bias="inputs", rotation="own", defaults=GLM_DEFAULTS),
        gguf=Gguf(architecture="chatglm", own_head_size=False, partial=True),
    ),
    Family(
        model_type="glm4",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(
            norms_after=True, fused_gate=True, bias="inputs", rotation="own", defaults=GLM_DEFAULTS
        ),
        gguf=Gguf(architecture="glm4", partial=True),
    ),
    # GPT-NeoX, whose parts have names of their own.
    Family(
        model_type="gpt_neox",
        layouts=frozenset(),
        architecture=Architecture(
            norm="layer",
            fused_inputs=True,
            mlp="gelu",
            parallel=True,
            shared_norm=False,
            mlp_bias_key="mlp_bias",
            defaults={"attention_bias": True, "mlp_bias": True, "partial_rotary_factor": 0.25},
            only={"hidden_act": "gelu", "use_parallel_residual": True},
        ),
        names=ModuleNames(
            embeddings="gpt_neox.embed_in",
            layers="gpt_neox.layers",
            norm="gpt_neox.final_layer_norm",
        ),
        version_4=Version4Keys(
            names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
        ),
    ),
    # OLMo, which from version 2 on norms after attention and the MLP, and queries and keys.
    Family(
        model_type="olmo",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(norm="bare", rotation="fp32"),
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
        architecture=OLMO_2,
        gguf=Gguf(architecture="olmo2", own_head_size=False, fixed=OLMO_FIXED),
    ),
    Family(
        model_type="olmo3",
        architecture=OLMO_2,
        gguf=Gguf(architecture="olmo2", windows="same_base", own_head_size=False, fixed=OLMO_FIXED),
    ),
    Family(
        model_type="olmo_hybrid",
        layouts=PIPELINE_LAYOUTS,
        recurrent="linear_attn",
        architecture=hybrids.OLMO_HYBRID,
    ),
    # Phi-3, whose matrices for queries, keys and values are one.
    Family(
        model_type="phi3",
        architecture=Architecture(fused_inputs=True, fused_gate=True, bias="none"),
        layouts=PIPELINE_LAYOUTS,
        # Version 4 refuses any other key.
        version_4=Version4Keys(scaling=frozenset(["short_factor", "long_factor"])),
        gguf=Gguf(architecture="phi3", own_head_size=False, partial=True),
    ),
    # Types that nothing here has to treat otherwise than a Llama, but for the layouts that are tested for them.
    Family(
        model_type="apertus",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(head_norms="head", mlp="xielu", only={"hidden_act": "xielu"}),
    ),
    Family(
        model_type="arcee",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(mlp="relu2", mlp_bias_key="mlp_bias", only={"hidden_act": "relu2"}),
        gguf=replace(
            LLAMA_GGUF,
            architecture="arcee",
            fixed={"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False},
        ),
    ),
    Family(
        model_type="bitnet",
        layouts=SHARD_LAYOUTS,
        architecture=Architecture(inner_norms=True, defaults={"num_key_value_heads": 5}),
    ),
    Family(
        model_type="cohere",
        architecture=COHERE,
        layouts=PIPELINE_LAYOUTS,
        logits=LogitKeys(times="logit_scale"),
        gguf=Gguf(
            architecture="command-r", fixed={**COHERE_FIXED, "use_qk_norm": False}, numbers=COHERE_NUMBERS
        ),
    ),
    Family(
        model_type="cohere2",
        architecture=COHERE,
        layouts=PIPELINE_LAYOUTS,
        logits=LogitKeys(times="logit_scale"),
        gguf=Gguf(
            architecture="cohere2",
            own_head_size=False,
            windows="same_base",
            period=4,
            fixed=COHERE_FIXED,
            numbers=COHERE_NUMBERS,
        ),
    ),
    Family(
        model_type="cwm",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(
            bias="none", mlp_bias_key="mlp_bias", defaults={"num_key_value_heads": 8, "head_dim": 128}
        ),
        gguf=LLAMA_GGUF,
    ),
    Family(model_type="diffllama", layouts=frozenset(), unplanned="its layers attend twice"),
    Family(
        model_type="ernie4_5",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(
            bias_key="use_bias",
            mlp_bias_key="use_bias",
            rotation="own_fp32",
            defaults={"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True},
        ),
        gguf=Gguf(architecture="ernie4_5", fixed={"hidden_act": "silu", "use_bias": False}),
    ),
    Family(
        model_type="exaone4",
        architecture=Architecture(
            norms_before=False,
            norms_after=True,
            head_norms="head",
            bias="none",
            defaults={"num_key_value_heads": 32},
        ),
        gguf=Gguf(architecture="exaone4", fixed={"hidden_act": "silu", "sliding_window": None}),
    ),
    Family(
        model_type="granite",
        layouts=TENSOR_LAYOUTS,
        logits=LogitKeys(over="logits_scaling"),
        architecture=Architecture(mlp_bias_key="mlp_bias"),
        gguf=replace(
            LLAMA_GGUF,
            architecture="granite",
            numbers={
                "attention.layer_norm_rms_epsilon": "rms_norm_eps",
                "attention.scale": "attention_multiplier",
                "embedding_scale": "embedding_multiplier",
                "logit_scale": "logits_scaling",
                "residual_scale": "residual_multiplier",
            },
        ),
    ),
    Family(
        model_type="granitemoehybrid",
        logits=LogitKeys(over="logits_scaling"),
        recurrent="mamba",
        experts=True,
        architecture=hybrids.GRANITE_HYBRID,
        version_4=Version4Keys(layer_types={"full_attention": "attention", "linear_attention": "mamba"}),
    ),
    Family(
        model_type="helium",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(
            norms_in_fp32=True,
            bias="inputs",
            mlp_bias_key="mlp_bias",
            rotation="own",
            defaults={"num_key_value_heads": 20, "head_dim": 128},
        ),
    ),
    Family(
        model_type="hunyuan_v1_dense",
        architecture=Architecture(head_norms="rotated"),
        gguf=Gguf(architecture="hunyuan-dense", fixed={"hidden_act": "silu", "attention_bias": False}),
    ),
    Family(
        model_type="hyperclovax",
        logits=LogitKeys(times="logits_scaling"),
        architecture=Architecture(norms_after=True, mlp_bias_key="mlp_bias", only={"use_post_norm": True}),
    ),
    Family(
        model_type="jais2",
        architecture=Architecture(
            norm="layer",
            mlp="relu2",
            mlp_bias_key="mlp_bias",
            only={"hidden_act": "relu2"},
            defaults={"attention_bias": True, "mlp_bias": True},
        ),
    ),
    Family(
        model_type="lfm2",
        layouts=PIPELINE_LAYOUTS,
        names=ModuleNames(norm="model.embedding_norm"),
        recurrent="conv",
        architecture=hybrids.LFM2,
        gguf=hybrids.LFM2_GGUF,
    ),
    # Mixtures of experts.
    Family(
        model_type="mixtral",
        layouts=PIPELINE_LAYOUTS,
        experts=True,
        architecture=Architecture(
            scores_in_fp32=True,
            bias="none",
            defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        gguf=replace(LLAMA_GGUF, counts={**EXPERT_COUNTS, "expert_count": "num_local_experts"}),
    ),
    Family(
        model_type="gpt_oss",
        layouts=PIPELINE_LAYOUTS,
        experts=True,
        packing="mxfp4",
        architecture=Architecture(
            norms_in_fp32=True,
            expert_biases=True,
            clamped_gate=True,
            defaults={
                "num_key_value_heads": 8,
                "head_dim": 64,
                "attention_bias": True,
                "num_local_experts": 128,
                "num_experts_per_tok": 4,
            },
        ),
    ),
    Family(
        model_type="olmoe",
        layouts=PIPELINE_LAYOUTS,
        experts=True,
        architecture=Architecture(head_norms="width", defaults={"num_experts": 64, "num_experts_per_tok": 8}),
        gguf=Gguf(
            architecture="olmoe",
            own_head_size=False,
            groups=False,
            fixed={**OLMO_FIXED, "clip_qkv": None, "norm_topk_prob": False},
            counts=EXPERT_COUNTS,
        ),
    ),
    Family(
        model_type="qwen2_moe",
        layouts=PIPELINE_LAYOUTS,
        experts=True,
        architecture=Architecture(
            bias="inputs",
            has_bias=True,
            only=EXPERTS_IN_EACH,
            defaults={
                "num_key_value_heads": 16,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1_408,
                "shared_expert_intermediate_size": 5_632,
            },
        ),
        gguf=Gguf(
            architecture="qwen2moe",
            fixed={**EVERY_LAYER, "norm_topk_prob": False, "tie_word_embeddings": False},
            counts={**EXPERT_COUNTS, **OWN_WIDTH, **SHARED_WIDTH},
        ),
    ),
    Family(
        model_type="qwen3_moe",
        layouts=PIPELINE_LAYOUTS,
        experts=True,
        architecture=Architecture(
            head_norms="head",
            only=EXPERTS_IN_EACH,
            defaults={
                "num_key_value_heads": 4,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
            },
        ),
        version_4=Version4Keys(renamed={"num_local_experts": "num_experts"}),
        gguf=Gguf(
            architecture="qwen3moe",
            fixed={**EVERY_LAYER, "attention_bias": False, "norm_topk_prob": True},
            counts={**EXPERT_COUNTS, **OWN_WIDTH},
        ),
    ),
    Family(
        model_type="persimmon",
        layouts=frozenset(),
        architecture=Architecture(
            norm="layer",
            head_norms="head",
            fused_inputs=True,
            mlp="relu2",
            has_bias=True,
            mlp_bias_key="mlp_bias",
            defaults={"mlp_bias": True, "partial_rotary_factor": 0.5},
            only={"hidden_act": "relu2", "qk_layernorm": True},
        ),
    ),
    Family(
        model_type="qwen3_5_moe_text",
        layouts=PIPELINE_LAYOUTS,
        architecture=hybrids.QWEN_3_5_MIXTURE,
        recurrent="linear_attn",
        experts=True,
        gguf=replace(
            hybrids.QWEN_3_5_GGUF,
            architecture="qwen35moe",
            counts={**hybrids.QWEN_3_5_GGUF.counts, **EXPERT_COUNTS, **OWN_WIDTH, **SHARED_WIDTH},
        ),
    ),
    Family(
        model_type="qwen3_5_text",
        layouts=PIPELINE_LAYOUTS,
        architecture=hybrids.QWEN_3_5,
        recurrent="linear_attn",
        gguf=hybrids.QWEN_3_5_GGUF,
    ),
    Family(
        model_type="seed_oss",
        layouts=ALL_LAYOUTS,
        architecture=Architecture(
            bias="inputs",
            mlp_bias_key="mlp_bias",
            defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
        ),
        gguf=Gguf(
            architecture="seed_oss",
            fixed={"hidden_act": "silu", "attention_out_bias": False, "mlp_bias": False},
        ),
    ),
    Family(
        model_type="smollm3",
        layouts=TENSOR_LAYOUTS,
        architecture=Architecture(
            mlp_bias_key="mlp_bias", defaults={"num_key_value_heads": 4, "tie_word_embeddings": True}
        ),
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
        architecture=Architecture(
            norm="layer",
            mlp="gelu",
            bias_key="use_bias",
            mlp_bias_key="use_bias",
            defaults={"num_key_value_heads": 2, "use_bias": True, "tie_word_embeddings": True},
            only={"hidden_act": "gelu_pytorch_tanh"},
        ),
        gguf=Gguf(
            architecture="starcoder2",
            own_head_size=False,
            fixed={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
            numbers={"attention.layer_norm_epsilon": "norm_epsilon"},
        ),
    ),
)
