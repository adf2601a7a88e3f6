"""The stage `encode`: what it reads, writes and needs."""

from anadil.core.stage import ChampionParts, Input, PerSource, Pod, Stage

STAGE = Stage(
    name="encode",
    summary="encode and pack the corpus for pre-training, on CPUs",
    writes="tokens",
    keys=("language", "pretrain.sequence_length", "sources"),
    reads=(
        Input("corpus", without_excluded=True),
        Input("tokenizer"),
        Input("admission", how="waits"),
    ),
    champion=ChampionParts(artifacts=("corpus", "tokens")),
    per_source=PerSource(),
    # A process for each CPU; the encoder keeps each different word, and packing some 100 bytes a document.
    pod=Pod(image="tokenizer", rooms=("tokens",), cpu="8", memory="32Gi", retries=2),
    brings=("need",),
)
