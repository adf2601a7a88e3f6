"""OLMo, which from version 2 on norms after attention and the MLP, and queries and keys."""

from anadil.model.family import PIPELINE, Architecture, Family

FAMILIES = (
    Family(model_type="olmo", layouts=PIPELINE),
    Family(
        model_type="olmo2",
        layouts=PIPELINE,
        architecture=Architecture(
            norms_before=False, norms_after=True, head_norms="width", norms_in_fp32=True, rotation="fp32"
        ),
    ),
    Family(model_type="olmo3"),
)
