"""OLMo, which from version 2 on norms after attention and the MLP, and queries and keys."""

from anadil.model.family import PIPELINE_LAYOUTS, Architecture, Family

FAMILIES = (
    Family(model_type="olmo", layouts=PIPELINE_LAYOUTS),
    Family(
        model_type="olmo2",
        layouts=PIPELINE_LAYOUTS,
        architecture=Architecture(
            norms_before=False, norms_after=True, head_norms="width", norms_in_fp32=True, rotation="fp32"
        ),
    ),
    Family(model_type="olmo3"),
)
