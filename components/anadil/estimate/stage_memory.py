"""Memory of a stage that loads a model, on the fewest devices that hold it."""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from anadil.artifacts import storage
from anadil.core.errors import AnadilError
from anadil.core.format import human_bytes, human_parameters
from anadil.estimate.activations import BF16, FP32
from anadil.estimate.fit import FIT_VERDICTS, FitVerdict, fit_verdict, outside_bytes
from anadil.estimate.instances import CPU, Machine
from anadil.estimate.model_shape import Shape, base_shape, trained_shape
from anadil.estimate.search import divisors
from anadil.estimate.text_use import BYTES_PER_TOKEN, NO_TEXT, PlannedText
from anadil.recipe.sections import Recipe

BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens of a batch, by device, in scoring and in decoding, whichever is more (`evaluate.run`, `model.decoding`)."""
FILE_BYTES = 5 * 1000**3
"""Bytes of a file of weights, as pre-training and finetune write them."""
LOGITS = 2**25
"""Numbers of a chunk of logits in FP32 (`evaluate.bits_per_byte`); its log-probabilities are as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory that one stage needs, of each device and of a machine."""

    stage: str
    nodes: int
    devices: int
    """Devices of each node."""
    parts: dict[str, int]
    """Bytes of one device by part, with what no allocator sees."""
    host_bytes: int
    """Main memory of a node while the model is loaded or written."""
    device_bytes: int
    """Memory that one device has."""
    host_limit_bytes: int
    """Main memory that goes with so many devices of a node."""
    verdict: FitVerdict

    @property
    def total_bytes(self) -> int:
        """Bytes of one device."""
        return sum(self.parts.values())

    @property
    def where(self) -> str:
        """Text such as `4 devices`, or `2 nodes of 8 devices`."""
        each = "1 device" if self.devices == 1 else f"{self.devices} devices"
        return each if self.nodes == 1 else f"{self.nodes} nodes of {each}"

    @property
    def memory(self) -> "StageMemory":
        """The same: a stage may need memory and nothing else."""
        return self

    def at(self) -> str:
        """Text such as `2.7 GiB of 80 GiB on 1 device (fits)`."""
        return f"{human_bytes(self.total_bytes)} of {human_bytes(self.device_bytes)} on {self.where} ({self.verdict})"

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        return [("memory", self.at())]

    def line(self) -> str:
        """One line of what it needs."""
        need, has = human_bytes(self.total_bytes), human_bytes(self.device_bytes)
        return f"{self.stage} needs {need} of {has} on {'each of ' * (self.where != '1 device')}{self.where} ({self.verdict})"


class Need(Protocol):
    """Needs of a stage beside those of training."""

    @property
    def memory(self) -> StageMemory | None:
        """Memory of the devices that hold its model; None where it loads none."""

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedRequest:
    """Subject of a stage's `need`: a recipe's run on machines of one type."""

    recipe: Recipe
    machine: Machine
    nodes: int = 1
    text: PlannedText = NO_TEXT

    @property
    def base(self) -> Shape:
        """The base model."""
        return base_shape(self.recipe)

    @property
    def trained(self) -> Shape:
        """The model that pre-training makes."""
        return trained_shape(self.recipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Answers of a stage to the planner. The module `need` of its folder has one."""

    need: Callable[[NeedRequest], Need | None] | None = None
    """Function that counts them. It returns None where they are nothing or not known."""
    title: str = ""
    """Heading of rows of its own in a plan. Empty: they are told with training."""
    refusal: Callable[[NeedRequest, StageMemory], str] | None = None
    """Text of the refusal where it does not fit. Without it, nothing is checked before a start."""
    flops: Callable[[NeedRequest], float] | None = None
    """Floating-point operations behind pre-training, which count in the time on a CPU."""
    before: Callable[[NeedRequest], tuple[float, str]] | None = None
    """Compute in front of pre-training as a share of its own, and a sentence for the assumptions."""


