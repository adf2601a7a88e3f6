"""How a candidate is loaded to be scored: on the fewest GPUs of this machine that hold it with a batch."""

from pathlib import Path
from typing import Any

from anadil.artifacts.base_model import model_config
from anadil.model.placement import load_placed
from anadil.plan.evaluating import evaluate_parts
from anadil.plan.memory_limit import FITS
from anadil.plan.model_shape import shape_from


def load_for_scoring(path: Path, name: str) -> Any:
    """A model in the precision that its device computes in; see `load_placed`.

    Raises:
        PreflightError: The GPUs of this machine together do not hold it.
    """
    return load_placed(
        path,
        name,
        lambda count: evaluate_parts(shape_from(model_config(path), name), count, on_gpu=True),
        FITS,
    )
