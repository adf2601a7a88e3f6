"""A Llama spread over devices: FSDP and tensor parallelism as torch offers them.

The plans follow torchtitan's for Llama 3: matrix products split by columns, then by rows; with
them norms and hidden states split by tokens (sequence parallel) and logits by the vocabulary.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from anadil.model.gather_ahead import gather_ahead
from anadil.plan.layout import Layout, Work


def mesh_of(layout: Layout) -> DeviceMesh | None:
    """Devices of one pipeline stage by replica, shard and tensor; None for a single one."""
    degrees = {"replicate": layout.replicas, "shard": layout.shard, "tensor": layout.tensor}
    sizes = {name: degree for name, degree in degrees.items() if degree > 1}
    if not sizes:
        return None
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def shard(model: Any, layout: Layout, work: Work, mesh: DeviceMesh | None) -> None:
    """Spread a model with `layers`, and where it has them `embed_tokens`, `norm` and `lm_head`."""
    if mesh is None:
        return
    if layout.tensor > 1:
        _split_matrices(model, mesh["tensor"])
    if layout.shard == 1:
        return
    names = ("replicate", "shard") if layout.replicas > 1 else ("shard",)
    policy = MixedPrecisionPolicy()
    if work.state == "fp32" and work.compute == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with _real_mesh():
        for layer in model.layers:
            fully_shard(layer, mesh=mesh[names], mp_policy=policy, reshard_after_forward=layout.reshard)
        fully_shard(model, mesh=mesh[names], mp_policy=policy)
        gather_ahead(model.layers, layout.prefetch)


def _split_matrices(model: Any, mesh: DeviceMesh) -> None:
    ends = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if hasattr(model, name)})
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "input_layernorm": SequenceParallel(),
                "self_attn": PrepareModuleInput(
                    input_kwarg_layouts={"hidden_states": Shard(1)},
                    desired_input_kwarg_layouts={"hidden_states": Replicate()},
                ),
                "self_attn.q_proj": ColwiseParallel(),
                "self_attn.k_proj": ColwiseParallel(),
                "self_attn.v_proj": ColwiseParallel(),
                "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
                "post_attention_layernorm": SequenceParallel(),
                "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "mlp.gate_proj": ColwiseParallel(),
                "mlp.up_proj": ColwiseParallel(),
                "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


class _real_mesh:  # noqa: N801  used as a function
    """Inside, meshes that torch puts together hold real ranks, also among fake tensors."""

    def __enter__(self) -> None:
        self._before = DeviceMesh._concatenate  # noqa: SLF001  no public way
        before = self._before

        def concatenated(meshes: Any) -> DeviceMesh:
            with unset_fake_temporarily():
                return before(meshes)

        DeviceMesh._concatenate = staticmethod(concatenated)  # type: ignore[method-assign,assignment]  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        DeviceMesh._concatenate = staticmethod(self._before)  # type: ignore[method-assign]  # noqa: SLF001
