"""The result of a step, and the state of a run that is saved beside the weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from anadil.core.errors import IntegrityError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLoss:
    """Summed loss of one source in some steps."""

    tokens: int = 0
    """Target tokens."""
    nats: float = 0.0

    def __add__(self, other: "SourceLoss") -> "SourceLoss":
        return SourceLoss(tokens=self.tokens + other.tokens, nats=self.nats + other.nats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Result of one optimizer step, the same on every process."""

    phase: int
    loss: float
    """Mean nats per target token of the whole batch."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Target tokens of the whole batch."""
    signal: int
    """Signal that some process has received; 0 for none."""
    sources: Mapping[str, SourceLoss] = field(default_factory=dict)
    """Loss by source; empty where the recipe has no sources."""
    divergence: SourceLoss = SourceLoss()
    """Divergence from the base, and the positions that it was measured at. `loss` does not hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """One source of a run."""

    tokens: int = 0
    """Target tokens trained on."""
    since_line: SourceLoss = SourceLoss()
    """Loss since the last logged line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Checkpoint of another run that this one began with: `pretrain.start_from`."""

    place: str
    digest: str
    """That of its manifest, which decides the key of what this run makes."""
    step: int
    run: str = ""
    """Artifact that the other run makes; empty where a program wrote the checkpoint that did not say."""
    warmup: int | None = None
    """Steps of the warm-up in the phase of `step`, where the recipe's is longer than what was done of the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the run stands."""

    step: int
    """Optimizer steps done."""
    tokens: int
    """Target tokens trained on."""
    seconds: float
    """Time in training, over all starts."""
    anomalies: dict[str, Any] = field(default_factory=dict)
    """State of `SpikeDetector`: losses to compare with, and skipped batches."""
    sources: dict[str, SourceState] = field(default_factory=dict)
    """By name; empty where the recipe has no sources."""
    branch: Branch | None = None
    """Begin of the run, where that is a checkpoint of another one."""
    run: str = ""
    """Artifact that the run makes; of a saved state only."""
    mixture: dict[str, Any] = field(default_factory=dict)
    """State of `MixtureKeeper`: the order of the sources, and the shares that it follows from; of a saved state only."""
    distillation: dict[str, Any] = field(default_factory=dict)
    """State of `TeacherWeight`: the weight, and what it was found by. Empty without a teacher."""
    journal: str = ""
    """Lines of `training.jsonl` so far, for a start on a node that has none; of a saved state only."""

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: bytes, name: str) -> "State":
        """Read the text of `to_json` in the file `name`; `IntegrityError` for any other text."""
        try:
            # Typed, so that a damaged or foreign file ends here and not in the loop.
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise IntegrityError(f"{name}: not a state of a run ({reason}); remove the checkpoint") from None
