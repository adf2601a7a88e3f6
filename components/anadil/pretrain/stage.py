"""The stage `pretrain`: what it reads, writes and needs."""

from anadil.core.stage import Champion, Extends, Input, Pod, Stage, Training

STAGE = Stage(
    name="pretrain",
    summary="continue pre-training on the corpus",
    writes="model",
    result_version=4,
    keys=("base", "sources", "pretrain", "seed", "retrain.mix", "retrain.epochs"),
    reads=(
        # Another result of `encode` is another result of this stage, so both raise `result_version` together: the key of
        # a model names no tokens.
        Input("tokens", how="pieces", instead_of="corpus"),
        Input("tokenizer"),
        Input("trial", optional=True),
        Input("corpus", optional=True),
    ),
    extends=Extends(key="pretrain.start_from", kinds=("checkpoint", "model")),
    # Where it encodes by itself, and so divides the text.
    champion=Champion(artifacts=("corpus", "tokens", "overlap")),
    # Its image holds the trial of tokenizers, which measures, and a run without tokens encodes.
    pod=Pod(image="pretrain", rooms=("model", "estimate", "plan", "tokenizer", "evaluate", "tokens")),
    training=Training(progress_name="pre-training", figures=("loss", "tokens_per_s"), costly=True),
    uses_model=True,
    brings=("check",),
)
