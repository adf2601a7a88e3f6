import pytest
import torch
from torch import nn

from anadil.errors import PreflightError
from anadil.model import loss as loss_module
from anadil.model.loss import CHUNK_TOKENS, HAS_LIGER, IGNORED, bf16_loss, summed_loss, uses_liger


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
