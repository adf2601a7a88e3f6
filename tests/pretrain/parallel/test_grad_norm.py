import math
from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers import LlamaForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.attention import use_packed_attention
from anadil.model.kernels import Policy, checkpoint_layers, decoder_layers
from anadil.model.loss import IGNORED, summed_loss
from anadil.model.process_group import Group
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.parallel.context import check_context, slice_of, use_context_attention
from anadil.pretrain.parallel.fsdp import clip_, squared_norm
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.mesh import Mesh, mesh_of
from anadil.recipe.pretrain import Parallelism
from tests.kit.llama import small_llama
from tests.kit.marks import matrix
from tests.kit.ranks import in_ranks

SHAPES = ((8, 6), (5, 4), (7,), (3, 2), (4, 4))


def gradients(seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random) for shape in SHAPES]


def clipped_norm(parameters: Iterable[nn.Parameter], max_norm: float, mesh: Mesh) -> float:
    """Norm before gradients are clipped, as a step of the trainer clips them."""
    gradients, square = squared_norm(parameters, mesh)
    if not mesh.is_alone:
        dist.all_reduce(square)
    norm = math.sqrt(square.item())
    clip_(gradients, norm, max_norm)
    return norm


def whole(seeds: range, max_norm: float) -> tuple[float, list[torch.Tensor]]:
    """Norm and clipped gradients as torch computes them in one process."""
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for seed in seeds for gradient in gradients(seed)]
    for parameter, gradient in zip(parameters, [g for seed in seeds for g in gradients(seed)], strict=True):
        parameter.grad = gradient
    norm = float(nn.utils.clip_grad_norm_(parameters, max_norm))
    return norm, [parameter.grad for parameter in parameters if parameter.grad is not None]


def spread(mesh: Mesh, seed: int) -> list[nn.Parameter]:
    """The gradients of a stage in every layout that training makes."""
    assert mesh.parameters is not None
    shards, tensors = mesh.parameters["replicate", "shard"], mesh.parameters["tensor"]
    layouts = (
        (shards, [Replicate(), Shard(0)]),
        (tensors, [Shard(1)]),
        (mesh.parameters["shard", "tensor"], [Shard(0), Replicate()]),
        None,
        (mesh.parameters["shard", "tensor"], [Shard(1), Shard(0)]),
    )
    made = []
    for gradient, layout in zip(gradients(seed), layouts, strict=True):
        laid = gradient if layout is None else distribute_tensor(gradient, *layout, src_data_rank=None)
        parameter = nn.Parameter(torch.zeros_like(laid))
        parameter.grad = laid
        made.append(parameter)
    # A parameter that did not take part.
    return [*made, nn.Parameter(torch.zeros(3))]


def every_layout(rank: int) -> None:
    for degrees in (
        Parallelism(pipeline=2, shard=2),
        Parallelism(tensor=2, shard=2),
        Parallelism(tensor=2, pipeline=2),
        Parallelism(shard=2),
    ):
        mesh = mesh_of(degrees, Group(rank=rank, size=4), "cpu")
        for max_norm in (1.0, 1e3):
            expected, clipped = whole(range(degrees.pipeline), max_norm)
            parameters = spread(mesh, mesh.pipeline_rank)

            norm = clipped_norm(parameters, max_norm, mesh)

            assert norm == pytest.approx(expected, rel=1e-6)
            each = [0.0] * 4
            torch.distributed.all_gather_object(each, norm)
            assert len(set(each)) == 1
            stage = clipped[mesh.pipeline_rank * len(SHAPES) :][: len(SHAPES)]
            for parameter, theirs in zip(parameters, stage, strict=False):
                ours = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
                assert ours is not None
                assert torch.allclose(ours, theirs, rtol=1e-6, atol=0)


