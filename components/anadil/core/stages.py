"""The only list of stages, in order: what each reads, writes and needs.

The command line, the DAG, the launchers, images and their locks, manifests, CI and docs follow it. It
imports nothing, so that `anadil --help` is immediate.
"""

from dataclasses import dataclass
from typing import Literal

BUILT_IN = "smoke"
"""Recipe that runs when none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """Outside files that a stage reads beside its data: lists, and what it compares its data with."""

    key: str
    """Recipe key (`section.key`, or one in a section of it) that names them: one path or several."""
    only_if: str = ""
    """Recipe key that must be true, or they are not read."""
    names: tuple[str, ...] = ()
    """Names of the files that are read of a directory; empty: all."""
    of_language: str = ""
    """File of a language's built-in texts that the id of a language stands for."""
    or_names: bool = False
    """True if a value without `/` that ends in neither `.yaml` nor `.jsonl` is a name, not a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flow."""

    name: str
    reads: tuple[str, ...] = ()
    """Artifacts of other stages."""
    optional: tuple[str, ...] = ()
    """Those of them that it can do without: a run without chats makes no adapter."""
    streams: tuple[str, ...] = ()
    """Those of them that it reads by pieces where they lie: they are not copied to its machine. They decide nothing by
    themselves, since they follow from what they were made of."""
    either: tuple[str, ...] = ()
    """Those of them of which it reads the first that the recipe makes, and no other."""
    only_with: tuple[tuple[str, str], ...] = ()
    """Those of them that it reads only where a recipe key (`section.key`) is true, each with that key."""
    instead_of: str = ""
    """The one that `streams` are made of, and which is read in their place; empty: the stage goes without them."""
    writes: str
    result_version: int = 1
    """Raised by hand with each change of the program after which equal recipe and inputs give another result.

    It stands in the artifact's key, so that what an older program made is not taken for it. Neither the
    source nor the program's version does: a release that leaves a result alone makes nothing again.
    `tests/runtime/test_results.py` compares results with those of the last version and says what to do.
    """
    sections: tuple[str, ...]
    """Recipe keys that decide the result."""
    files: str = ""
    """Recipe key (`section.key`) of the outside files that the stage reads."""
    files_flag: str = ""
    """Name of their option on the command line."""
    side_files: tuple[SideFiles, ...] = ()
    """Further ones; their content, too, decides the result."""
    models: str = ""
    """Recipe key of models, directories or hub ids, that it reads beside the base; their files decide the result, too."""
    per_source: bool = False
    """True if a recipe with `sources` runs it once for each of them."""
    source_key: str = ""
    """Key of a source that must be set, or the source goes without the step: only what the base writes is written."""
    reads_all: bool = False
    """True if the step of one source reads the artifacts of all, in the recipe's order; without two it is skipped."""
    of_target: bool = False
    """True if it reads what is made of sources in the language that is taught, and of no other."""
    extends: str = ""
    """Recipe key (`section.key`) of an earlier artifact of the same kind that the stage adds to."""
    without_files: Literal["refused", "skipped", "runs"] = "refused"
    """Fate of the stage where the recipe names none of them."""
    only_if: str = ""
    """Recipe key (`section.key`) that must be set, or a run goes without the stage."""
    image: str
    """Name of the image that holds it."""
    rooms: tuple[str, ...] = ()
    """Folders of the package that its image holds, beside its own and those of all images."""
    cpu: str
    """CPUs that its pod asks for, where the recipe does not say and no machine with GPUs is named."""
    memory: str
    """Memory, request and limit, in the same case."""
    retries: int | None = None
    """Times that a pipeline tries its pod again; None: as many as `cluster.restarts` says."""
    launchable: bool = False
    """True if it trains, and so can be a job of its own."""
    progress_name: str = ""
    """Name of the loop in its progress lines, where a job's backend reads figures out of the log."""
    figures: tuple[str, ...] = ()
    """Those of its last line."""
    uses_model: bool = False
    """True if it runs the torch code in `model/`, and on a GPU where there is one."""
    reads_champion: bool = False
    """True if it also reads the model that was released last, where there is one."""
    reads_beside: bool = False
    """True if it also reads what lies beside the content of artifacts: counts, times, samples."""
    costly: bool = False
    """True if it trains for hours or days: made again for recipe and inputs only, else by `--remake`."""
    distributed: bool = False
    """True if it starts torchrun by itself where a machine has several GPUs."""
    most_processes: str = ""
    """Recipe key (`section.key`) of the most processes that it can use; without one, as many as there are GPUs."""
    summary: str
    """Help text: what it does."""

    def may_lack(self, word: str) -> bool:
        """Return True if some recipe runs the stage without this artifact."""
        return word in (*self.optional, *self.either, *dict(self.only_with))


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
        cpu="4",
        memory="16Gi",
        retries=2,
        summary="let the base model write replay: text against forgetting",
    ),
    Stage(
        name="clean",
        result_version=9,
        image="clean",
        # The stage that shares the image.
        rooms=("overlap",),
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
        name="tokenizer",
        result_version=4,
        image="tokenizer",
        # The model's compute per token, which decides between candidates; and the stage that shares the image.
        rooms=("model", "plan", "encode"),
        reads=("corpus",),
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
        cpu="4",
        memory="16Gi",
        launchable=True,
        progress_name="pre-training",
        figures=("loss", "tokens_per_s"),
        summary="train each strategy's best tokenizer briefly, and choose by bits per byte",
    ),
    Stage(
        name="encode",
        image="tokenizer",
        reads=("corpus", "tokenizer", "trial", "overlap"),
        optional=("trial", "overlap"),
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
        result_version=2,
        image="pretrain",
        # The trial of tokenizers trains with this stage's loop, and a merge makes rows as it does: they share its image.
        rooms=("model", "plan", "cli/calibrate", "trial", "merge", "tokenizer", "evaluate", "encode"),
        reads=("tokens", "tokenizer", "trial", "corpus"),
        optional=("trial", "corpus"),
        # Another result of `encode` is another result of this stage, so both raise `result_version` together: the key of
        # a model names no tokens.
        streams=("tokens",),
        instead_of="corpus",
        writes="model",
        sections=("base", "sources", "pretrain", "seed"),
        uses_model=True,
        costly=True,
        distributed=True,
        # Without GPUs: a small model on a machine of CPUs only. Assumption, for the next two as well.
        cpu="4",
        memory="16Gi",
        launchable=True,
        progress_name="pre-training",
        figures=("loss", "tokens_per_s"),
        summary="continue pre-training on the corpus",
    ),
    Stage(
        name="merge",
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
        ),
        side_files=(
            SideFiles(key="evaluate.heldout", only_if="merge.is_auto"),
            SideFiles(key="evaluate.retained", only_if="merge.is_auto", of_language="retained.jsonl"),
        ),
        models="merge.models",
        only_if="merge",
        uses_model=True,
        cpu="4",
        # Tensor by tensor: the largest table of a model of 70 billion parameters in FP32 several times.
        memory="24Gi",
        retries=2,
        summary="merge the trained model with its base, its checkpoints and other models",
    ),
    Stage(
        name="finetune",
        result_version=5,
        image="finetune",
        rooms=("model", "plan"),
        reads=("merged", "model"),
        either=("merged", "model"),
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
        cpu="4",
        memory="16Gi",
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
            "base",
            "evaluate.tasks",
            "evaluate.task_shots",
            "evaluate.context",
            "pretrain.sequence_length",
            "seed",
        ),
        side_files=(SideFiles(key="evaluate.tasks", of_language="tasks.yaml", or_names=True),),
        only_if="evaluate.tasks",
        uses_model=True,
        cpu="4",
        memory="16Gi",
        retries=1,
        summary="run tasks of lm-evaluation-harness on base, adapted, merged and finetuned model",
    ),
    Stage(
        name="evaluate",
        result_version=7,
        image="evaluate",
        # The stage that shares the image.
        rooms=("model", "plan", "replay"),
        reads=("corpus", "model", "merged", "adapter", "tasks"),
        optional=("merged", "adapter", "tasks"),
        writes="scores",
        sections=(
            "language",
            "base",
            "evaluate",
            "finetune.columns",
            "pretrain.sequence_length",
            "clean.text_field",
            "seed",
        ),
        files="evaluate.heldout",
        files_flag="heldout",
        side_files=(
            SideFiles(key="evaluate.questions"),
            SideFiles(key="evaluate.retained", of_language="retained.jsonl"),
        ),
        reads_champion=True,
        without_files="runs",
        uses_model=True,
        cpu="4",
        memory="16Gi",
        # Hours on a GPU and nothing to resume: one more try, for a lost node.
        retries=1,
        summary="score base, adapted, merged and finetuned model",
    ),
    Stage(
        name="report",
        result_version=6,
        image="tools",
        reads=(
            "written",
            "corpus",
            "overlap",
            "tokenizer",
            "trial",
            "tokens",
            "model",
            "merged",
            "adapter",
            "tasks",
            "scores",
        ),
        optional=("written", "overlap", "trial", "tokens", "merged", "adapter", "tasks"),
        # Their manifests hold what it tells of them, times and counts.
        streams=("written", "overlap", "tokens", "tasks"),
        writes="report",
        reads_beside=True,
        sections=(
            "language",
            "seed",
            "base",
            "clean",
            "sources",
            "tokenizer",
            "pretrain",
            "merge",
            "finetune",
            "evaluate",
            "report",
        ),
        cpu="500m",
        memory="2Gi",
        retries=2,
        summary="write one page about the whole run",
    ),
)

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
TORCH_IMAGES = tuple(dict.fromkeys(stage.image for stage in FLOW if stage.uses_model))
"""Images that hold torch."""
SHARED_ROOMS = ("artifacts", "builtin", "core", "recipe", "runtime", "text")
"""Folders of the package that every image holds."""


def rooms_of(image: str) -> tuple[str, ...] | None:
    """Folders of the package that an image holds; None: all of them."""
    if image in ENGINE_IMAGES.values():
        return (*SHARED_ROOMS, *ENGINE_ROOMS, "clean")
    stage = STAGES.get(image)
    return (*SHARED_ROOMS, *stage.rooms, stage.name) if stage and stage.image == image else None
