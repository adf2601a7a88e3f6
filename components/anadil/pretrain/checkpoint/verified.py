"""A checkpoint that a run can resume from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from anadil.pretrain.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCheckpoint:
    """A checkpoint whose every byte has been compared with its manifest."""

    path: Path
    state: State
    metadata: Metadata = field(repr=False)
    """Tensors of its files, with their places. Reading it runs no code."""

    @property
    def names(self) -> set[str]:
        """Names of the tensors that it holds: at a phase's border parameters without moments."""
        tensors: dict[str, Any] = self.metadata.state_dict_metadata
        return set(tensors)
