"""The stage `trial`: what it reads, writes and needs."""

from anadil.core.stage import Input, Parts, Pod, SideFiles, Stage, Training

STAGE = Stage(
    name="trial",
    summary="train each strategy's best tokenizer briefly, and choose by bits per byte",
    writes="trial",
    stands_for="tokenizer",
    result_version=2,
    keys=("language", "base", "tokenizer", "tokenizer.trial", "pretrain", "clean.text_field", "seed"),
    reads=(
        # As training leaves them out.
        Input("corpus", of_target=True, beside=True, without_excluded=True),
        # All candidates lie beside the tokenizer that was chosen.
        Input("tokenizer", beside=True),
    ),
    side_files=(SideFiles(key="tokenizer.keep", of_language="retained.jsonl"),),
    only_if="tokenizer.trial",
    pod=Pod(
        image="pretrain",
        uses_model=True,
        parts=Parts(
            key="tokenizer.trial.strategies", or_key="tokenizer.strategies", one="strategy", made="finalists"
        ),
    ),
    training=Training(progress_name="pre-training", figures=("loss", "tokens_per_s")),
    brings=("need", "check", "view"),
)
