"""The flow: every stage, what it reads and writes, in order.

The command line, the KFP steps, the images and the tests follow this one list. It imports
nothing, so that `anadil --help` is immediate.
"""

from dataclasses import dataclass

BUILT_IN = "smoke"
"""Recipe that runs when none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the flow."""

    name: str
    reads: tuple[str, ...] = ()
    """Artifacts of other stages."""
    optional: tuple[str, ...] = ()
    """Those of them that it can do without: a run without chats makes no adapter."""
    writes: str
    sections: tuple[str, ...]
    """Recipe keys that decide the result."""
    files: str = ""
    """Recipe key (`section.key`) of the outside files that the stage reads."""
    files_flag: str = ""
    """What the command line calls them."""
    uses_model: bool = False
    """Whether it runs the torch code in `model/`."""
    distributed: bool = False
    """Whether it starts torchrun by itself where a machine has several GPUs."""
    says: str = ""
    """Help text: what it does."""


FLOW = (
    Stage(
        name="clean",
        writes="corpus",
        sections=("language", "clean"),
        files="clean.inputs",
        files_flag="raw",
        says="raw text, HTML and WARC to a clean corpus",
    ),
    Stage(
        name="tokenizer",
        reads=("corpus",),
        writes="tokenizer",
        sections=("language", "base", "tokenizer"),
        says="train, extend and compare tokenizers",
    ),
    Stage(
        name="pretrain",
        reads=("corpus", "tokenizer"),
        writes="model",
        sections=("base", "pretrain", "seed"),
        uses_model=True,
        distributed=True,
        says="continue pre-training on the corpus",
    ),
    Stage(
        name="finetune",
        reads=("model",),
        writes="adapter",
        sections=("finetune", "seed"),
        files="finetune.inputs",
        files_flag="chats",
        uses_model=True,
        says="teach the model to answer (LoRA)",
    ),
    Stage(
        name="evaluate",
        reads=("corpus", "model", "adapter"),
        optional=("adapter",),
        writes="scores",
        sections=("language", "base", "evaluate", "pretrain.sequence_length", "clean.text_field", "seed"),
        files="evaluate.heldout",
        files_flag="heldout",
        uses_model=True,
        says="score base, adapted and finetuned model",
    ),
    Stage(
        name="report",
        reads=("corpus", "tokenizer", "model", "adapter", "scores"),
        optional=("adapter",),
        writes="report",
        sections=(
            "language",
            "seed",
            "base",
            "clean",
            "tokenizer",
            "pretrain",
            "finetune",
            "evaluate",
            "report",
        ),
        says="one page about the whole run",
    ),
)

STAGES = {stage.name: stage for stage in FLOW}

IMAGES = {stage.name: stage.name for stage in FLOW} | {"report": "tools", "launch": "tools"}
"""What a pod runs -> the image that holds it: one for each stage, and one for the light tools."""
