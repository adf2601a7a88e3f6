"""The stage `pretrain`: what it reads, writes and needs."""

from anadil.core.stage import (
    CONTINUES,
    Candidate,
    ChampionParts,
    Extends,
    Input,
    Pod,
    SideFiles,
    Stage,
    Training,
)

STAGE = Stage(
    name="pretrain",
    summary="continue pre-training on the corpus",
    writes="model",
    result_version=4,
    keys=("base", "sources", "sources.teacher", "pretrain", "seed", "retrain.mix", "retrain.epochs"),
    reads=(
        # Other tokens are another result of this stage, so their stage and this one raise `result_version` together: the
        # key of a model names no tokens.
        Input("tokens", how="pieces", instead_of="corpus"),
        Input("probabilities", how="pieces"),
        Input("tokenizer"),
        Input("corpus", optional=True),
    ),
    # By their loss, at each validation, training finds the weight of the probabilities.
    side_files=(SideFiles(
        key="evaluate.retained", only_if="finds_teacher_weight", of_language="retained.jsonl",
        keys=("evaluate.gate.max_retained_ratio", "pretrain.validate_every", "clean.text_field"),
    ),),
    extends=Extends(key="pretrain.start_from", kinds=("checkpoint", "model")),
    # Where it encodes by itself, and so divides the text.
    champion=ChampionParts(artifacts=("corpus", "tokens")),
    # Its image holds the trial of tokenizers, which measures, and a run without tokens encodes.
    pod=Pod(image="pretrain", uses_model=True, rooms=("model", "estimate", "plan", "tokenizer", "evaluate", "tokens")),
    training=Training(progress_name="pre-training", figures=("loss", "tokens_per_s"), costly=True),
    candidate=Candidate(
        name="adapted", use=CONTINUES, colour=1,
        checks=(
            "fertility", "bits_per_byte", "bits_per_byte_significant", "bits_per_byte_to_champion", "retained",
            "retained_to_champion", "loops", "output_language", "contaminated_share", "documents",
        ),
        # A small held-out part makes every interval wide, and that is no fault of the model. A language identifier needs whole
        # sentences, which a model that was not taught to answer may not write.
        shown=("bits_per_byte_significant", "output_language"),
    ),
    brings=("check",),
)  # fmt: skip
