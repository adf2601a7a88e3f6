"""Where a model lies while it is scored: on one device, or its layers spread over the GPUs of this machine."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anadil.artifacts.base_model import model_config
from anadil.core.errors import PreflightError
from anadil.core.format import human_bytes
from anadil.model.load import load_model, pick_device, pick_dtype
from anadil.plan.evaluating import evaluate_parts
from anadil.plan.memory_limit import FITS
from anadil.plan.model_shape import shape_from

log = logging.getLogger(__name__)


def load_for_scoring(path: Path, name: str) -> Any:
    """A model in the precision that its device computes in, on as few devices as hold it with a batch.

    Args:
        path: Hugging Face directory.
        name: The candidate, for messages.

    Raises:
        PreflightError: The GPUs of this machine together do not hold it.
    """
    device = pick_device()
    dtype = pick_dtype("auto", device)
    if device.type != "cuda":
        return load_model(path, dtype)
    free = [torch.cuda.mem_get_info(each)[0] for each in range(torch.cuda.device_count())]
    room = max_memory(model_config(path), free, name)
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


def max_memory(config: Mapping[str, object], free: Sequence[int], name: str) -> dict[int, int]:
    """Bytes of weights that each of the fewest GPUs may get, so that a batch has room beside them.

    Args:
        config: The model's config.json.
        free: Bytes that programs can still have of each GPU.
        name: The candidate, for messages.

    Raises:
        PreflightError: All of them do not hold it.
    """
    shape = shape_from(config, name)
    for count in range(1, len(free) + 1):
        parts = evaluate_parts(shape, count, on_gpu=True)
        weights = parts.pop("weights")
        room = [FITS * each - sum(parts.values()) for each in free[:count]]
        if min(room) >= weights:
            return {number: int(each) for number, each in enumerate(room)}
    raise PreflightError(
        f"{name}: {human_bytes(weights)} of weights and {human_bytes(sum(parts.values()))} of a batch on each of "
        f"{len(free)} GPUs, which have {human_bytes(min(free))} free; evaluate on a machine with more or larger ones"
    )
