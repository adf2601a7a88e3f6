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
    """What the command line calls them."""
    uses_model: bool = False
    """Whether it runs the torch code in `model/`."""
    reads_beside: bool = False
    """Whether it reads what lies beside the content of artifacts too: counts, times, samples."""
    costly: bool = False
    """Whether it trains for hours or days: made again for recipe and inputs only, else by `--remake`."""
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
        costly=True,
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
        costly=True,
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
        reads_beside=True,
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

NEW_KEYS: dict[str, str] = {}
"""Recipe key that came in a later release -> the value, as JSON, with which all is as before it came.

With this value a key is left out of origins, so that a release which adds it makes nothing again. It is the
value that does nothing, whatever the default is: a default that changes later is in the origin, and changes
the key. A key of a list's items is written as `pretrain.phases.lr`.
"""

STAGES = {stage.name: stage for stage in FLOW}

IMAGES = {stage.name: stage.name for stage in FLOW} | {"report": "tools", "launch": "tools"}
"""What a pod runs -> the image that holds it: one for each stage, and one for the light tools."""
