"""GPT-NeoX, whose parts have names of their own."""

from anadil.model.family import Family, ModuleNames, Version4Keys

FAMILIES = (
    Family(
        model_type="gpt_neox",
        layouts=frozenset(),
        names=ModuleNames(
            embeddings="gpt_neox.embed_in",
            layers="gpt_neox.layers",
            norm="gpt_neox.final_layer_norm",
            stored_head="embed_out",
        ),
        version_4=Version4Keys(
            names={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
        ),
    ),
)
