from itertools import pairwise

import pytest
import torch
from torch import distributed as dist
from transformers import LlamaForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.attention import use_packed_attention
from anadil.model.kernels import Policy, checkpoint_layers, decoder_layers
from anadil.model.loss import IGNORED, summed_loss
from anadil.pretrain.data.packing import Batch
from anadil.pretrain.parallel.context import check_context, slice_of, use_context_attention
from anadil.pretrain.parallel.loss_forward import last_hidden
from tests.kit.llama import small_llama
from tests.kit.ranks import in_ranks

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


def test_stretches_are_the_whole_batch_and_its_borders_stay() -> None:
    whole = batch()

    stretches = [slice_of(whole, rank, 4) for rank in range(4)]

    for name in ("input_ids", "position_ids", "labels"):
        parts = [getattr(stretch, name) for stretch in stretches]
        assert torch.equal(torch.cat(parts, dim=1), getattr(whole, name))
    assert all(torch.equal(stretch.borders, whole.borders) for stretch in stretches)


def test_a_length_that_cannot_be_shared_is_refused_with_the_remedy() -> None:
    check_context(2048, 4, 2)

    with pytest.raises(PreflightError, match=r"sequence_length: 2044 tokens .* a multiple of 8"):
        check_context(2044, 4, 2)
