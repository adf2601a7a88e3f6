from dataclasses import replace

import pytest
import torch
from torch import distributed as dist
from torch import nn

from anadil.model import loss as loss_module
from anadil.model.loss import CHUNK_TOKENS, IGNORED, chunked_loss, summed_loss, summed_loss_of_rows
from anadil.model.teacher import NONE, Teacher
from tests.kit.ranks import in_ranks

TOKENS, WIDTH, ROWS, K = CHUNK_TOKENS // 2 + 8, 16, 52, 6
Z_LOSS, WEIGHT = 1e-3, 0.7


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Teacher]:
    """States of two sequences, a head, labels, and a teacher of a part of the positions, whose ids are not all there."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, TOKENS, WIDTH, generator=random)
    weight = torch.randn(ROWS, WIDTH, generator=random)
    labels = torch.randint(0, ROWS, (2, TOKENS), generator=random)
    labels[0, :3] = labels[1, -1] = IGNORED
    chances = torch.randn(2, TOKENS, ROWS, generator=random).mul(3).softmax(-1)
    likeliest = chances.topk(K)
    ids = torch.where(torch.rand(2, TOKENS, K, generator=random) < 0.2, NONE, likeliest.indices)
    ids[0, 30:90] = NONE
    known = likeliest.values * (ids != NONE)
    logs = torch.cat([known, 1 - known.sum(-1, keepdim=True)], -1).log()
    return hidden, weight, labels, Teacher(ids=ids, logs=logs.half(), weight=WEIGHT)


def by_definition(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, teacher: Teacher, cap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the divergence of full logits in double precision."""
    logits = nn.functional.linear(hidden.double(), weight.double()).flatten(0, 1)
    logits = cap * (logits / cap).tanh() if cap else logits
    labels, ids = labels.flatten(), teacher.ids.flatten(0, 1)
    scored = labels != IGNORED
    entropy = nn.functional.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
    squares = logits.logsumexp(1).square()[scored].sum()
    q = logits.softmax(1)
    known = q.gather(1, ids.clamp_min(0)) * (ids != NONE)
    q = torch.cat([known, 1 - known.sum(1, keepdim=True)], 1)
    p = teacher.logs.flatten(0, 1).double().softmax(1)
    ratios = torch.where(p > 0, p / torch.where(p > 0, q, 1), 1).log()
    divergence = (p * ratios)[scored].sum()
    return entropy + Z_LOSS * squares + teacher.weight * divergence, divergence


def close(ours: torch.Tensor | None, theirs: torch.Tensor | None, relative: float = 1e-6) -> None:
    assert ours is not None
    assert theirs is not None
    assert (ours.double() - theirs.double()).norm() <= relative * theirs.double().norm()


@pytest.mark.parametrize("cap", [0.0, 4.0])
@pytest.mark.parametrize("rows", [7, ROWS])
def test_chunks_give_loss_gradients_and_divergence_of_the_definition(
    rows: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CPU_BLOCK_ROWS", rows)
    hidden, weight, labels, teacher = example()
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    expected, divergence = by_definition(hidden, weight, labels, teacher, cap)
    gradients = torch.autograd.grad(expected / 7, leaves)
    totals = torch.zeros(2, dtype=torch.float64)

    loss = summed_loss(
        hidden, weight, labels, z_loss=Z_LOSS, cap=cap, teacher=replace(teacher, totals=totals)
    )

    positions = (teacher.ids != NONE).any(-1) & (labels != IGNORED)
    close(loss, expected)
    assert totals[0].item() == pytest.approx(divergence.item(), rel=1e-6)
    assert totals[1].item() == positions.sum()
    for ours, theirs in zip(torch.autograd.grad(loss / 7, leaves), gradients, strict=True):
        close(ours, theirs)


def test_positions_without_a_teacher_change_nothing() -> None:
    hidden, weight, labels, teacher = example()
    nothing = Teacher(ids=torch.full_like(teacher.ids, NONE), logs=torch.full_like(teacher.logs, -torch.inf))
    nothing.logs[..., -1] = 0
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    plain = summed_loss(hidden, weight, labels)
    gradients = torch.autograd.grad(plain, leaves)

    loss = summed_loss(hidden, weight, labels, teacher=nothing)

    assert loss.equal(plain)
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), gradients, strict=True):
        assert ours.equal(theirs)


