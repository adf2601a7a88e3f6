"""GLM, which rotates half of each head; GLM-4 norms after attention and the MLP too."""

from anadil.model.family import PIPELINE_LAYOUTS, Architecture, Family, Gguf

FAMILIES = (
    Family(
        model_type="glm",
        layouts=PIPELINE_LAYOUTS,
        gguf=Gguf(architecture="chatglm", own_head_size=False),
    ),
    Family(
        model_type="glm4",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(
            norms_after=True,
            fused_gate=True,
            bias="inputs",
            rotation="own",
            defaults={
                "num_key_value_heads": 2,
                "head_dim": 128,
                "attention_bias": True,
                "partial_rotary_factor": 0.5,
            },
        ),
        gguf=Gguf(architecture="glm4"),
    ),
)
