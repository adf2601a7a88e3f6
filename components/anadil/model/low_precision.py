"""Matrix products of the layers in 8 or 4 bits, by torchao; weights and all else keep their precision.

The embeddings, the head and attention itself keep the precision of the run. These formats buy
speed, not memory: weights, gradients, moments and kept activations are what they were.

Read from the source of torchao 0.18.0. Its arithmetic is tested on a CPU, where torchao imitates
the 8-bit formats; its kernels need a GPU, on which this module has not run.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from anadil.core.errors import PreflightError, RecipeError

log = logging.getLogger(__name__)

MatmulFormat = Literal["same", "float8_tensorwise", "float8_rowwise", "mxfp8", "nvfp4"]

TORCHAO = "torchao==0.18.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatNeeds:
    """Demands of a format on GPU and shapes."""

    capability: tuple[int, int]
    """The oldest compute capability whose tensor cores have the format."""
    newest: tuple[int, int]
    """The newest that torchao's kernels are written for."""
    multiple: int
    """All three dimensions of a product are multiples of it."""


ANY = (99, 0)
FORMAT_NEEDS: dict[str, FormatNeeds] = {
    "float8_tensorwise": FormatNeeds(capability=(8, 9), newest=ANY, multiple=16),
    "float8_rowwise": FormatNeeds(capability=(9, 0), newest=ANY, multiple=16),
    "mxfp8": FormatNeeds(capability=(10, 0), newest=ANY, multiple=32),
    "nvfp4": FormatNeeds(capability=(10, 0), newest=(10, 99), multiple=128),
}
"""Source: torchao 0.18.0, `is_sm_at_least_89` and so on, the assertions of `float8_linear_utils.py`,
`mx_formats/kernels.py` and `nvfp4_linear.py`; CUTLASS for rowwise scales in FP8 on Hopper. NVFP4 rounds
by PTX's `cvt.rs`, which only the data centre's Blackwell has (PTX ISA 8.7, `sm_100a` and `sm_103a`)."""
HIGH_SHARE = 0.15
"""Share of layers, the last ones, that NVFP4 leaves in BF16; without them training diverged.
Source: NVIDIA 2025, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149, section 4.1."""
SIGNS = (1, -1, 1, 1, -1, 1, -1, -1, 1, 1, 1, -1, -1, 1, -1, -1)
"""Signs of NVFP4's Hadamard transform; one random choice for all matrices, as in arXiv:2509.25149. They
are fixed, so that every process and every start rotates alike."""


def check_low_precision(
    kind: MatmulFormat, device: torch.device, dtype: torch.dtype, *, tokens: int, tensor: int = 1,
    compiled: bool = True,
) -> None:  # fmt: skip
    """Refuse a format that this machine, or this run's shapes, cannot do; before a model is loaded.

    `tokens` are those of a sequence on one process: the length, less the share of context parallelism. `tensor` processes
    share each matrix. Without `compiled` a warning is logged.
    """
    if kind == "same":
        return
    _check_device(kind, device)
    _check_torchao(kind)
    if dtype != torch.bfloat16:
        raise RecipeError(
            f"pretrain.matmul is {kind}, whose results are BF16, but pretrain.precision is fp32; "
            "set precision to auto or bf16, or matmul to same"
        )
    if kind == "nvfp4" and tensor > 1:
        raise RecipeError(
            f"pretrain.matmul is nvfp4, which shares no matrix between processes, but "
            f"pretrain.parallelism.tensor is {tensor}; set it to 1, or matmul to float8_rowwise or mxfp8"
        )
    multiple = FORMAT_NEEDS[kind].multiple
    if tokens % multiple:
        raise RecipeError(
            f"pretrain.matmul is {kind}, which needs a multiple of {multiple} tokens of each sequence on a "
            f"process, and there are {tokens}; change pretrain.sequence_length or parallelism.context"
        )
    if not compiled:
        log.warning("pretrain.matmul is %s without pretrain.compile: casts cost more than it saves", kind)


