"""The stage `clean`: what it reads, writes and needs."""

from anadil.core.stage import Extends, Files, Input, PerSource, Pod, SideFiles, Stage

STAGE = Stage(
    name="clean",
    summary="clean raw text, HTML and WARC into a corpus",
    writes="corpus",
    result_version=13,
    keys=("language", "clean"),
    reads=(Input("written"),),
    files=Files(key="clean.inputs", flag="raw"),
    side_files=(
        SideFiles(key="clean.url_lists", names=("domains", "urls")),
        SideFiles(key="clean.ng_words"),
        SideFiles(key="clean.quality_model"),
        SideFiles(key="clean.filters", functions=True),
        SideFiles(key="evaluate.heldout", only_if="clean.decontaminate"),
        SideFiles(key="finetune.inputs", only_if="clean.decontaminate"),
        SideFiles(key="finetune.preference.inputs", only_if="clean.decontaminate"),
        SideFiles(key="evaluate.questions", only_if="clean.decontaminate"),
        SideFiles(key="evaluate.tasks", only_if="clean.decontaminate", or_names=True),
        SideFiles(key="evaluate.task_items", only_if="clean.decontaminate"),
    ),
    extends=Extends(key="clean.since"),
    per_source=PerSource(),
    brings=("check",),
    pod=Pod(
        image="clean",
        # A process on each CPU, of 1 GiB, beside the one that drives them: the pipeline asks for what
        # `clean.workers` says instead. Memory does not depend on the input.
        cpu="4",
        memory="6Gi",
        # Storage or a node may fail for a moment; what a stage finished is not done again.
        retries=2,
    ),
)
