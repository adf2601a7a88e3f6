"""The stage `overlap`: what it reads, writes and needs."""

from anadil.core.stage import ChampionParts, Input, PerSource, Pod, Stage

STAGE = Stage(
    name="overlap",
    summary="find a source's documents that stand in another, or hold its held-out text",
    writes="overlap",
    keys=("clean.minhash_bands", "clean.minhash_rows", "clean.minhash_shingle"),
    reads=(Input("corpus"),),
    champion=ChampionParts(artifacts=("corpus",)),
    per_source=PerSource(excludes="excluded.jsonl"),
    # As `clean`: a process on each CPU, and a join over files on the disk.
    pod=Pod(image="clean", cpu="4", memory="6Gi", retries=2),
    brings=("view",),
)
