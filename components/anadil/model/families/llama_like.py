"""Types that nothing here has to treat otherwise than a Llama, but for the layouts that are tested for them."""

from anadil.model.family import (
    ALL_LAYOUTS,
    PIPELINE_LAYOUTS,
    SHARD_LAYOUTS,
    TENSOR_LAYOUTS,
    Family,
    ModuleNames,
)

FAMILIES = (
    Family(model_type="apertus", layouts=PIPELINE_LAYOUTS),
    Family(model_type="arcee", layouts=PIPELINE_LAYOUTS),
    Family(model_type="bitnet", layouts=SHARD_LAYOUTS),
    Family(model_type="cwm", layouts=TENSOR_LAYOUTS),
    Family(model_type="diffllama", layouts=frozenset()),
    Family(model_type="ernie4_5", layouts=ALL_LAYOUTS, published_tied=True),
    Family(model_type="exaone4"),
    Family(model_type="granite", layouts=TENSOR_LAYOUTS),
    Family(model_type="helium", layouts=ALL_LAYOUTS),
    Family(model_type="hunyuan_v1_dense"),
    Family(model_type="hyperclovax"),
    Family(model_type="jais2"),
    # Its convolutions look back over the edge of a slice, which other layouts cut.
    Family(model_type="lfm2", layouts=frozenset(["shard"]), names=ModuleNames(norm="model.embedding_norm")),
    Family(model_type="persimmon", layouts=frozenset()),
    Family(model_type="seed_oss", layouts=ALL_LAYOUTS),
    Family(model_type="smollm3", layouts=TENSOR_LAYOUTS, published_tied=True),
    Family(model_type="starcoder2", layouts=PIPELINE_LAYOUTS),
)
