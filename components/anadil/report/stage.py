"""The stage `report`: what it reads, writes and needs."""

from anadil.core.stage import OTHERS, VIEWS, Input, Pod, Stage

STAGE = Stage(
    name="report",
    summary="write one page about the whole run",
    writes="report",
    result_version=11,
    keys=(
        "language", "seed", "base", "clean", "sources", "tokenizer", "pretrain", "merge", "finetune",
        "evaluate", "report", "retrain", "retrain.champion.name", "retrain.champion.version",
    ),
    # Manifests of pieces hold what the page tells of them: times and counts.
    reads=(
        Input("corpus", files=("stats.json", "rejected/", "samples/"), beside=True),
        Input("tokenizer", files=("fertility.json", "choice.json", "speed.json"), beside=True),
        Input("model", files=("training.",), beside=True),
        Input("adapter", optional=True, files=("mask_audit.json", "training.", "preference."), beside=True),
        Input("scores", files=("scores.json",), beside=True),
        Input(VIEWS, optional=True, files=(VIEWS,), beside=True),
        Input(OTHERS, optional=True, how="pieces", beside=True),
    ),
    pod=Pod(image="tools", cpu="500m", memory="2Gi", retries=2),
)  # fmt: skip
