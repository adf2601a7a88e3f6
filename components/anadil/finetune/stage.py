"""The stage `finetune`: what it reads, writes and needs."""

from anadil.core.stage import Extends, Files, Input, Pod, SideFiles, Stage, Training

STAGE = Stage(
    name="finetune",
    summary="teach the model to answer (an adapter, or all weights)",
    writes="adapter",
    result_version=8,
    keys=("finetune", "seed"),
    reads=(Input("merged", either=True), Input("model", either=True)),
    files=Files(key="finetune.inputs", flag="chats", if_none="skipped"),
    side_files=(
        SideFiles(key="evaluate.heldout"),
        SideFiles(key="evaluate.questions"),
        SideFiles(key="finetune.preference.inputs"),
    ),
    extends=Extends(key="finetune.start_from"),
    pod=Pod(image="finetune", rooms=("model", "estimate")),
    training=Training(
        progress_name="finetune", figures=("loss",), costly=True, most_processes="finetune.most_processes"
    ),
    uses_model=True,
    brings=("need", "check"),
)
