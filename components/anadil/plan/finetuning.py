"""Memory that `finetune` needs: LoRA in one process on one device, whatever the cluster has.

The frozen weights lie there whole, in BF16 on a GPU and in FP32 on a CPU, which the planner of
`pretrain` spreads over many devices. So a model that pre-training holds may not fit here.
"""

from anadil.core.errors import PreflightError
from anadil.core.format import human_bytes, human_parameters
from anadil.plan import activations
from anadil.plan.activations import BF16, FP32
from anadil.plan.instances import CPU, Machine
from anadil.plan.layout import Layout, Work
from anadil.plan.memory_limit import OUTSIDE_BYTES, PROCESS_BYTES, fit_verdict
from anadil.plan.model_shape import Shape
from anadil.recipe.sections import Recipe

ADAPTER_BYTES = 4 * FP32
"""Of each number of the adapter: weight, gradient and two moments, all in FP32."""


def finetune_memory(shape: Shape, recipe: Recipe, machine: Machine) -> int:
    """Bytes on the device with a batch of the longest chats.

    On a GPU the trainer recomputes activations, on a CPU it keeps them (`finetune.lora`). The
    loss holds no logits.
    """
    settings = recipe.finetune
    on_gpu = machine.device != CPU
    size = BF16 if on_gpu else FP32
    tokens = settings.batch_size * settings.max_length
    layout = Layout(recompute="full" if on_gpu else "none")
    work = Work(
        sequence_length=settings.max_length,
        state="bf16" if on_gpu else "fp32",
        compute="bf16" if on_gpu else "fp32",
        kernels="torch",
    )
    saved = shape.layers * activations.saved_bytes(shape, work, layout)
    one = activations.layer_bytes(shape, work, layout) if on_gpu else 0
    adapter = shape.layers * _adapter_of_layer(shape, settings.rank)
    outside = OUTSIDE_BYTES if on_gpu else PROCESS_BYTES
    return round(shape.parameters * size + adapter * ADAPTER_BYTES + tokens * (saved + one) + outside)


def check_finetune_fits(shape: Shape, recipe: Recipe, machine: Machine) -> str:
    """One line about the memory that `finetune` needs.

    Raises:
        PreflightError: It does not fit.
    """
    settings = recipe.finetune
    total = finetune_memory(shape, recipe, machine)
    verdict = fit_verdict(total, machine)
    has = human_bytes(machine.memory_bytes)
    if verdict == "no":
        raise PreflightError(
            f"finetune does not fit: it runs in one process on one device, and {shape.name} "
            f"({human_parameters(shape.parameters)} parameters) with finetune.batch_size {settings.batch_size} chats of "
            f"finetune.max_length {settings.max_length:,} tokens needs {human_bytes(total)} on a device that has "
            f"{has} ({machine.name}, {machine.device}); take a smaller base.model or a larger device"
            f"{_smaller(shape, recipe, machine)}, or leave finetune.inputs out: --set 'finetune.inputs=[]'"
        )
    return f"finetune needs {human_bytes(total)} of {has} on one device ({verdict})"


def _adapter_of_layer(shape: Shape, rank: int) -> int:
    """Numbers of the two small matrices beside each of a layer's seven."""
    attention = 2 * (shape.hidden + shape.query_width) + 2 * (shape.hidden + shape.kv_width)
    return rank * (attention + 3 * (shape.hidden + shape.intermediate))


def _smaller(shape: Shape, recipe: Recipe, machine: Machine) -> str:
    """A batch that fits, as a remedy; nothing where not even one chat does."""
    for size in range(recipe.finetune.batch_size - 1, 0, -1):
        finetune = recipe.finetune.model_copy(update={"batch_size": size})
        tried = recipe.model_copy(update={"finetune": finetune})
        if fit_verdict(finetune_memory(shape, tried, machine), machine) == "fits":
            return f", or --set finetune.batch_size={size}"
    return ""
