"""The stage `admit`: what it reads, writes and needs."""

from anadil.core.stage import Input, Pod, Stage

STAGE = Stage(
    name="admit",
    summary="compare the text that came with the earlier text, and refuse a poisoned week",
    writes="admission",
    keys=("retrain.limits",),
    # A row for each document, and counts; no text.
    reads=(Input("corpus", files=("stats/", "stats.json"), beside=True, without_excluded=True),),
    only_if="retrain",
    pod=Pod(image="clean", cpu="2", memory="4Gi", retries=2),
    brings=("view",),
)
