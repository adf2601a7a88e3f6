"""The stage `finetune`: what it reads, writes and needs."""

from anadil.core.stage import ANSWERS, Candidate, Extends, Files, Input, Pod, SideFiles, Stage, Training

STAGE = Stage(
    name="finetune",
    summary="teach the model to answer (an adapter, or all weights)",
    writes="adapter",
    result_version=9,
    keys=("finetune", "seed"),
    reads=(Input("model", either=True),),
    files=Files(key="finetune.inputs", flag="chats", if_none="skipped"),
    side_files=(
        SideFiles(key="evaluate.heldout"),
        SideFiles(key="evaluate.questions"),
        SideFiles(key="finetune.preference.inputs"),
    ),
    extends=Extends(key="finetune.start_from"),
    pod=Pod(image="finetune", uses_model=True, rooms=("model", "estimate")),
    training=Training(
        progress_name="finetune", figures=("loss",), costly=True, most_processes="finetune.most_processes"
    ),
    candidate=Candidate(
        name="finetuned", folder="merged", use=ANSWERS, colour=2,
        checks=(
            "fertility", "bits_per_byte", "bits_per_byte_to_base", "bits_per_byte_to_champion", "retained", "retained_to_base",
            # Where the champion answers as well; else it is shown.
            "retained_to_champion", "answers", "answers_to_champion", "loops", "ended", "empty_answers", "output_language",
            "mask_audit", "contaminated_share", "documents",
        ),
        # A model that answers is judged by its answers; what they cost in running text is shown.
        shown=("bits_per_byte", "bits_per_byte_to_base", "bits_per_byte_to_champion", "retained"),
    ),
    brings=("need", "check"),
)  # fmt: skip
