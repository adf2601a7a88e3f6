"""Placement of a model that only reads and writes: on one device, or its layers spread over this machine's GPUs."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anadil.core.errors import PreflightError
from anadil.core.format import human_bytes
from anadil.model.load import load_model, pick_device, pick_dtype

log = logging.getLogger(__name__)

Parts = Callable[[int], Mapping[str, float]]
"""Number of GPUs -> bytes on the one that has the most, by part; one is `weights`."""


def load_placed(path: Path, name: str, parts: Parts, usable: float) -> Any:
    """Load a model in the precision that its device computes in, on as few devices as hold it with a batch.

    `usable` is the share of a GPU's free memory that may be filled.
    """
    device = pick_device()
    dtype = pick_dtype(device)
    if device.type != "cuda":
        return load_model(path, dtype)
    free = [torch.cuda.mem_get_info(each)[0] for each in range(torch.cuda.device_count())]
    room = max_memory(parts, usable, free, name)
    if len(room) == 1:
        loaded: Any = load_model(path, dtype)
        return loaded.to(device)
    log.info("%s: its layers lie on %d GPUs", name, len(room))
    spread: Any = load_model(path, dtype, placement={"device_map": "auto", "max_memory": room})
    elsewhere = sorted(str(each) for each in set(spread.hf_device_map.values()) - set(room))
    if elsewhere:
        raise PreflightError(
            f"{name}: not all layers fit {len(room)} GPUs, some would lie on {', '.join(elsewhere)}, which takes hours; "
            "evaluate on a machine with more or larger ones"
        )
    return spread


def free_memory() -> None:
    """Give back the memory of a model that nobody needs any more; call it after the last reference is gone."""
    gc.collect()  # models and trainers refer to themselves, so they wait for the collector
    torch.cuda.empty_cache()  # does nothing without a GPU


def max_memory(parts: Parts, usable: float, free: Sequence[int], name: str) -> dict[int, int]:
    """Return the bytes of weights that each of the fewest GPUs, with `free` bytes each, may get beside a batch."""
    # The fewest: states are copied at each border between two GPUs.
    for count in range(1, len(free) + 1):
        others = dict(parts(count))
        weights = others.pop("weights")
        batch = sum(others.values())
        room = [usable * each - batch for each in free[:count]]
        if min(room) >= weights:
            return {number: int(each) for number, each in enumerate(room)}
    raise PreflightError(
        f"{name}: {human_bytes(weights)} of weights and {human_bytes(batch)} of a batch on each of "
        f"{len(free)} GPUs, which have {human_bytes(min(free))} free; evaluate on a machine with more or larger ones"
    )
