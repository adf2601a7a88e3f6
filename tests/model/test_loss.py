from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anadil.model import loss as loss_module
from anadil.model.loss import (
    CHUNK_TOKENS,
    HAS_LIGER,
    IGNORED,
    chunk_tokens,
    chunked_loss,
    has_fast_bf16,
    summed_loss,
    summed_loss_of_rows,
    uses_liger,
)
from tests.kit.marks import gpu
from tests.kit.ranks import in_ranks


def states_and_table(num_tokens: int, *, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Hidden states, output embeddings, labels of which some are left out."""
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, 16).to(dtype).requires_grad_()
    weight = torch.randn(50, 16).to(dtype).requires_grad_()
    labels = torch.randint(0, 50, (num_tokens,))
    labels[:9] = IGNORED
    return hidden, weight, labels


def by_definition(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, z_loss: float, cap: float = 0.0
) -> torch.Tensor:
    """The loss of full logits in double precision."""
    logits = nn.functional.linear(hidden.double(), weight.double())
    logits = cap * (logits / cap).tanh() if cap else logits
    log_z = logits.logsumexp(1)[labels != IGNORED]
    return nn.functional.cross_entropy(logits, labels, reduction="sum") + z_loss * log_z.square().sum()


def test_kernels_follow_the_device_unless_torch_is_asked_for() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")

    chosen = [uses_liger("auto", cpu), uses_liger("torch", cpu), uses_liger("torch", gpu)]

    assert chosen == [False, False, False]
    assert uses_liger("auto", gpu) == HAS_LIGER


@pytest.mark.parametrize(("z_loss", "cap"), [(0.0, 0.0), (1e-4, 0.0), (0.1, 0.0), (0.1, 3.0), (0.0, 30.0)])
@pytest.mark.parametrize("num_tokens", [11, CHUNK_TOKENS, 2 * CHUNK_TOKENS + 7])
def test_chunks_give_loss_and_gradients_of_the_definition(num_tokens: int, z_loss: float, cap: float) -> None:
    hidden, weight, labels = states_and_table(num_tokens)
    expected = by_definition(hidden, weight, labels, z_loss, cap)
    gradients = torch.autograd.grad(expected / 7, [hidden, weight])

    loss = chunked_loss(hidden, weight, labels, z_loss=z_loss, cap=cap)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss / 7, [hidden, weight]), gradients, strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16, 49, 50])
def test_blocks_of_the_vocabulary_give_what_the_whole_gives(
    rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, labels = states_and_table(CHUNK_TOKENS + 7)
    whole = chunked_loss(hidden, weight, labels, dtype=dtype, z_loss=0.1)
    gradients = torch.autograd.grad(whole, [hidden, weight])
    monkeypatch.setattr(loss_module, "CPU_BLOCK_ROWS", rows)

    loss = chunked_loss(hidden, weight, labels, dtype=dtype, z_loss=0.1)
    with torch.no_grad():
        alone = chunked_loss(hidden, weight, labels, dtype=dtype, z_loss=0.1)

    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    assert alone == loss
    rel = 1e-5 if dtype == torch.float32 else 0.01
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert (ours - theirs).abs().max() < rel * theirs.abs().max()


def test_a_label_whose_whole_block_is_unlikely_has_its_loss_and_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_module, "CPU_BLOCK_ROWS", 10)
    hidden, weight, _ = states_and_table(1)
    with torch.no_grad():
        weight[:10] -= 100 * hidden  # chances of the first block are too small for FP32
    labels = torch.tensor([3])
    expected = by_definition(hidden, weight, labels, 0)
    gradients = torch.autograd.grad(expected, [hidden, weight])

    loss = chunked_loss(hidden, weight, labels)

    assert loss.item() > 500
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_tokens_without_a_label_cost_no_matrix_product() -> None:
    hidden, weight, labels = states_and_table(20)  # the first nine have none
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiled:
        summed_loss(hidden, weight, labels)

    shapes = [event.input_shapes for event in profiled.events() or () if event.name == "aten::mm"]

    assert [shape[0] for shape in shapes] == [[11, 16]]


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_chunks_in_bf16_have_an_exact_loss_and_gradients_within_its_rounding(z_loss: float) -> None:
    hidden, weight, labels = states_and_table(2 * CHUNK_TOKENS + 7, dtype=torch.bfloat16)
    expected = by_definition(hidden, weight, labels, z_loss)
    gradients = torch.autograd.grad(expected, [hidden, weight])

    loss = chunked_loss(hidden, weight, labels, dtype=torch.bfloat16, z_loss=z_loss)

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=5e-4)
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.double() - theirs.double()).norm() < 0.01 * theirs.double().norm()


def test_gradients_of_fp32_parameters_stay_fp32_under_bf16_products() -> None:
    hidden, weight, labels = states_and_table(20)

    loss = chunked_loss(hidden, weight, labels, dtype=torch.bfloat16)

    assert {one.dtype for one in torch.autograd.grad(loss, [hidden, weight])} == {torch.float32}


def test_logits_far_beyond_the_range_of_an_exponential_give_the_right_loss() -> None:
    hidden, weight, labels = states_and_table(20)
    expected = by_definition(400 * hidden, weight, labels, 1e-4)

    loss = chunked_loss(400 * hidden, weight, labels, z_loss=1e-4)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("learns", "products"), [("hidden", 2), ("weight", 2), ("both", 3)])
def test_what_is_frozen_costs_no_matrix_product(learns: str, products: int, z_loss: float) -> None:
    hidden, weight, labels = states_and_table(20)
    hidden.requires_grad_(learns != "weight")
    weight.requires_grad_(learns != "hidden")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        summed_loss(hidden, weight, labels, z_loss=z_loss).backward()  # type: ignore[no-untyped-call]

    seen = sum(event.name in {"aten::mm", "aten::addmm", "aten::addmm_"} for event in profiled.events() or ())

    assert seen == products
    assert (hidden.grad is None, weight.grad is None) == (learns == "weight", learns == "hidden")


def test_bf16_products_are_made_where_the_machine_has_them() -> None:
    hidden, weight, labels = states_and_table(700)
    expected = by_definition(hidden, weight, labels, 0)

    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_loss(hidden, weight, labels)

    assert loss.dtype == torch.float32
    assert has_fast_bf16(torch.device("cuda"))
    rel = 5e-4 if has_fast_bf16(torch.device("cpu")) else 1e-6
    assert loss.item() == pytest.approx(expected.item(), rel=rel)


def test_gradients_are_given_once() -> None:
    hidden, weight, labels = states_and_table(20)
    loss = chunked_loss(hidden, weight, labels)
    torch.autograd.grad(loss, hidden, retain_graph=True)

    with pytest.raises(AssertionError, match="scaled in place by an earlier backward pass"):
        torch.autograd.grad(loss, hidden)


@pytest.mark.parametrize(
    ("vocabulary", "tokens"), [(300, 512), (65_536, 512), (128_256, 512), (256_000, 256), (10**9, 1)]
)
def test_a_larger_vocabulary_has_smaller_chunks_on_a_cpu(vocabulary: int, tokens: int) -> None:
    assert chunk_tokens(torch.empty(1, 1).expand(vocabulary, 1)) == tokens
    assert chunk_tokens(torch.empty(vocabulary, 1, device="meta")) == CHUNK_TOKENS


@pytest.mark.parametrize("num_tokens", [0, 4])
def test_no_tokens_or_labels_have_no_loss_and_no_gradient(num_tokens: int) -> None:
    weight = torch.randn(50, 8, requires_grad=True)
    labels = torch.full((1, num_tokens), IGNORED)
    loss = summed_loss(torch.randn(1, num_tokens, 8), weight, labels, z_loss=0.1)

    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()


@gpu()
@pytest.mark.parametrize("kernels", ["torch", "liger"])
@pytest.mark.parametrize("num_tokens", [11, CHUNK_TOKENS + 7])
def test_a_gpu_gives_loss_and_gradients_of_the_definition(num_tokens: int, kernels: str) -> None:
    hidden, weight, labels = (
        each.detach().cuda().requires_grad_(each.requires_grad) for each in states_and_table(num_tokens)
    )
    expected = by_definition(hidden, weight, labels, z_loss=1e-4)
    gradients = torch.autograd.grad(expected, [hidden, weight])

    token_losses = torch.zeros(num_tokens, device="cuda")
    for given in (None, token_losses):
        loss = summed_loss(hidden, weight, labels, kernels=kernels, z_loss=1e-4, token_losses=given)

        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
            assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
    assert token_losses.sum().item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("ignored", [0, 9])
def test_losses_of_tokens_add_up_and_change_neither_loss_nor_gradients(ignored: int) -> None:
    hidden, weight, _ = states_and_table(CHUNK_TOKENS + 8)
    labels = torch.randint(0, 50, (2, (CHUNK_TOKENS + 8) // 2))
    labels[0, 3 : 3 + ignored] = IGNORED
    rows = hidden.view(2, -1, 16)
    plain = summed_loss(rows, weight, labels, z_loss=0.1)
    gradients = torch.autograd.grad(plain, [hidden, weight])
    token_losses = torch.zeros(labels.shape)

    loss = summed_loss(rows, weight, labels, z_loss=0.1, token_losses=token_losses)

    assert torch.equal(loss, plain)
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert torch.equal(ours, theirs)
    assert not token_losses[labels == IGNORED].any()
    for row, own, scored in zip(rows, labels, token_losses, strict=True):
        assert scored.sum().item() == pytest.approx(by_definition(row, weight, own, 0.1).item(), rel=1e-5)


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


def whole(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, cap: float = 0.0) -> torch.Tensor:
    """The loss out of all logits."""
    logits = torch.nn.functional.linear(hidden, weight).flatten(0, 1)
    logits = cap * (logits / cap).tanh() if cap else logits
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
    for dtype, relative, cap in (
        (torch.float32, 1e-5, 0.0),
        (torch.float32, 1e-5, 4.0),
        (torch.bfloat16, 0.01, 0.0),
    ):
        hidden, weight, labels = example(dtype)
        states, head = (tensor.float().clone().requires_grad_() for tensor in (hidden, weight))
        expected = whole(states, head, labels, cap)
        (0.5 * expected).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for tokens in (slice(None), stretch):
            own, own_rows = (part.clone().requires_grad_() for part in (hidden[:, tokens], weight[rows]))
            loss = summed_loss_of_rows(own, own_rows, labels, rows.start, group, Z_LOSS, cap)
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
