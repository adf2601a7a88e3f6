"""A small model and a recipe for measurements."""

import json

from anadil.cli.calibrate.runs import versions
from anadil.plan.calibration import Measurement
from anadil.plan.layout import Layout, Work
from anadil.plan.model_shape import Shape
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe

SHAPE = Shape(
    name="small",
    hidden=32,
    intermediate=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocabulary=300,
    tied=True,
)
WORK = Work(sequence_length=16, compute="fp32", kernels="torch")
LAYOUT = Layout(micro_batch_size=2, micro_batches=2, recompute="full")


def recipe(*kinds: str) -> Recipe:
    phases = [{"trains": kind, "steps": 10, "lr": 1e-3} for kind in kinds or ("embeddings", "all")]
    data = {
        "base": {"model": "tiny"},
        "storage": {"root": "s3://secret/place"},
        "pretrain": {"phases": phases},
    }
    return parse_recipe(json.dumps(data), "recipe")


def measurement(**changed: object) -> Measurement:
    values = {
        "status": "ok",
        "device": "H100",
        "shape": SHAPE,
        "layout": LAYOUT,
        "work": WORK,
        "versions": versions(),
        "steps": 5,
        "step_s": 0.5,
        "tokens_per_s_per_device": 128.0,
        "allocated_bytes": 1_000_000,
    }
    return Measurement(**(values | changed))  # type: ignore[arg-type]  # the values fit their fields
