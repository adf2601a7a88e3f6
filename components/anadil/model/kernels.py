"""Settings of a GPU's arithmetic, and Liger's kernels in a model."""

import logging
from typing import Any

import torch

from anadil.core.errors import PreflightError
from anadil.model.attention_operator import check_gpu
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

    Args:
        activation_checkpointing: `pretrain.activation_checkpointing`.
        compiled: `pretrain.compile`.
        config: Config of the base model; None stands for a Llama without biases.
        kernels: `pretrain.kernels`.

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
