"""A plan: one tree of values that the terminal and the JSON read."""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal

from anadil.estimate.budget import CheckpointPlan, Reliability, RentalCost, StorageNeed, Time
from anadil.estimate.fit import FIT_VERDICTS, FitVerdict
from anadil.estimate.layout import Kernels, Layout, Precision
from anadil.estimate.model_shape import Trains
from anadil.estimate.search import Rationale
from anadil.estimate.speed import Bound, Calibration
from anadil.estimate.stage_memory import Need, StageMemory
from anadil.estimate.text_use import TextUse


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """The model that is trained."""

    name: str
    parameters: int
    vocabulary: int
    base_vocabulary: int
    layers: int
    hidden: int
    tied: bool
    active_parameters: int
    """Parameters that a token meets: without other experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """The nodes that train it."""

    instance: str
    device: str
    nodes: int
    devices: int
    """Devices of all nodes."""
    memory_bytes: int
    """Bytes of one device."""
    network_bytes_per_s: float | None
    """Bandwidth of one node."""
    flops_bf16: float | None
    price_checked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSummary:
    """How devices share the model, and what a step computes."""

    layout: Layout
    state: Precision
    kernels: Kernels
    precision: Precision
    batch_size: int
    """Sequences of an optimizer step, as the recipe says."""
    sequence_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one device at its worst moment."""

    parts: dict[str, int]
    """Bytes of the allocator."""
    outside: dict[str, int]
    """Bytes beside the allocator."""
    allocated_bytes: int
    total_bytes: int
    limit_bytes: int
    """Up to this it fits."""
    device_bytes: int
    moment: str
    stage: int
    """Pipeline stage, from 0."""
    verdict: FitVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEstimate:
    """A phase of pre-training; rates are None where the device's speed is not known."""

    trains: Trains
    steps: int
    tokens: int
    flops: float
    memory: MemoryEstimate
    tokens_per_s_per_device: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    without_overlap_s: float | None = None
    mfu: float | None = None
    hours: float | None = None
    bound: Bound | None = None
    step_parts_s: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOption:
    """A layout that the search has found, with what the whole run would take."""

    layout: Layout
    total_bytes: int
    verdict: FitVerdict
    tokens_per_s_per_device: float
    hours: float
    cost: float | None
    """USD on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """Counts and best layouts of a search."""

    considered: int
    fitting: int
    seconds: float
    best: tuple[LayoutOption, ...]
    frontier: tuple[LayoutOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeed:
    """Needs of a stage beside training."""

    stage: str
    title: str
    """Heading of its rows."""
    need: Need | None
    """None where the run goes without the stage, or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Needs, time and cost of a recipe's run on some nodes, with the reasons."""

    version: str
    recipe: str
    language: str
    model: ModelSummary
    machine: ClusterSummary
    layout: LayoutSummary
    origin: Literal["recipe", "search"]
    """Where the layout comes from."""
    text: tuple[TextUse, ...]
    """Text and epochs by source; none where the size of the text is not known."""
    text_fault: str
    """Reason to expect that training is refused for lack of text, by estimates; empty if there is enough."""
    needs: tuple[StageNeed, ...]
    """Stages beside training that need more than memory, or other memory than that of the trained model."""
    phases: tuple[PhaseEstimate, ...]
    after: tuple[StageMemory, ...]
    """Stages that load the trained model: `finetune`, where there are chats, and `evaluate`."""
    search: SearchSummary | None
    """None where the device's speed is not known."""
    choices: tuple[Rationale, ...]
    time: Time
    cost: RentalCost
    reliability: Reliability
    checkpoints: CheckpointPlan
    storage: StorageNeed
    calibration: Calibration | None
    assumptions: tuple[str, ...]

    @property
    def peak(self) -> PhaseEstimate:
        """The phase that needs the most memory."""
        return max(self.phases, key=lambda phase: phase.memory.total_bytes)

    @property
    def verdict(self) -> FitVerdict:
        """Verdict of the phase that fits worst."""
        return max((phase.memory.verdict for phase in self.phases), key=FIT_VERDICTS.index)

    @property
    def expected_hours(self) -> float | None:
        """The time to say first: the middle of its range until short runs have set the rates."""
        return self._expected(self.time.hours, self.time.hours_low, self.time.hours_high)

    @property
    def expected_cost(self) -> float | None:
        """The price on demand to say first, in USD; see `expected_hours`."""
        price = self.cost.on_demand
        return self._expected(price.predicted, price.low, price.high)

    def _expected(self, predicted: float | None, low: float | None, high: float | None) -> float | None:
        if self.calibration is not None or low is None or high is None:
            return predicted
        return (low + high) / 2

    def as_json(self) -> dict[str, Any]:
        """Output of `anadil plan -o json`; its keys are an interface.

        `expected` comes first: what the plan says in its first sentence. `time.hours` is the best to hope for.
        """
        price = self.cost.on_demand
        expected = {
            "verdict": self.verdict,
            "hours": self.expected_hours, "hours_low": self.time.hours_low, "hours_high": self.time.hours_high,
            "cost": self.expected_cost, "cost_low": price.low, "cost_high": price.high,
        }  # fmt: skip
        return {"expected": expected, **_json(self)}


def _json(value: object) -> Any:
    if isinstance(value, RentalCost):
        return _cost_json(value)
    if isinstance(value, StageMemory):
        return {**asdict(value), "total_bytes": value.total_bytes}
    if isinstance(value, TextUse):
        return {**asdict(value), "sentence": value.line(), "remedy": value.remedy()}
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if not is_dataclass(value):
        return value
    data: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Layout):  # its settings lie beside what else the table holds
            settings = asdict(item)
            recompute = settings.pop("recompute")
            data |= {"name": item.name(), **settings, "activation_checkpointing": recompute}
        elif field.name == "needs":
            data |= {each.stage: _json(each.need) for each in item}
        else:
            data["from" if field.name == "origin" else field.name] = _json(item)
    if isinstance(value, PhaseEstimate) and value.without_overlap_s is None:
        del data["without_overlap_s"]
    return data


def _cost_json(cost: RentalCost) -> dict[str, Any]:
    prices = {"on_demand": cost.on_demand, "spot": cost.spot, "training_plan": cost.training_plan}
    data: dict[str, Any] = {}
    for name, price in prices.items():
        data |= {name: price.predicted, f"{name}_low": price.low, f"{name}_high": price.high}
    per_hour = {name: price.per_hour for name, price in prices.items()}
    return data | {"per_hour": per_hour, "currency": cost.currency}
