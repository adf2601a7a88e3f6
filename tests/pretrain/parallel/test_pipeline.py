from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM

from anadil.core.errors import DataError, PreflightError
from anadil.model.attention import use_packed_attention
from anadil.model.kernels import checkpoint_layers, decoder_layers
from anadil.model.loss import summed_loss
from anadil.model.process_group import Group
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.parallel import parallelize as spread_module
from anadil.pretrain.parallel.fsdp import Replicas
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.mesh import mesh_of
from anadil.pretrain.parallel.pipeline import Pipeline, check_pipeline, cut_stage, layers_of_stage
from anadil.recipe.pretrain import Parallelism, Pretrain
from tests.kit import families
from tests.kit.families import ROWS
from tests.kit.llama import small_llama
from tests.kit.ranks import in_ranks

CPU = torch.device("cpu")
LENGTH, LAYERS = 16, 5
Gradients = dict[str, torch.Tensor]


batches = partial(families.batches, length=LENGTH, num_tokens=64)


def llama(*, tied: bool = False) -> LlamaForCausalLM:
    return small_llama(
        intermediate_size=48, num_hidden_layers=LAYERS, tie_word_embeddings=tied, initializer_range=0.1
    )


def expected_of(given: Sequence[Batch]) -> tuple[float, Gradients]:
    """Loss and gradients of one process."""
    model = llama()
    use_packed_attention(model)
    total = 0.0
    for one in given:
        states = last_hidden(model, one.input_ids, one.position_ids, one.borders)
        loss = summed_loss(states, model.lm_head.weight, one.labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        total += loss.item()
    return total, {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


def gradients(model: LlamaForCausalLM) -> Gradients:
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return found


def assert_equal(found: Gradients, expected: Gradients, divisor: float = 1.0) -> None:
    for name, gradient in found.items():
        difference = (gradient * divisor - expected[name]).abs().max()
        assert difference < 1e-5 * expected[name].abs().max(), name


def stages_equal_whole(group: dist.ProcessGroup | None) -> None:
    assert group is not None
    stage, stages = dist.get_rank(group), dist.get_world_size(group)
    model = llama()
    use_packed_attention(model)
    cut_stage(model, stage, stages)
    checkpoint_layers(decoder_layers(model), "selective")
    pipeline = Pipeline(model, summed_loss, group, device=CPU)
    names: list[set[str]] = [set()] * stages
    dist.all_gather_object(names, set(dict(model.named_parameters())), group=group)
    assert sum(map(len, names)) == len(set().union(*names))
    assert set().union(*names) == set(dict(llama().named_parameters()))

    for number, length, divisor in ((4, LENGTH, 8.0), (stages, 24, 1.0), (4, LENGTH, 1.0)):
        given = batches(number, seed=number, length=length)
        loss, expected = expected_of(given)
        model.zero_grad(set_to_none=True)

        validated = pipeline.loss_of(given)
        found = pipeline.step(given, divisor)

        assert found.dtype == torch.float64
        assert abs(found.item() / loss - 1) < 1e-6
        assert abs(validated.item() / loss - 1) < 1e-6
        assert_equal(gradients(model), expected, divisor)


def bf16_validates_as_it_trains(rank: int) -> None:
    vars(spread_module)["has_fast_bf16"] = lambda _device: True
    degrees = Parallelism(pipeline=2)
    settings = Pretrain(
        precision="bf16",
        sequence_length=LENGTH,
        batch_size=2 * ROWS,
        micro_batch_size=ROWS,
        parallelism=degrees,
    )
    mesh = mesh_of(degrees, Group(rank=rank, size=2), "cpu")
    net = spread_module.parallelize(llama(), settings, mesh, CPU)
    given = batches(1) * 2

    with torch.no_grad():
        validated = net.loss(given[0])
    trained = net.backward(given, 1.0, replicas=Replicas([], None))

    assert validated.item() == pytest.approx(trained.item() / 2, rel=1e-6)


def test_two_stages_validate_in_the_precision_in_which_they_train() -> None:
    in_ranks(bf16_validates_as_it_trains, 2)


def what_is_wrong_is_said(rank: int) -> None:
    assert dist.group.WORLD is not None
    model = llama()
    use_packed_attention(model)
    cut_stage(model, rank, 4)
    pipeline = Pipeline(model, summed_loss, dist.group.WORLD, device=CPU)
    if rank == 0:
        for layer in decoder_layers(model):
            layer.get_submodule("self_attn").attention_dropout = 0.5  # type: ignore[assignment]
        model.train()
    # The stage that fails says why, the others that it is gone.
    with pytest.raises(
        DataError if rank == 0 else RuntimeError, match="attention_dropout" if rank == 0 else "peer"
    ):
        pipeline.step(batches(4))


def scenarios(rank: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stages_equal_whole(pairs[rank // 2])
    stages_equal_whole(dist.group.WORLD)
    what_is_wrong_is_said(rank)


@pytest.mark.slow
def test_stages_have_the_loss_and_gradients_of_one_process() -> None:
    in_ranks(scenarios, 4)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(8, 2, [4, 4]), (5, 2, [2, 3]), (5, 4, [1, 1, 2, 1]), (3, 3, [1] * 3)]
)
def test_layers_are_spread_evenly(layers: int, stages: int, expected: list[int]) -> None:
    parts = [layers_of_stage(layers, stage, stages) for stage in range(stages)]

    assert [len(part) for part in parts] == expected
    assert [number for part in parts for number in part] == list(range(layers))


@pytest.mark.parametrize(
    ("stages", "changes", "words"),
    [
        (2, {"balances": True}, r"2 stages pass no router's logits on.*set pipeline to 1"),
        (8, {"layers": 5}, r"8 stages are more than the 5 layers.*set it to 5 or less"),
        (4, {"sequences": 6}, r"4 stages need as many micro-batches .* are 3; lower .*micro_batch_size"),
    ],
)
def test_what_cannot_be_cut_into_stages_is_refused_with_the_remedy(
    stages: int, changes: dict[str, Any], words: str
) -> None:
    fits: dict[str, Any] = {"balances": False, "layers": 8, "sequences": 8, "micro_batch_size": 2}
    with pytest.raises(PreflightError, match=words):
        check_pipeline(stages, **{**fits, **changes})

    check_pipeline(4, **{**fits, "sequences": 7})
    check_pipeline(1, balances=True, layers=1, sequences=1, micro_batch_size=14)
