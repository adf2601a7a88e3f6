"""The degrees of parallelism on the ranks.

Tensor parallelism is innermost, so that it stays within a node, then context, data, and pipeline
stages outermost. Data and context together are cut once more, into replicas of groups that share
parameters.
"""

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from anadil.core.errors import PreflightError
from anadil.model.process_group import Group
from anadil.recipe.pretrain import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This process's place among all, and the groups that it belongs to."""

    data: int = 1
    """Groups that work on sequences of their own."""
    replicas: int = 1
    """Copies of the parameters, counted by their shards: `data * context / shard`."""
    shard: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    data_rank: int = 0
    context_rank: int = 0
    tensor_rank: int = 0
    pipeline_rank: int = 0
    parameters: DeviceMesh | None = None
    """Dimensions pipeline, replicate, shard, tensor; None where there is one process."""
    batches: DeviceMesh | None = None
    """Dimensions pipeline, data, context, tensor; None where there is one process."""

    @property
    def is_alone(self) -> bool:
        """True if one process does everything."""
        return self.parameters is None

    @property
    def shares_model(self) -> bool:
        """True if a process holds less than the whole model, or works on less than whole sequences."""
        return self.shard * self.context * self.tensor * self.pipeline > 1


def mesh_of(degrees: Parallelism, group: Group, device: str) -> Mesh:
    """Place the processes by the degrees, on `cpu` or `cuda`."""
    if group.size == 1 and degrees == Parallelism():
        return Mesh()
    layers = degrees.tensor * degrees.pipeline
    data, rest = divmod(group.size, layers * degrees.context)
    if rest or not data:
        raise PreflightError(
            f"pretrain.parallelism: tensor {degrees.tensor} x context {degrees.context} x pipeline "
            f"{degrees.pipeline} need a multiple of {layers * degrees.context} processes, and there are "
            f"{group.size}; change the degrees, or cluster.nodes and cluster.processes_per_node"
        )
    share = data * degrees.context
    if share % degrees.shard or (degrees.shard > 1 and degrees.shard % degrees.context):
        raise PreflightError(
            f"pretrain.parallelism.shard: {degrees.shard} does not divide the {share} processes that share a "
            f"batch into groups of whole sequences (context {degrees.context}); choose a multiple of "
            f"{degrees.context} that divides {share}, or 1 for a copy each"
        )
    replicas = share // degrees.shard
    if group.size == 1:
        return Mesh()

    def mesh_with(**sizes: int) -> DeviceMesh:
        return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    order = group.rank // degrees.tensor
    return Mesh(
        data=data,
        replicas=replicas,
        shard=degrees.shard,
        context=degrees.context,
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        data_rank=order // degrees.context % data,
        context_rank=order % degrees.context,
        tensor_rank=group.rank % degrees.tensor,
        pipeline_rank=order // share,
        parameters=mesh_with(
            pipeline=degrees.pipeline, replicate=replicas, shard=degrees.shard, tensor=degrees.tensor
        ),
        batches=mesh_with(
            pipeline=degrees.pipeline, data=data, context=degrees.context, tensor=degrees.tensor
        ),
    )
