"""A copy of the parameters on each process: gradients are summed while the backward pass runs."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor


class Replicas:
    """Sums gradients over the processes that hold the same parameters, which must do the same passes.

    A gradient is sent the moment it is whole, in the last backward pass of a step.
    """

    # Tried: torch's composable `replicate` on FSDP, and `fully_shard` with one shard (torch 2.13). Losses and
    # gradients are the same to the bit, but each holds a second copy of the parameters while it trains and
    # takes a quarter more of the CPU's time for a step.
    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Any) -> None:
        """Watch the gradients of `parameters`, which `group` sums; None where there is one process."""
        self._group = group
        self._armed = False
        self._under_way: list[Any] = []
        self._parameters = list(parameters)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._send)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
            if group is not None
        ]

    def arm(self) -> None:
        """Note that the backward pass that begins now is the last of this step."""
        self._armed = True

    def send(self) -> None:
        """Sum all gradients now, after passes of which none was known to be a parameter's last."""
        self._armed = self._group is not None
        for parameter in self._parameters:
            self._send(parameter)

    def wait(self) -> None:
        """Return when every gradient is the sum over the group."""
        self._armed = False
        for work in self._under_way:
            work.wait()
        self._under_way.clear()

    def remove(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def _send(self, parameter: torch.Tensor) -> None:
        if not self._armed or parameter.grad is None:
            return
        if isinstance(parameter.grad, DTensor):
            # Tensor parallelism shares tokens: each process holds a part of a norm's summed gradient.
            assert isinstance(parameter, DTensor)
            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        local = local_part(parameter.grad)
        # Asynchronous: the network works beside the rest of the backward pass.
        self._under_way.append(dist.all_reduce(local, group=self._group, async_op=True))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, sharing its memory."""
    plain = tensor.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain
