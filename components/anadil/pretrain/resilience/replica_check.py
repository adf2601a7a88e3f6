"""Comparison of the copies of the parameters, bit by bit.

Copies that get the same gradients stay equal in every bit. A copy that differs was computed by a
broken device, which no loss or norm shows at once.
"""

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import distributed as dist

from anadil.core.errors import IntegrityError
from anadil.model.process_group import Group
from anadil.pretrain.callback import Callback
from anadil.pretrain.parallel.fsdp import local_part
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.trainer import Step

COLUMNS = 4_096
"""Numbers that are added up side by side, each with a weight of its own, so that a swap shows too."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by bytes of an element."""


class ReplicaCheck(Callback):
    """Compares the copies of the parameters every `pretrain.faults.replica_check_every` steps."""

    def __init__(self, invalidate_after: Callable[[int], None]) -> None:
        """Call `invalidate_after` with the last step whose copies were equal, where they differ now."""
        self._invalidate_after = invalidate_after

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Compare, where it is due."""
        run = self.training
        done, every = run.state.step, run.job.recipe.pretrain.faults.replica_check_every
        if not every or done % every:
            return
        try:
            check_replicas(
                run.trainer.tensors(moments=False), peers_of(run.trainer.net.mesh), run.group, step=done
            )
        except IntegrityError:
            # A start from a later checkpoint would give all replicas the same wrong weights.
            self._invalidate_after(done - every)
            raise


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return an int64 on the tensor's device that changes with any one bit.

    Words of 8 bytes are read as integers and summed modulo 2**64 in columns. The columns are summed
    with odd weights: an odd weight loses no difference. Flips of several bits may cancel by chance.
    """
    flat = local_part(tensor).contiguous().view(-1)
    if flat.data_ptr() % 8 or flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()  # words of 8 bytes begin at a multiple of 8
    weights = _weights(flat.device)
    # Words, not elements: sums of int64 run at the speed of memory, those of int32 as int64 do not.
    in_words = flat.numel() // (8 // flat.element_size()) * (8 // flat.element_size())
    words = flat[:in_words].view(torch.int64)
    whole = words.numel() // COLUMNS * COLUMNS
    columns = words[:whole].view(-1, COLUMNS).sum(0)
    rest = words[whole:]
    last = flat[in_words:].view(INTEGERS[flat.element_size()]).to(torch.int64)
    return sum(
        ((part * weights[: len(part)]).sum() for part in (columns, rest, last)),
        torch.tensor(flat.numel(), device=flat.device),
    )


@lru_cache(maxsize=2)
def _weights(device: torch.device) -> torch.Tensor:
    numbers = torch.arange(1, COLUMNS + 1, dtype=torch.int64, device=device)
    # Knuth's multiplicative hash spreads them over 64 bits; the last bit makes them odd.
    return (numbers * -7046029254386353131) | 1


def peers_of(mesh: Mesh) -> list[list[int]]:
    """List the ranks that hold the same parameters, group by group; none where no two do."""
    if mesh.parameters is None or mesh.replicas == 1:
        return []
    # Dimensions pipeline, replicate, shard, tensor.
    ranks: torch.Tensor = mesh.parameters.mesh
    groups: list[list[int]] = ranks.movedim(1, -1).reshape(-1, mesh.replicas).tolist()
    return groups


def check_replicas(
    tensors: Mapping[str, torch.Tensor], peers: Sequence[Sequence[int]], group: Group, *, step: int
) -> None:
    """Compare all copies; every process calls it with its tensors and the groups of `peers_of`."""
    if not peers or group.host is None:
        return
    each = torch.stack([checksum(tensor) for tensor in tensors.values()])
    total = (each * _weights(each.device)[: len(each)]).sum() if len(each) <= COLUMNS else each.sum()
    mine = total.reshape(1).cpu()  # the only number that leaves the device
    all_totals = [torch.zeros_like(mine) for _ in range(group.size)]
    dist.all_gather(all_totals, mine, group=group.host)
    totals = [int(one.item()) for one in all_totals]
    if all(len({totals[rank] for rank in ranks}) == 1 for ranks in peers):
        return
    details: list[tuple[str, dict[str, int]]] = [("", {})] * group.size
    detail = (socket.gethostname(), dict(zip(tensors, each.tolist(), strict=True)))
    # Names and sums travel only when copies differ.
    dist.all_gather_object(details, detail, group=group.host)
    faults = [_fault(ranks, totals, details) for ranks in peers if len({totals[rank] for rank in ranks}) > 1]
    raise IntegrityError(
        f"silent corruption: after step {step} {'; '.join(faults)}. Take that node out of service (its GPU or "
        "memory is broken) and run the same command again; it resumes from a checkpoint that is older than the last "
        "comparison that found all copies equal"
    )


def _fault(ranks: Sequence[int], totals: Sequence[int], details: Sequence[tuple[str, dict[str, int]]]) -> str:
    """Describe how copies differ: the minority, or all of them where there is no majority."""
    usual, number = Counter(totals[rank] for rank in ranks).most_common(1)[0]
    has_majority = 2 * number > len(ranks)
    # Without a majority nobody knows which copy is right.
    odd = [rank for rank in ranks if totals[rank] != usual or not has_majority]
    sums = [details[rank][1] for rank in ranks]
    names = [name for name in sums[0] if len({one.get(name) for one in sums}) > 1]
    at = f"at {names[0]} ({len(names)} of {len(sums[0])} tensors)"
    shown = ", ".join(f"rank {rank} on {details[rank][0]}" for rank in odd)
    if has_majority:
        return f"the parameters of {shown} differ from the {number} other copies {at}"
    return f"the parameters of {shown} differ {at}, and none of them has a majority"