def low_precision_layers(model: PreTrainedModel, kind: MatmulFormat) -> list[nn.Module]:
    """Return the decoder layers that run in a format: all, but for NVFP4, which leaves the last ones in BF16."""
    # In a pipeline stage too layers keep their numbers as names.
    config: Any = model.config
    num_layers: int = config.num_hidden_layers
    end = num_layers - (math.ceil(HIGH_SHARE * num_layers) if kind == "nvfp4" else 0)
    layers: Any = model.base_model.layers
    return [layer for number, layer in layers.named_children() if int(number) < end]


def use_low_precision(
    layers: Sequence[nn.Module], kind: MatmulFormat, *, sharded: bool = False, tensor: int = 1,
    emulated: bool = False,
) -> int:  # fmt: skip
    """Let the linear modules in `layers` multiply in a format; names and weights stay. Return the number of matrices.

    Called before tensor parallelism by `tensor` processes, which hooks onto the modules that are replaced here. Matrices
    that do not fit, or are too small to gain from FP8, are left alone and logged. Compile the layers afterwards: else
    casting costs more than the faster products save. Where FSDP shards the layers, tensor-wise FP8 is cast before it is
    gathered, in half the bytes; call `update_fp8_scales` after each optimizer step. `emulated` imitates the format on any
    device, for tests.
    """
    if kind == "same" or not layers:
        return 0
    multiple, gains = FORMAT_NEEDS[kind].multiple * tensor, _gains(kind, emulated)
    left: list[str] = []
    num = 0
    for layer in layers:
        for name, module in list(layer.named_modules()):
            if isinstance(module, nn.Linear):
                assert not isinstance(module.weight, DTensor), f"{kind} comes before tensor parallelism"
                fits = not (module.in_features % multiple or module.out_features % multiple)
                if fits and gains(module, name):
                    _replace(layer, name, _converted(module, kind, sharded=sharded, emulated=emulated))
                    num += 1
                else:
                    left.append(f"{name} ({module.out_features} x {module.in_features})")
    if not num:
        raise RecipeError(
            f"pretrain.matmul is {kind}, but no matrix of a layer is large enough with dimensions that are "
            f"multiples of {multiple}; set pretrain.matmul to same"
        )
    unconverted = ", ".join(sorted(set(left))) or "none"
    log.info("%s matrices multiply in %s; of each layer these do not: %s", f"{num:,}", kind, unconverted)
    return num


def update_fp8_scales(model: nn.Module) -> None:
    """Compute the scales of all gathered FP8 weights in one exchange; nothing where there are none."""
    if any(_wrapped(parameter) is not None for parameter in model.parameters()):
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp  # an option

        precompute_float8_dynamic_scale_for_fsdp(model)


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, in the same memory, without torchao's class around them; for checkpoints."""
    inner = _wrapped(tensor)
    if inner is None:
        return tensor.detach()
    if not isinstance(tensor, DTensor):
        return inner
    return DTensor.from_local(
        inner, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )  # fmt: skip


