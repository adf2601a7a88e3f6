"""Memory that torch's CPU allocator holds in a step of the real trainer, beside both predictions.

OMP_NUM_THREADS=1 python -m benchmarks.plan.allocation
"""

import sys
import warnings
from itertools import product

import torch
from tests.kit.fake_run import exact_peak, random_model, random_tokens
from torch.profiler import ProfilerActivity, profile

from anadil.core.format import MIB
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import trained_shape
from anadil.model.process_group import Group
from anadil.pretrain.data.order import only
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.load import load_recipe

LENGTH = 128
BATCH = {"fp32": 8, "bf16": 2}
"""Sequences by state; a matrix product in BF16 is slow on a CPU."""


def compared(recompute: str, trains: str, state: str) -> tuple[int, int, int]:
    """Bytes measured, of the run on fake tensors, of the closed form."""
    recipe = load_recipe(
        "smoke",
        [
            f"pretrain.batch_size={BATCH[state]}",
            f"pretrain.micro_batch_size={BATCH[state]}",
            f"pretrain.sequence_length={LENGTH}",
            f"pretrain.activation_checkpointing={recompute}",
            f"pretrain.state={state}",
            f"pretrain.phases=[{{trains: {trains}, steps: 3, lr: 0.001}}]",
        ],
    )
    shape = trained_shape(recipe)
    layout = Layout(micro_batch_size=BATCH[state], recompute=recipe.pretrain.activation_checkpointing)
    work = Work(
        sequence_length=LENGTH,
        trains=recipe.pretrain.phases[0].trains,
        state=recipe.pretrain.state,
        compute="bf16" if state == "bf16" else "fp32",
        kernels="torch",
    )
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
    return (
        second_step(trainer),
        exact_peak(shape, layout, work, recipe.pretrain),
        peak_memory(shape, layout, work).allocated,
    )


def second_step(trainer: Trainer) -> int:
    """Most bytes during a step, with what lay there before it."""
    assert trainer.optimizer is not None
    # The profiler sees a tensor's end but not its beginning where that lies before it.
    trainer.optimizer.zero_grad(set_to_none=True)
    moments = [value for one in trainer.optimizer.state.values() for value in one.values()]
    held = (*trainer.parameters.values(), *moments)
    now: int = sum(tensor.numel() * tensor.element_size() for tensor in held)
    peak = now
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        trainer.gradients(1)
        trainer.apply()
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| recompute | trains | state | batch | measured MiB | fake MiB | % | closed MiB | % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for state, recompute, trains in product(BATCH, ("none", "selective", "full"), ("all", "embeddings")):
        measured, fake, closed = compared(recompute, trains, state)
        print(
            f"| {recompute} | {trains} | {state} | {BATCH[state]} x {LENGTH} | {measured / MIB:.2f} | "
            f"{fake / MIB:.2f} | {100 * (fake / measured - 1):+.2f} | "
            f"{closed / MIB:.2f} | {100 * (closed / measured - 1):+.2f} |"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
