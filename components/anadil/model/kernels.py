"""Settings of a GPU's arithmetic, and Liger's kernels in a model."""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import PreTrainedModel
from transformers.cache_utils import KVSharingDict

from anadil.core.errors import DataError, PreflightError
from anadil.model.attention import OPERATOR, check_gpu
from anadil.model.family_table import families

log = logging.getLogger(__name__)


def set_up_device(device: torch.device, dtype: torch.dtype) -> None:
    """Set what a GPU of this process computes with; nothing to do on a CPU.

    Source: torch 2.13, "TensorFloat-32 (TF32) on Ampere (and later) devices", notes/cuda.
    """
    if device.type != "cuda":
        return
    if dtype == torch.bfloat16:
        check_gpu(device)
    torch.cuda.set_device(device)
    # FP32 products stay FP32, whatever the environment says (NVIDIA's images turn TF32 on): `precision: fp32` asks for
    # it, and with `bf16` no large product is left in FP32 that TF32, with 10 bits of mantissa, could make faster.
    # This is the older of two settings: torch.compile reads it, and refuses a mixture of both.
    torch.set_float32_matmul_precision("highest")


def use_liger_kernels(
    activation_checkpointing: str, *, compiled: bool = False, config: Any = None, kernels: str = "auto"
) -> None:
    """Put Liger's kernels into transformers' models of a family, for the whole process.

    Called before the model is made, and never where there is no GPU: the kernels fail when they
    run, not here. The loss is not among them; `summed_loss` calls Liger's itself.

    Some stay torch's, each for a fault of Liger 0.8.5 that shows no error:

    - The rotation, under `selective`: Liger rotates queries and keys in the memory of the matrix
      product that made them (`ops/rope.py`). Selective checkpointing keeps that product and would
      rotate it once more, with wrong gradients.
    - The MLP, where it has biases: Liger's has none (`transformers/swiglu.py`) and would leave them out.
    - All, under `torch.compile`, which fuses the same operations itself and would have to
      stop at Liger's choice between its backends (`backends/dispatch`).

    Norms are safe under tensor parallelism only with plain tensors: of a DTensor, `ops/rms_norm.py`
    returns all tokens.

    Without `config` of the base model a Llama without biases is meant.

    Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989.
    """
    if compiled:
        log.info("the layers' kernels are torch.compile's; Liger's is the loss")
        return
    kind = "llama" if config is None else config.model_type
    liger = families()[kind].liger if kind in families() else None
    if liger is None:
        if kernels == "liger":
            patched = ", ".join(each.model_type for each in families().values() if each.liger)
            raise PreflightError(
                f"pretrain.kernels is liger, but Liger's norms, rotation and SwiGLU are put into {patched} alone, "
                f"and base.model is of the type {kind}; set it to auto, which takes Liger's loss, or torch"
            )
        log.warning(
            "pretrain.kernels: base.model is of the type %s, whose norms, rotation and SwiGLU stay torch's; "
            "the loss alone is Liger's", kind,
        )  # fmt: skip
        return
    import liger_kernel.transformers

    # At the first rotation it tries back ends for chips of other makers too, and warns of each that is not installed.
    logging.getLogger("liger_kernel.backends.registry").setLevel(logging.ERROR)
    getattr(liger_kernel.transformers, liger)(
        rope=activation_checkpointing != "selective",
        swiglu=not getattr(config, "mlp_bias", False),
        cross_entropy=False,
        fused_linear_cross_entropy=False,
    )


MOST_GRAPHS = 32
"""Variants of a layer's program: frozen or trained, with gradients or without, each length and number of
sequences. torch would continue uncompiled after eight, which it says in one log line only."""
COMPILERS = {"cpu": ("CXX", ("g++", "clang++")), "cuda": ("CC", ("gcc", "clang"))}
"""Variable and programs that are tried. Source: torch 2.13, `_inductor/config.py`, `cpp.cxx`; Triton 3.9,
`runtime/build.py`, which compiles the launcher of each kernel in C."""


