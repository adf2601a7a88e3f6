"""The stage `distill`: what it reads, writes and needs."""

from anadil.core.stage import Input, PerSource, Pod, SideFiles, Stage

STAGE = Stage(
    name="distill",
    summary="store the base model's probabilities of replayed text, which training keeps to",
    writes="probabilities",
    result_version=2,
    keys=(
        "base", "language", "sources", "pretrain.sequence_length", "pretrain.validate_documents",
        "pretrain.distillation.top_k",
    ),
    reads=(Input("tokens", how="pieces"), Input("tokenizer")),
    side_files=(SideFiles(key="evaluate.retained", only_if="finds_teacher_weight", of_language="retained.jsonl"),),
    per_source=PerSource(key="teacher"),
    pod=Pod(image="evaluate", uses_model=True, rooms=("model", "estimate", "tokens"), retries=2),
    brings=("need",),
)  # fmt: skip
