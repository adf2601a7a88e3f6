"""The only list of stages, in order: what each reads, writes and needs.

The command line, the DAG, the launchers, images and their locks, manifests, CI and docs follow it. It
imports next to nothing, so that `anadil --help` is immediate.
"""

from anadil.core.stage import SideFiles, Stage

BUILT_IN = "smoke"
"""Recipe that runs when none is named."""


FLOW = (
    Stage(
        name="replay",
        image="evaluate",
        rooms=("model", "plan"),
        writes="written",
        per_source=True,
        source_key="written_by",
        sections=("base", "seed", "sources.written_by", "sources.tokens"),
        uses_model=True,
        retries=2,
        summary="let the base model write replay: text against forgetting",
    ),
    Stage(
        name="clean",
        result_version=13,
        image="clean",
        # The stages that share the image.
        rooms=("overlap", "admit"),
        reads=("written",),
        writes="corpus",
        per_source=True,
        sections=("language", "clean"),
        files="clean.inputs",
        files_flag="raw",
        side_files=(
            SideFiles(key="clean.url_lists", names=("domains", "urls")),
            SideFiles(key="clean.ng_words"),
            SideFiles(key="clean.quality_model"),
            SideFiles(key="evaluate.heldout", only_if="clean.decontaminate"),
            SideFiles(key="finetune.inputs", only_if="clean.decontaminate"),
            SideFiles(key="finetune.preference.inputs", only_if="clean.decontaminate"),
            SideFiles(key="evaluate.questions", only_if="clean.decontaminate"),
            SideFiles(
                key="evaluate.tasks", only_if="clean.decontaminate", of_language="tasks.yaml", or_names=True
            ),
        ),
        extends="clean.since",
        # A process on each CPU, of 1 GiB, beside the one that drives them: the pipeline asks for what
        # `clean.workers` says instead. Memory does not depend on the input.
        cpu="4",
        memory="6Gi",
        # Storage or a node may fail for a moment; what a stage finished is not done again.
        retries=2,
        summary="clean raw text, HTML and WARC into a corpus",
    ),
    Stage(
        name="overlap",
        image="clean",
        reads=("corpus",),
        writes="overlap",
        of_champion=("corpus", "overlap"),
        per_source=True,
        reads_all=True,
        sections=("clean.minhash_bands", "clean.minhash_rows", "clean.minhash_shingle"),
        # As `clean`: a process on each CPU, and a join over files on the disk.
        cpu="4",
        memory="6Gi",
        retries=2,
        summary="find a source's documents that stand in another, or hold its held-out text",
    ),
    Stage(
        name="admit",
        image="clean",
        reads=("corpus", "overlap"),
        optional=("overlap",),
        # A row for each document, and counts; no text.
        parts=(("corpus", ("stats/", "stats.json")), ("overlap", ("excluded.jsonl",))),
        reads_beside=True,
        writes="admission",
        sections=("retrain.limits",),
        only_if="retrain",
        cpu="2",
        memory="4Gi",
        retries=2,
        summary="compare the text that came with the earlier text, and refuse a poisoned week",
    ),
    Stage(
        name="tokenizer",
        result_version=6,
        image="tokenizer",
        # The model's compute per token, which decides between candidates; and the stage that shares the image.
        rooms=("model", "plan", "encode"),
        reads=("corpus", "admission"),
        waits=("admission",),
        of_target=True,
        writes="tokenizer",
        sections=("language", "base", "tokenizer"),
        side_files=(SideFiles(key="tokenizer.keep", of_language="retained.jsonl"),),
        # The trainer runs on all CPUs; each different word takes some 0.2 KB. Assumption: 100 million of them.
        cpu="8",
        memory="32Gi",
        retries=2,
        summary="train, extend and compare tokenizers",
    ),
    Stage(
        name="trial",
        result_version=2,
        image="pretrain",
        # Training leaves out the documents that overlap lists, and so does its trial.
        reads=("corpus", "tokenizer", "overlap"),
        optional=("overlap",),
        of_target=True,
        writes="trial",
        sections=("language", "base", "tokenizer", "tokenizer.trial", "pretrain", "clean.text_field", "seed"),
        side_files=(SideFiles(key="tokenizer.keep", of_language="retained.jsonl"),),
        only_if="tokenizer.trial",
        uses_model=True,
        # All candidates lie beside the tokenizer that was chosen.
        reads_beside=True,
        distributed=True,
        launchable=True,
        progress_name="pre-training",
        figures=("loss", "tokens_per_s"),
        summary="train each strategy's best tokenizer briefly, and choose by bits per byte",
    ),
    Stage(
        name="encode",
        image="tokenizer",
        reads=("corpus", "tokenizer", "trial", "overlap", "admission"),
        optional=("trial", "overlap"),
        waits=("admission",),
        of_champion=("corpus", "tokens", "overlap"),
        writes="tokens",
        per_source=True,
        sections=("language", "pretrain.sequence_length", "sources"),
        # A process for each CPU; the encoder keeps each different word, and packing some 100 bytes a document.
        cpu="8",
        memory="32Gi",
        retries=2,
        summary="encode and pack the corpus for pre-training, on CPUs",
    ),
    Stage(
        name="pretrain",
        result_version=4,
        image="pretrain",
        # The trial of tokenizers trains with this stage's loop, and a merge makes rows as it does: they share its image.
        rooms=("model", "plan", "trial", "merge", "tokenizer", "evaluate", "encode"),
        reads=("tokens", "tokenizer", "trial", "corpus"),
        optional=("trial", "corpus"),
        # Another result of `encode` is another result of this stage, so both raise `result_version` together: the key of
        # a model names no tokens.
        streams=("tokens",),
        instead_of="corpus",
        # Where it encodes by itself, and so divides the text.
        of_champion=("corpus", "tokens", "overlap"),
        extends="pretrain.start_from",
        extends_kinds=("checkpoint", "model"),
        writes="model",
        sections=("base", "sources", "pretrain", "seed", "retrain.mix", "retrain.epochs"),
        uses_model=True,
        costly=True,
        distributed=True,
        launchable=True,
        progress_name="pre-training",
        figures=("loss", "tokens_per_s"),
        summary="continue pre-training on the corpus",
    ),
    Stage(
        name="merge",
        result_version=2,
        image="pretrain",
        # `auto` measures on the corpus's held-out text.
        reads=("model", "tokenizer", "trial", "corpus"),
        optional=("trial",),
        only_with=(("corpus", "merge.is_auto"),),
        writes="merged",
        sections=(
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
        side_files=(
            SideFiles(key="evaluate.retained", only_if="merge.is_auto", of_language="retained.jsonl"),
        ),
        models="merge.models",
        only_if="merge",
        uses_model=True,
        # Given values take 1 GiB, whatever the model. `auto` loads it: one of 8 billion parameters in BF16 fits.
        memory="24Gi",
        retries=2,
        summary="merge the trained model with its base and other models",
    ),
    Stage(
        name="finetune",
        result_version=8,
        image="finetune",
        rooms=("model", "plan"),
        reads=("merged", "model"),
        either=("merged", "model"),
        extends="finetune.start_from",
        writes="adapter",
        sections=("finetune", "seed"),
        files="finetune.inputs",
        files_flag="chats",
        side_files=(
            SideFiles(key="evaluate.heldout"),
            SideFiles(key="evaluate.questions"),
            SideFiles(key="finetune.preference.inputs"),
        ),
        without_files="skipped",
        uses_model=True,
        costly=True,
        distributed=True,
        most_processes="finetune.most_processes",
        launchable=True,
        progress_name="finetune",
        figures=("loss",),
        summary="teach the model to answer (an adapter, or all weights)",
    ),
    Stage(
        name="tasks",
        image="tasks",
        rooms=("model", "plan"),
        reads=("model", "merged", "adapter"),
        optional=("merged", "adapter"),
        writes="tasks",
        sections=(
            "base", "evaluate.tasks", "evaluate.task_shots", "evaluate.context", "pretrain.sequence_length", "seed",
        ),
        side_files=(SideFiles(key="evaluate.tasks", of_language="tasks.yaml", or_names=True),),
        only_if="evaluate.tasks",
        uses_model=True,
        retries=1,
        summary="run tasks of lm-evaluation-harness on base, adapted, merged and finetuned model",
    ),
    Stage(
        name="evaluate",
        result_version=10,
        image="evaluate",
        # The stage that shares the image.
        rooms=("model", "plan", "replay"),
        reads=("corpus", "model", "merged", "adapter", "tasks"),
        optional=("merged", "adapter", "tasks"),
        writes="scores",
        sections=(
            "language", "base", "evaluate", "finetune.columns", "pretrain.sequence_length", "clean.text_field",
            "seed",
        ),
        files="evaluate.heldout",
        files_flag="heldout",
        side_files=(
            SideFiles(key="evaluate.questions"),
            SideFiles(key="evaluate.retained", of_language="retained.jsonl"),
        ),
        reads_champion=True,
        # Measurements of the base and of the champion count again.
        of_champion=("scores",),
        without_files="runs",
        uses_model=True,
        # Hours on a GPU and nothing to resume: one more try, for a lost node.
        retries=1,
        summary="score base, adapted, merged and finetuned model",
    ),
    Stage(
        name="report",
        result_version=9,
        image="tools",
        reads=(
            "written", "corpus", "overlap", "admission", "tokenizer", "trial", "tokens", "model", "merged", "adapter",
            "tasks", "scores",
        ),
        optional=("written", "overlap", "admission", "trial", "tokens", "merged", "adapter", "tasks"),
        # Their manifests hold what it tells of them, times and counts.
        streams=("written", "overlap", "tokens", "tasks"),
        writes="report",
        reads_beside=True,
        sections=(
            "language", "seed", "base", "clean", "sources", "tokenizer", "pretrain", "merge", "finetune", "evaluate",
            "report", "retrain", "retrain.champion.name", "retrain.champion.version",
        ),
        cpu="500m",
        memory="2Gi",
        retries=2,
        summary="write one page about the whole run",
    ),
    Stage(
        name="release",
        image="tools",
        reads=("model", "merged", "adapter", "scores", "report"),
        optional=("merged", "adapter", "report"),
        # A model is verified where it lies, and the scores decide which; the page only has to be there before.
        streams=("model", "merged", "adapter", "report"),
        writes="release",
        sections=("retrain.champion.name", "retrain.champion.version", "retrain.champion.digest"),
        only_if="retrain",
        cpu="500m",
        memory="2Gi",
        retries=2,
        summary="make a retrained model the registry's champion or challenger, or say why not",
    ),
)  # fmt: skip

STAGES = {stage.name: stage for stage in FLOW}
PER_SOURCE = frozenset(stage.writes for stage in FLOW if stage.per_source)
"""Artifacts of which a recipe with `sources` has one for each."""
WRITERS = {stage.writes: stage for stage in FLOW}
"""Artifact -> the stage that writes it."""
COMPARED = frozenset(stage.writes for stage in FLOW if stage.reads_all)
"""Artifacts of which a recipe with fewer than two sources has none."""
LAUNCHABLE = tuple(stage.name for stage in FLOW if stage.launchable)
"""Stages that can be a job of their own."""
IMAGES = {stage.name: stage.image for stage in FLOW} | {"launch": "tools"}
"""Stage or tool that a pod runs -> the image that holds it: one for each stage, and one for the light tools."""
ENGINE_IMAGES = {"ray": "clean-ray", "job": "clean-ray"}
"""`clean.engine` -> image in place of `clean`: the same with Ray's packages, and with what drives pods."""
ENGINE_ROOMS = ("launch", "plan", "model")
"""Folders of the package that it holds besides: what launches pods plans them, and a plan knows models."""
STEP_IMAGES = (*dict.fromkeys(IMAGES.values()), *dict.fromkeys(ENGINE_IMAGES.values()))
"""All that a pod of a run may need."""
LAPTOP = "laptop"
"""Image that holds every stage and the local runner: the whole program for a machine with docker alone."""
ALL_IMAGES = (*STEP_IMAGES, "pipelines", "mlflow", LAPTOP)
"""All that `images/build.sh all` makes."""
TORCH_IMAGES = (*dict.fromkeys(stage.image for stage in FLOW if stage.uses_model), LAPTOP)
"""Images that hold torch."""
SHARED_ROOMS = ("artifacts", "builtin", "core", "recipe", "runtime", "text")
"""Folders of the package that every image holds."""


def rooms_of(image: str) -> tuple[str, ...] | None:
    """Folders of the package that an image holds; None: all of them."""
    if image in ENGINE_IMAGES.values():
        return (*SHARED_ROOMS, *ENGINE_ROOMS, "clean")
    stage = STAGES.get(image)
    return (*SHARED_ROOMS, *stage.rooms, stage.name) if stage and stage.image == image else None
