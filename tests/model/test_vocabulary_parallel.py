from typing import Any

import torch
from torch import distributed as dist
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anadil.model.loss import CHUNK_TOKENS, IGNORED
from anadil.model.vocabulary_parallel import summed_loss_of_rows
from tests.kit.ranks import in_ranks

TOKENS, WIDTH, ROWS = CHUNK_TOKENS // 2 + 8, 16, 50
Z_LOSS = 1e-3


def example(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states of two sequences, a head and labels, the same in every process."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, TOKENS, WIDTH, generator=random).to(dtype)
    weight = torch.randn(ROWS, WIDTH, generator=random).to(dtype)
    labels = torch.randint(0, ROWS, (2, TOKENS), generator=random)
    labels[0, :3] = IGNORED
    labels[1, -1] = IGNORED
    return hidden, weight, labels


def whole(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss out of all logits."""
    logits = torch.nn.functional.linear(hidden, weight).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED)
    squares = logits.logsumexp(1).square()[labels.flatten() != IGNORED]
    return loss + Z_LOSS * squares.sum()


def close(ours: torch.Tensor | None, theirs: torch.Tensor | None, relative: float = 1e-5) -> None:
    assert ours is not None
    assert theirs is not None
    assert (ours.float() - theirs.float()).norm() <= relative * theirs.float().norm()


def every_way(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    rows = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    stretch = slice(rank * TOKENS // 2, (rank + 1) * TOKENS // 2)
    for dtype, relative in ((torch.float32, 1e-5), (torch.bfloat16, 0.01)):
        hidden, weight, labels = example(dtype)
        states, head = (tensor.float().clone().requires_grad_() for tensor in (hidden, weight))
        expected = whole(states, head, labels)
        (0.5 * expected).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for tokens in (slice(None), stretch):
            own, own_rows = (part.clone().requires_grad_() for part in (hidden[:, tokens], weight[rows]))
            loss = summed_loss_of_rows(own, own_rows, labels, rows.start, group, Z_LOSS)
            (0.5 * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

            each = [torch.zeros(()) for _ in range(2)]
            dist.all_gather(each, loss.detach())
            assert loss.dtype == torch.float32
            assert each[0].equal(each[1])
            close(loss, expected, 1e-6)
            assert states.grad is not None
            assert head.grad is not None
            assert own.grad is not None
            assert own_rows.grad is not None
            close(own.grad, states.grad[:, tokens], relative)
            close(own_rows.grad, head.grad[rows], relative)
            assert own.grad.dtype == own_rows.grad.dtype == dtype


def test_loss_and_gradients_are_those_of_one_process_with_whole_and_shared_sequences() -> None:
    in_ranks(every_way, 2)


def memory_and_exchanges(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    hidden, weight, labels = example()
    rows = weight[rank * ROWS // 2 :][: ROWS // 2].requires_grad_()
    hidden.requires_grad_()
    made: list[torch.Size] = []
    exchanged: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace == "c10d":
                exchanged.append(func.__name__)
            made.extend(t.shape for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
            return result

    with Watch():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        summed_loss_of_rows(hidden, rows, labels, rank * ROWS // 2, group)

    largest = max(shape.numel() for shape in made if ROWS // 2 in shape and WIDTH not in shape)
    assert largest == CHUNK_TOKENS * ROWS // 2
    chunks = -(-labels.numel() // CHUNK_TOKENS)
    assert sorted(exchanged) == ["_allgather_base_.default"] * chunks + ["allreduce_.default"]


def nothing_to_learn(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    hidden, weight, labels = example()
    rows = weight[rank * ROWS // 2 :][: ROWS // 2]

    ignored = summed_loss_of_rows(
        hidden.requires_grad_(), rows, torch.full_like(labels, IGNORED), rank * ROWS // 2, group, Z_LOSS
    )
    ignored.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.no_grad():
        unseen = summed_loss_of_rows(hidden, rows, labels, rank * ROWS // 2, group, Z_LOSS)

    assert ignored.item() == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert not unseen.requires_grad
    close(unseen, whole(hidden, weight, labels), 1e-6)


def rest(rank: int) -> None:
    memory_and_exchanges(rank)
    nothing_to_learn(rank)


def test_a_chunk_of_logits_stands_in_memory_and_costs_one_exchange_and_no_labels_give_zero() -> None:
    in_ranks(rest, 2)
