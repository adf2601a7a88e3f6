"""The stage `tokenizer`: what it reads, writes and needs."""

from anadil.core.stage import Input, Pod, SideFiles, Stage

STAGE = Stage(
    name="tokenizer",
    summary="train, extend and compare tokenizers",
    writes="tokenizer",
    result_version=6,
    keys=("language", "base", "tokenizer"),
    reads=(Input("corpus", of_target=True), Input("admission", how="waits")),
    side_files=(SideFiles(key="tokenizer.keep", of_language="retained.jsonl"),),
    pod=Pod(
        image="tokenizer",
        # The model's compute per token decides between candidates.
        rooms=("model", "estimate"),
        # The trainer runs on all CPUs; each different word takes some 0.2 KB. Assumption: 100 million of them.
        cpu="8",
        memory="32Gi",
        retries=2,
    ),
)