def check_compiler(device: torch.device, key: str = "pretrain.compile", off: str = "false") -> None:
    """Refuse a machine on which the first step would fail for want of a compiler, with `off` as the key's value without."""
    variable, programs = COMPILERS[device.type]
    named = os.environ.get(variable)
    if not any(shutil.which(program) for program in ([named] if named else programs)):
        looked = f"{variable}={named}" if named else f"{variable} is not set, no {' or '.join(programs)}"
        raise PreflightError(
            f"{key} needs a compiler on this machine ({looked}); install one (Debian: apt-get install "
            f"{programs[0]}), or set {key} to {off}"
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise PreflightError(
            f"{key} needs Python's header files, and there is no {header}; install them (Debian: "
            f"apt-get install python3-dev), or set {key} to {off}"
        )


def compile_layers(layers: Sequence[nn.Module], *, backend: str = "inductor") -> None:
    """Let each layer's forward pass run compiled; parameter names, hooks and the module stay.

    Called after `checkpoint_layers` and the conversion to fewer bits, before `fully_shard`, whose hooks
    then run around the compiled call. Compiling begins with the first forward pass, in the main thread, between whose
    steps a signal is received as ever; torch's helper processes end with it.
    """
    # A layer that is compiled by its own `compile()` would run as it was under activation checkpointing, without a
    # word: torch keeps Dynamo out of `checkpoint`, unless a function that Dynamo is in already calls it, here `_call`.
    # No public setting; torch names it in the log line that tells of the limit.
    settings: Any = torch._dynamo.config  # noqa: SLF001
    # Never below what somebody else has set.
    settings.recompile_limit = max(settings.recompile_limit, MOST_GRAPHS)
    call = torch.compile(_call, backend=backend)
    for layer in layers:
        changed: Any = layer
        # A partial, not a closure, so that a deep copy calls its own layer.
        changed.forward = partial(_with_any_borders, call, layer.forward)
    log.info("%s layers are compiled at the first step, which takes minutes", len(layers))


def _call(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def _with_any_borders(
    call: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call with `borders` of changing length, at which a program would else be made again."""
    borders = kwargs.get("borders")
    if borders is not None:
        torch._dynamo.maybe_mark_dynamic(borders, 0)  # noqa: SLF001  documented under this name
    return call(forward, *args, **kwargs)


Policy = Literal["none", "selective", "full"]

PRODUCTS = "mm addmm _scaled_mm"
ATTENTIONS = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable"
)
SAVED_OPERATORS: list[Any] = [
    OPERATOR,
    *(getattr(torch.ops.aten, name).default for name in f"{PRODUCTS} {ATTENTIONS}".split()),
]
"""Results that `selective` keeps. Source: torchtitan's list of saved operators, with every product of a weight."""


def decoder_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """Return the layers of a Llama-like model, first to last."""
    layers = getattr(model.base_model, "layers", None)
    if isinstance(layers, nn.ModuleDict):  # those of one pipeline stage, by their numbers
        layers = nn.ModuleList(layers.values())
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise DataError(
            f"base.model: a {model.config.model_type} model has no `layers` whose activations could be made "
            "again; set pretrain.activation_checkpointing to none, or use a Llama-like base.model"
        )
    return list(layers)


def checkpoint_layers(layers: Sequence[nn.Module], policy: Policy) -> None:
    """Let each layer's forward pass store only what `policy` says; parameter names stay.

    The module itself stays too and only its `forward` is replaced, so that hooks, those of a later
    `fully_shard` too, run once around the pair of passes. No random number is restored: layers
    must draw none. A kernel that overwrites a stored result behind autograd's back would find it
    overwritten in the second pass.
    """
    if policy == "none":
        return
    selective = {"context_fn": partial(create_selective_checkpoint_contexts, SAVED_OPERATORS)}
    for layer in layers:
        changed: Any = layer
        # A partial of the bound method, not a closure, so that a deep copy calls its own layer.
        changed.forward = partial(_twice, layer.forward, selective if policy == "selective" else {})


def _twice(forward: Any, contexts: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    # `checkpoint` called from a frame that torch.compile looks into; torch's own it leaves as they are.
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **contexts, **kwargs)


class FirstKeys(KVSharingDict):  # type: ignore[misc]  # transformers leaves it untyped
    """Keys and values of layers that others read. It ignores those of a second forward pass.

    Activation checkpointing would store them here with all that they were made of, until the step's end: 8 % of a step's
    memory for 12 layers of Gemma 4 31B on fake tensors.
    """

    def __setitem__(self, kind: str, states: tuple[torch.Tensor, ...]) -> None:
        """Store the first."""
        self.data.setdefault(kind, states)


def keep_first_keys(model: PreTrainedModel) -> None:
    """Let a model whose layers read the keys of others store them in `FirstKeys` where it learns."""
    if hasattr(model.config, "num_kv_shared_layers"):
        model.base_model.register_forward_pre_hook(_with_first_keys, with_kwargs=True)


def _with_first_keys(_: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, keywords | ({"shared_kv_states": FirstKeys()} if torch.is_grad_enabled() else {})
