"""The stage `replay`: what it reads, writes and needs."""

from anadil.core.stage import PerSource, Pod, Stage

STAGE = Stage(
    name="replay",
    summary="let the base model write replay: text against forgetting",
    writes="written",
    keys=("base", "seed", "sources.written_by", "sources.tokens"),
    per_source=PerSource(key="written_by"),
    pod=Pod(image="evaluate", uses_model=True, rooms=("model", "estimate"), retries=2),
    brings=("need",),
)