def test_the_norm_of_gradients_spread_in_any_way_is_that_of_one_process() -> None:
    in_ranks(every_layout, 4)


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_one_process_clips_as_torch_does(max_norm: float) -> None:
    expected, clipped = whole(range(1), max_norm)
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients(0)]
    for parameter, gradient in zip(parameters, gradients(0), strict=True):
        parameter.grad = gradient

    norm = clipped_norm(parameters, max_norm, Mesh())

    assert norm == pytest.approx(expected, rel=1e-6)
    for parameter, theirs in zip(parameters, clipped, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_shows_in_the_norm_and_is_left_alone(bad: float) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor([1.0, bad, 2.0])

    norm = clipped_norm([parameter], 0.5, Mesh())

    assert not math.isfinite(norm)
    assert parameter.grad[2] == 2.0


def test_the_squares_of_bf16_gradients_are_added_in_fp32() -> None:
    parameter = nn.Parameter(torch.zeros(100_000, dtype=torch.bfloat16))
    parameter.grad = torch.full_like(parameter, 0.5)

    assert clipped_norm([parameter], 1e3, Mesh()) == pytest.approx(0.5 * math.sqrt(100_000), rel=1e-6)
    assert clipped_norm([nn.Parameter(torch.zeros(2))], 1.0, Mesh()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, matrix(torch.bfloat16)])
def test_the_norm_of_a_large_table_is_exact_however_it_is_cut(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    gradient = (1e-3 * torch.randn(40_000, 1_024)).to(dtype)
    exact = math.sqrt(sum(float(rows.double().square().sum()) for rows in torch.split(gradient, 4_000)))

    norms = []
    for parts in ([gradient], list(torch.split(gradient, 9_000)), list(torch.split(gradient, 300, dim=1))):
        parameters = [nn.Parameter(torch.zeros_like(part)) for part in parts]
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part
        norms.append(clipped_norm(parameters, math.inf, Mesh()))

    assert norms == pytest.approx([exact] * 3, rel=1e-7)


LENGTH = 32
BORDERS = (0, 3, 21, 22, 32, 64, 72, 80, 83, 96)
"""Three rows: documents across every cut into 2 and 4, one as long as a row, some that end at a cut."""


def batch() -> Batch:
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 64, (3, LENGTH), generator=random)
    positions = torch.cat([torch.arange(end - begin) for begin, end in pairwise(BORDERS)])
    labels = torch.randint(0, 64, (3, LENGTH), generator=random)
    labels[2, -13:] = IGNORED
    return Batch(
        input_ids=ids,
        position_ids=positions.view(3, LENGTH),
        labels=labels,
        borders=torch.tensor(BORDERS, dtype=torch.int32),
    )


def llama() -> LlamaForCausalLM:
    return small_llama(intermediate_size=48, tie_word_embeddings=True, initializer_range=0.1)


def loss_and_gradients(model: LlamaForCausalLM, given: Batch) -> list[torch.Tensor]:
    states = last_hidden(model, given.input_ids, given.position_ids, given.borders)
    loss = summed_loss(states, model.lm_head.weight, given.labels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def shared_equals_whole(rank: int) -> None:
    whole = llama()
    use_packed_attention(whole)
    expected = loss_and_gradients(whole, batch())
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    assert dist.group.WORLD is not None
    cases: list[tuple[dist.ProcessGroup, Policy]] = [
        (pairs[rank // 2], "none"),
        (dist.group.WORLD, "selective"),
        (dist.group.WORLD, "full"),
    ]
    for group, policy in cases:
        model = llama()
        use_context_attention(model, group)
        checkpoint_layers(decoder_layers(model), policy)
        stretch = slice_of(batch(), dist.get_rank(group), dist.get_world_size(group))

        found = loss_and_gradients(model, stretch)

        assert len(found) == len(expected)
        for mine, all_of_it in zip(found, expected, strict=True):
            dist.all_reduce(mine, group=group)
            assert (mine - all_of_it).abs().max() < 1e-5 * all_of_it.abs().max()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss_and_gradients(model, stretch)[0]
    dist.all_reduce(mixed)
    assert 0 < abs(mixed / expected[0] - 1) < 0.01


@pytest.mark.slow
def test_shared_sequences_have_the_loss_and_gradients_of_whole_ones() -> None:
    in_ranks(shared_equals_whole, 4)


def test_a_length_that_cannot_be_shared_is_refused_with_the_remedy() -> None:
    check_context(2048, 4, 2)

    with pytest.raises(PreflightError, match=r"sequence_length: 2044 tokens .* a multiple of 8"):
        check_context(2044, 4, 2)
