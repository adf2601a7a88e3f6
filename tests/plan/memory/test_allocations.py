"""What torch's allocator holds on a CPU in a step of the real trainer, and what the plan says of it."""

import gc
from functools import cache
from itertools import product

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import Shape, trained_shape
from anadil.model.process_group import Group
from anadil.pretrain.data.order import only
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from tests.kit.fake_run import exact_peak, random_model, random_tokens

NEAR = 0.03
"""Most that a prediction may be off, of what the allocator reports."""
LENGTH = 128
BATCH = {"fp32": 8, "bf16": 1}
"""Sequences by state; a matrix product in BF16 is slow on a CPU."""
RECOMPUTE = {"fp32": ("none", "selective", "full"), "bf16": ("none",)}
CASES = [
    (recompute, trains, state)
    for state, every in RECOMPUTE.items()
    for recompute, trains in product(every, ("all", "embeddings"))
]
BY_DEFAULT = (("none", "embeddings", "bf16"), ("selective", "all", "fp32"))
EVERY = [
    pytest.param(
        case, id="-".join(case), marks=[] if case in BY_DEFAULT else [pytest.mark.slow, pytest.mark.matrix]
    )
    for case in CASES
]


@cache
def sizes(recompute: str, trains: str, state: str) -> tuple[Recipe, Shape, Layout, Work]:
    recipe = load_recipe(
        "smoke",
        [
            f"pretrain.batch_size={BATCH[state]}",
            f"pretrain.micro_batch_size={BATCH[state]}",
            f"pretrain.sequence_length={LENGTH}",
            f"pretrain.activation_checkpointing={recompute}",
            f"pretrain.state={state}",
            "pretrain.precision=auto",
            f"pretrain.phases=[{{trains: {trains}, steps: 3, lr: 0.001}}]",
        ],
    )
    layout = Layout(micro_batch_size=BATCH[state], recompute=recipe.pretrain.activation_checkpointing)
    work = Work(
        sequence_length=LENGTH,
        trains=recipe.pretrain.phases[0].trains,
        state=recipe.pretrain.state,
        compute="bf16" if state == "bf16" else "fp32",
        kernels="torch",
    )
    return recipe, trained_shape(recipe), layout, work


@cache
def allocated(recompute: str, trains: str, state: str) -> int:
    """Most bytes between the start and the end of a second step, with what lay there before."""
    recipe, shape, layout, work = sizes(recompute, trains, state)
    model = random_model(shape, work, torch.device("cpu"), recipe.seed)
    trainer = Trainer(
        parallelize(model, recipe.pretrain, Mesh(), torch.device("cpu")),
        only(random_tokens(shape, work, layout.batch_size, recipe.seed)),
        recipe,
        Group(),
    )
    trainer.begin_phase(0)
    trainer.gradients(0)
    trainer.apply()
    assert trainer.optimizer is not None
    # The profiler sees a tensor's end but not its beginning where that lies before it.
    trainer.optimizer.zero_grad(set_to_none=True)
    moments = [value for one in trainer.optimizer.state.values() for value in one.values()]
    now: int = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *moments))
    peak = now
    # Else garbage of other tests is freed in the middle, and counted.
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            trainer.gradients(1)
            trainer.apply()
    finally:
        gc.enable()
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.parametrize("case", EVERY)
def test_fake_tensors_and_the_closed_form_hold_what_the_allocator_reports(case: tuple[str, str, str]) -> None:
    measured = allocated(*case)
    _, shape, layout, work = sizes(*case)

    assert exact_peak(shape, layout, work) == pytest.approx(measured, rel=NEAR)
    assert peak_memory(shape, layout, work).allocated == pytest.approx(measured, rel=NEAR)
