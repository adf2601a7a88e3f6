"""The stage `tasks`: what it reads, writes and needs."""

from anadil.core.stage import Input, Pod, SideFiles, Stage

STAGE = Stage(
    name="tasks",
    summary="run tasks of lm-evaluation-harness on base, adapted, merged and finetuned model",
    writes="tasks",
    result_version=2,
    keys=(
        "language", "base", "evaluate.tasks", "evaluate.task_shots", "evaluate.context", "pretrain.sequence_length",
        "seed",
    ),
    reads=(Input("model"), Input("adapter", optional=True)),
    side_files=(SideFiles(key="evaluate.tasks", or_names=True),),
    only_if="evaluate.tasks",
    pod=Pod(image="tasks", uses_model=True, rooms=("model", "estimate"), retries=1),
    brings=("check",),
)  # fmt: skip