def test_losses_of_tokens_are_those_without_the_divergence() -> None:
    hidden, weight, labels, teacher = example()
    plain, beside = (torch.zeros(labels.shape) for _ in range(2))
    summed_loss(hidden, weight, labels, token_losses=plain)

    summed_loss(hidden, weight, labels, token_losses=beside, teacher=teacher)

    assert beside.equal(plain)


@pytest.mark.parametrize("gap", [5.0, 40.0, 1e4])
def test_a_model_that_is_sure_of_another_token_than_its_teacher_has_finite_gradients(gap: float) -> None:
    hidden = torch.full((1, 1, 1), gap)
    weight = torch.tensor([[1.0], [0.0], [0.0], [0.0]]).requires_grad_()
    hidden.requires_grad_()
    ids, logs = torch.tensor([[[0, 1]]]), torch.tensor([[[0.01, 0.01, 0.98]]]).log().half()

    loss = summed_loss(hidden, weight, torch.tensor([[0]]), teacher=Teacher(ids=ids, logs=logs))
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert loss.isfinite()
    assert weight.grad is not None
    # It pulls the token of which the model is sure down by q - p, whatever is left for the others.
    sure = torch.softmax(torch.tensor([gap, 0, 0, 0]), 0)[0].item()
    expected = gap * ((sure - 1) + (sure - 0.01))
    assert weight.grad[0].item() == pytest.approx(expected, rel=0.01)


def every_way(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    size = dist.get_world_size()
    rows = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    stretch = slice(rank * TOKENS // size, (rank + 1) * TOKENS // size)
    for cap in (0.0, 4.0):
        hidden, weight, labels, teacher = example()
        states, head = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        expected, divergence = by_definition(states, head, labels, teacher, cap)
        expected.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for tokens in (slice(None), stretch):
            own, own_rows = (part.clone().requires_grad_() for part in (hidden[:, tokens], weight[rows]))
            known = replace(teacher, totals=torch.zeros(2, dtype=torch.float64))
            loss = summed_loss_of_rows(own, own_rows, labels, rows.start, group, Z_LOSS, cap, teacher=known)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

            assert states.grad is not None
            assert head.grad is not None
            assert known.totals is not None
            close(loss, expected)
            close(known.totals[0], divergence)
            close(own.grad, states.grad[:, tokens])
            close(own_rows.grad, head.grad[rows])


@pytest.mark.parametrize("size", [2, 4])
def test_processes_that_share_the_vocabulary_give_loss_and_gradients_of_the_definition(size: int) -> None:
    in_ranks(every_way, size)


def test_sequences_without_a_teacher_go_through_liger_and_the_others_through_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight, labels, teacher = example()
    teacher.ids[0], teacher.logs[0, :, :-1], teacher.logs[0, :, -1] = NONE, -torch.inf, 0
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    expected_each, each = (torch.zeros(labels.shape) for _ in range(2))
    expected = summed_loss(hidden, weight, labels, token_losses=expected_each, teacher=teacher)
    gradients = torch.autograd.grad(expected, leaves)
    given = []

    def liger(
        hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor,
        z_loss: float, cap: float, token_losses: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        given.append(labels)
        return chunked_loss(hidden, weight, labels, z_loss=z_loss, cap=cap, token_losses=token_losses)

    monkeypatch.setattr(loss_module, "uses_liger", lambda kernels, _: kernels != "torch")
    monkeypatch.setattr(loss_module, "_liger_loss", liger)

    loss = summed_loss(hidden, weight, labels, token_losses=each, teacher=teacher)

    assert [len(some) for some in given] == [int((labels[0] != IGNORED).sum())]
    close(loss, expected)
    close(each, expected_each)
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), gradients, strict=True):
        close(ours, theirs)
