"""The stage `release`: what it reads, writes and needs."""

from anadil.core.stage import Input, Pod, Stage

STAGE = Stage(
    name="release",
    summary="make a retrained model the registry's champion or challenger, or say why not",
    writes="release",
    keys=("retrain.champion.name", "retrain.champion.version", "retrain.champion.digest"),
    # A model is verified where it lies, and the scores decide which; the page only has to be there before.
    reads=(
        Input("model", how="pieces"),
        Input("adapter", optional=True, how="pieces"),
        Input("scores"),
        Input("report", optional=True, how="pieces"),
    ),
    only_if="retrain",
    pod=Pod(image="tools", cpu="500m", memory="2Gi", retries=2),
)
