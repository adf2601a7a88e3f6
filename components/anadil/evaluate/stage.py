"""The stage `evaluate`: what it reads, writes and needs."""

from anadil.core.measures import MEASURES
from anadil.core.stage import ChampionParts, Files, Input, Pod, SideFiles, Stage

STAGE = Stage(
    name="evaluate",
    summary="score base, adapted, merged and finetuned model",
    writes="scores",
    result_version=17,
    keys=(
        "language", "base", "evaluate", "finetune.columns", "pretrain.sequence_length", "clean.text_field",
        "seed",
    ),
    reads=(
        Input("corpus"),
        Input("model"),

        Input("adapter", optional=True),
        Input("tasks", optional=True),
    ),
    files=Files(key="evaluate.heldout", flag="heldout", if_none="runs"),
    side_files=(
        SideFiles(key="evaluate.questions"),
        *(each.files for each in MEASURES if each.files),
        SideFiles(key="evaluate.retained", of_language="retained.jsonl"),
    ),
    # Measurements of the base and of the champion count again.
    champion=ChampionParts(artifacts=("scores",), model=True),
    # Hours on a GPU and nothing to resume: one more try, for a lost node.
    pod=Pod(image="evaluate", uses_model=True, rooms=("model", "estimate"), retries=1),
    brings=("need", "compare"),
)  # fmt: skip