class BlockScaledLinear(nn.Linear):
    """A linear module whose product is a function of input and weight, also under autocast."""

    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  the name in nn.Linear
        """Multiply in the precision of autocast where it is on, else in that of the input."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        with torch.autocast(device, enabled=False):
            output = self.product(input.to(dtype), self.weight.to(dtype))
            return output if self.bias is None else output + self.bias.to(output.dtype)


def _check_device(kind: MatmulFormat, device: torch.device) -> None:
    needs = FORMAT_NEEDS[kind]
    range_text = f"compute capability {needs.capability[0]}.{needs.capability[1]}"
    if needs.newest != ANY:
        range_text += f" to {needs.newest[0]}.x"
    remedy = "set pretrain.matmul to same, or to a format that the GPU has"
    if device.type != "cuda":
        raise PreflightError(
            f"pretrain.matmul is {kind}, which needs a GPU of {range_text}, and this process has a "
            f"{device.type}; {remedy}"
        )
    capability = torch.cuda.get_device_capability(device)
    if not needs.capability <= capability <= needs.newest:
        raise PreflightError(
            f"pretrain.matmul is {kind}, which needs {range_text}, and {torch.cuda.get_device_name(device)} "
            f"has {capability[0]}.{capability[1]}; {remedy}"
        )


def _check_torchao(kind: MatmulFormat) -> None:
    if kind != "mxfp8":
        return
    import torchao.prototype.mx_formats.kernels  # noqa: F401  # defines the kernels, and logs a line if it cannot

    try:
        # There is no public question for it.
        loaded = torch._C._dispatch_has_kernel_for_dispatch_key("torchao::mxfp8_quantize", "CUDA")  # noqa: SLF001
    except RuntimeError:
        loaded = False  # not even its name is known
    if not loaded:
        raise PreflightError(
            f"pretrain.matmul is mxfp8, but torchao's kernels do not load with torch {torch.__version__} "
            f"(CUDA {torch.version.cuda}); install {TORCHAO} and torch for CUDA 13, or set pretrain.matmul "
            "to float8_rowwise"
        )


def _gains(kind: MatmulFormat, emulated: bool) -> Callable[[nn.Module, str], bool]:
    """Return a test that a matrix is large enough to be faster in FP8. Source: torchao 0.18.0, measured on H100."""
    if emulated or not kind.startswith("float8_"):
        return lambda _module, _name: True
    from torchao.float8 import _auto_filter_for_recipe  # an option

    chosen: Callable[[nn.Module, str], bool] = _auto_filter_for_recipe(kind.removeprefix("float8_"), [])
    return chosen


def _replace(layer: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    old = layer.get_submodule(name)
    hooks = [*old._forward_pre_hooks, *old._forward_hooks]  # noqa: SLF001  no public way to ask
    assert not hooks, f"hooks of {name} would be lost"
    # A new module begins in training mode, whatever the old one was in.
    module.train(old.training)
    setattr(layer.get_submodule(parent), last, module)


def _converted(module: nn.Linear, kind: MatmulFormat, *, sharded: bool, emulated: bool) -> nn.Module:
    if kind.startswith("float8_"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # an option

        config = replace(
            Float8LinearConfig.from_recipe_name(kind.removeprefix("float8_")),
            enable_fsdp_float8_all_gather=sharded and kind == "float8_tensorwise",
            emulate=emulated,
        )
        converted: nn.Module = convert_to_float8_training(module, config=config)
        return converted
    with torch.device("meta"):
        scaled = BlockScaledLinear(module.in_features, module.out_features, bias=False)
    scaled.weight, scaled.bias = module.weight, module.bias
    scaled.product = _mxfp8(emulated) if kind == "mxfp8" else _nvfp4
    return scaled


def _mxfp8(emulated: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm  # an option
    from torchao.prototype.mx_formats.config import ScaleCalculationMode  # an option
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference  # an option

    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = partial(
        _to_mxfp8_then_scaled_mm,
        kernel_preference=KernelPreference.EMULATED if emulated else KernelPreference.AUTO,
        scale_calculation_mode=ScaleCalculationMode.RCEIL,
    )
    return product


def _nvfp4(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear  # an option

    # Made on the device, since a copy from the host would wait for it.
    seed = torch.zeros(1, dtype=torch.int64, device=values.device)
    output: torch.Tensor = nvfp4_linear(values, weight, sign_vector=SIGNS, sr_seed=seed)
    return output


def _wrapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the weight inside torchao's class for gathering in FP8; None for another tensor."""
    local = tensor.detach()
    if isinstance(local, DTensor):
        local = local.to_local()
    if type(local).__name__ != "WeightWithDynamicFloat8CastTensor":
        return None
    inner: Any = local
    weight: torch.Tensor = inner._tensor  # noqa: SLF001  torchao has no public name for it
    return weight