def stage_memory(
    stage: str, parts: dict[str, float], host_bytes: float, machine: Machine, *, nodes: int, devices: int
) -> StageMemory:
    """Memory of a stage on `devices` of each of `nodes` machines, with the verdict.

    A machine without GPUs has no memory but the main memory, which `parts` count.
    """
    counted = {name: round(value) for name, value in parts.items() if value >= 0.5} | outside_bytes(machine)
    # A pod gets the share of the main memory that its GPUs are of all of the machine's.
    limit = machine.ram_bytes * min(devices, machine.devices) // machine.devices
    verdict = fit_verdict(sum(counted.values()), machine)
    return StageMemory(
        stage=stage,
        nodes=nodes,
        devices=devices,
        parts=counted,
        host_bytes=round(host_bytes),
        device_bytes=machine.memory_bytes,
        host_limit_bytes=limit,
        verdict="no" if machine.device != CPU and host_bytes > limit else verdict,
    )


def fewest(options: Iterable[StageMemory]) -> StageMemory:
    """The first that fits; else the first that fits tightly; else the last, which needs least of a device."""
    listed = list(options)
    best = min(listed, key=lambda each: FIT_VERDICTS.index(each.verdict))
    return listed[-1] if best.verdict == "no" else best


def scoring_memory(shape: Shape, machine: Machine, devices: int, stage: str) -> StageMemory:
    """Memory of scoring or writing, with the model's layers spread over some devices of a machine."""
    on_gpu = machine.device != CPU
    # A file of weights is read at a time, and put where it belongs.
    host = FILE_BYTES if on_gpu else 0
    parts = scoring_parts(shape, devices, on_gpu=on_gpu)
    return stage_memory(stage, parts, host, machine, nodes=1, devices=devices)


def scoring_parts(shape: Shape, devices: int, *, on_gpu: bool) -> dict[str, float]:
    """Bytes of the device that has the most, by part."""
    size = BF16 if on_gpu else FP32
    tokens = BATCH_TOKENS["cuda" if on_gpu else "cpu"]
    layers = -(-shape.layers // devices)
    # Layers are not cut: one device may have one more than its part.
    more = size * max(shape.layer, shape.embedding) if devices > 1 else 0
    layer = 4 * shape.hidden + shape.query_width + 2 * shape.kv_width + 3 * shape.intermediate
    return {
        "weights": shape.parameters * size / devices + more,
        "activations": tokens * layer * size,
        "cache of decoding": tokens * layers * 2 * shape.kv_width * size,
        "logits": 2 * FP32 * LOGITS,
    }


def harness_parts(shape: Shape, devices: int, *, rows: int, context: int) -> dict[str, float]:
    """The same for a batch of lm-evaluation-harness on GPUs, with logits of `rows` rows of `context` tokens."""
    logits = rows * context * shape.vocabulary * (BF16 + FP32)  # and their log-probabilities in FP32
    return scoring_parts(shape, devices, on_gpu=True) | {"logits": float(logits)}


def scoring_plan(shape: Shape, recipe: Recipe, machine: Machine, stage: str) -> StageMemory:
    """The fewest devices that hold it, or as many as the recipe asks for (`cluster.resources.STAGE.gpus`)."""
    asked = recipe.cluster.resources.get(stage)
    counts = [asked.gpus] if asked and asked.gpus else divisors(machine.devices)
    return fewest(scoring_memory(shape, machine, count, stage) for count in counts)


def scoring_refusal(shape: Shape, need: StageMemory, machine: Machine, remedy: str) -> str:
    """Text of the refusal where a model that is scored, or writes, does not fit."""
    return (
        f"{need.stage} does not fit: {shape.name} ({human_parameters(shape.parameters)} parameters) on {need.where} of one "
        f"machine needs {human_bytes(need.total_bytes)} of a device that has {human_bytes(need.device_bytes)} "
        f"({machine.name}, {machine.device}); take a smaller base.model or a machine with more or larger devices, {remedy}"
    )


def written_tokens(recipe: Recipe) -> int:
    """Return the tokens that the base is to write for a recipe; 0 where it writes nothing."""
    return sum(each.tokens or 0 for each in recipe.sources.values() if each.written_by)


def tokens_of_files(files: Collection[str]) -> float:
    """Tokens of files of text or chats by their sizes, without files that are not on this machine."""
    with suppress(AnadilError):
        near = [each for each in files if "://" not in each]
        return sum(storage.sizes(near, "finetune.inputs").values()) / BYTES_PER_TOKEN
    return 0.0
