import pytest
import torch
from torch import nn

from anadil.errors import PreflightError
from anadil.model import loss as loss_module
from anadil.model.loss import (
    CHUNK_TOKENS,
    HAS_LIGER,
    IGNORED,
    bf16_loss,
    chunk_tokens,
    chunked_loss,
    multiplies_bf16,
    summed_loss,
    uses_liger,
)


def states_and_table(num_tokens: int, *, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Hidden states, output embeddings, labels of which some are left out."""
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, 16).to(dtype).requires_grad_()
    weight = torch.randn(50, 16).to(dtype).requires_grad_()
    labels = torch.randint(0, 50, (num_tokens,))
    labels[:9] = IGNORED
    return hidden, weight, labels


def by_definition(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, z_loss: float
) -> torch.Tensor:
    """The loss of full logits in double precision."""
    logits = nn.functional.linear(hidden.double(), weight.double())
    log_z = logits.logsumexp(1)[labels != IGNORED]
    return nn.functional.cross_entropy(logits, labels, reduction="sum") + z_loss * log_z.square().sum()


@pytest.mark.parametrize("num_tokens", [3, CHUNK_TOKENS, CHUNK_TOKENS + 7])
def test_loss_and_gradients_are_those_of_full_logits(num_tokens: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(2, num_tokens, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=True)
    labels = torch.randint(0, 50, (2, num_tokens))
    labels[0, :2] = IGNORED
    logits = nn.functional.linear(hidden, weight).reshape(-1, 50)
    expected = nn.functional.cross_entropy(logits, labels.reshape(-1), reduction="sum")
    gradients = torch.autograd.grad(expected, [hidden, weight])

    loss = summed_loss(hidden, weight, labels)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_no_labels_give_zero_and_not_nan() -> None:
    labels = torch.full((1, 4), IGNORED)

    assert summed_loss(torch.randn(1, 4, 8), torch.randn(50, 8), labels).item() == 0


def test_the_loss_of_bf16_states_is_fp32() -> None:
    hidden = torch.randn(1, 300, 8).bfloat16()

    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_loss(hidden, torch.randn(50, 8), torch.zeros(1, 300, dtype=torch.long))

    assert loss.dtype == torch.float32


def test_the_bf16_loss_is_that_of_fp32_within_the_rounding_of_its_inputs() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3 * CHUNK_TOKENS, 16).bfloat16().requires_grad_()
    weight = torch.randn(50, 16).bfloat16().requires_grad_()
    labels = torch.randint(0, 50, (3 * CHUNK_TOKENS,))
    labels[:9] = IGNORED
    expected = summed_loss(hidden[None], weight, labels[None])
    gradients = torch.autograd.grad(expected, [hidden, weight])

    loss = bf16_loss(hidden, weight, labels)

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-4)
    for ours, theirs in zip(torch.autograd.grad(loss, [hidden, weight]), gradients, strict=True):
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_kernels_follow_the_device_unless_torch_is_asked_for() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")

    chosen = [uses_liger("auto", cpu), uses_liger("torch", cpu), uses_liger("torch", gpu)]

    assert chosen == [False, False, False]
    assert uses_liger("auto", gpu) == HAS_LIGER


def test_liger_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "HAS_LIGER", False)

    with pytest.raises(PreflightError, match="liger-kernel is not installed; pip install liger-kernel"):
        uses_liger("liger", torch.device("cuda"))


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("num_tokens", [11, CHUNK_TOKENS, 2 * CHUNK_TOKENS + 7])
def test_chunks_give_loss_and_gradients_of_the_definition(num_tokens: int, z_loss: float) -> None:
    hidden, weight, labels = states_and_table(num_tokens)
    expected = by_definition(hidden, weight, labels, z_loss)
    gradients = torch.autograd.grad(expected / 7, [hidden, weight])

    loss = chunked_loss(hidden, weight, labels, z_loss=z_loss)

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss / 7, [hidden, weight]), gradients, strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


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


def test_a_z_loss_without_gradients_is_that_with_them() -> None:
    hidden, weight, labels = states_and_table(20)

    with torch.no_grad():
        loss = summed_loss(hidden, weight, labels, z_loss=0.1)

    assert loss == summed_loss(hidden, weight, labels, z_loss=0.1)


def test_bf16_products_are_made_where_the_machine_has_them() -> None:
    hidden, weight, labels = states_and_table(700)
    expected = by_definition(hidden, weight, labels, 0)

    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_loss(hidden, weight, labels)

    assert multiplies_bf16(torch.device("cuda"))
    rel = 5e-4 if multiplies_bf16(torch.device("cpu")) else 1e-6
    assert loss.item() == pytest.approx(expected.item(), rel=rel)


def test_gradients_are_given_once() -> None:
    hidden, weight, labels = states_and_table(20)
    loss = chunked_loss(hidden, weight, labels)
    torch.autograd.grad(loss, hidden, retain_graph=True)

    with pytest.raises(AssertionError, match="scaled in place by an earlier backward pass"):
        torch.autograd.grad(loss, hidden)


@pytest.mark.parametrize(
    ("vocabulary", "tokens"), [(300, 512), (65_536, 512), (100_000, 256), (128_256, 256), (10**9, 1)]
)
def test_a_larger_vocabulary_has_smaller_chunks_on_a_cpu(vocabulary: int, tokens: int) -> None:
    assert chunk_tokens(torch.empty(1, 1).expand(vocabulary, 1)) == tokens
    assert chunk_tokens(torch.empty(vocabulary, 1, device="meta")) == CHUNK_TOKENS


def test_no_tokens_have_no_loss() -> None:
    weight = torch.randn(50, 8, requires_grad=True)
    loss = summed_loss(torch.randn(0, 4, 8), weight, torch.zeros(0, 4, dtype=torch.long), z_loss=0.1)

    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.item() == 0
    assert weight.grad is not None
    assert not weight.grad.any()
