"""The stage `merge`: what it reads, writes and needs."""

from anadil.core.stage import CONTINUES, Candidate, Input, Pod, SideFiles, Stage

STAGE = Stage(
    name="merge",
    summary="merge the trained model with its base and other models",
    writes="merged",
    stands_for="model",
    result_version=3,
    keys=(
        "language",
        "base",
        "merge",
        "evaluate.context",
        "evaluate.stride",
        "evaluate.gate.max_retained_ratio",
        "evaluate.gate.max_finetuned_bits_per_byte_ratio",
        "pretrain.sequence_length",
        "clean.text_field",
        # The rule looks at intervals, and they are drawn by it.
        "seed",
    ),
    reads=(
        Input("model"),
        Input("tokenizer"),
        # `auto` measures on the corpus's held-out text.
        Input("corpus", only_if="merge.is_auto"),
    ),
    side_files=(SideFiles(key="evaluate.retained", only_if="merge.is_auto", of_language="retained.jsonl"),),
    models="merge.models",
    only_if="merge",
    # Given values take 1 GiB, whatever the model. `auto` loads it: one of 8 billion parameters in BF16 fits.
    pod=Pod(image="pretrain", uses_model=True, memory="24Gi", retries=2),
    # A merged model that answers is judged by its answers beside, as the finetuned one is.
    candidate=Candidate(
        name="merged", use=CONTINUES, colour=4,
        checks=(
            "fertility", "bits_per_byte", "bits_per_byte_significant", "bits_per_byte_to_champion", "retained",
            "retained_to_champion", "loops", "ended", "empty_answers", "output_language", "contaminated_share", "documents",
        ),
        shown=("bits_per_byte_significant", "output_language"),
    ),
    brings=("need", "check", "view"),
)  # fmt: skip
