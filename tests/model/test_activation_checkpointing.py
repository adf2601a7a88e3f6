import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from anadil.core.errors import DataError
from anadil.model.kernels import Policy, checkpoint_layers, decoder_layers
from anadil.model.load import cast_parameters
from tests.kit.llama import small_llama
from tests.kit.ranks import in_ranks

WIDTH, MLP, KEYS, HEADS = 64, 160, 32, 4
"""Hidden width, width of the MLP, of all keys, and attention heads."""
TOKENS = torch.arange(64).reshape(2, 32)
POLICIES: tuple[Policy, ...] = ("none", "selective", "full")


def llama(policy: Policy, num_layers: int = 2) -> LlamaForCausalLM:
    model = small_llama(
        hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=num_layers, num_attention_heads=HEADS
    )
    checkpoint_layers(decoder_layers(model), policy)
    return model


def hidden(model: LlamaForCausalLM, *, packed: bool = False) -> torch.Tensor:
    positions = torch.cat([torch.arange(20), torch.arange(12)]) if packed else torch.arange(32)
    states: torch.Tensor = model.base_model(
        input_ids=TOKENS, position_ids=positions.expand(2, 32).contiguous(), use_cache=False
    ).last_hidden_state
    return states


def gradients(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    loss = hidden(model, packed=True).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def kept_bytes(model: LlamaForCausalLM) -> int:
    """What a forward pass leaves behind for the backward pass."""
    hidden(model)  # whatever is made once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as memory:
        states = hidden(model)
    assert states.requires_grad
    return sum(event.self_cpu_memory_usage for event in memory.key_averages())


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_gradients_are_the_same_to_the_bit_and_names_stay(policy: Policy) -> None:
    expected = gradients(llama("none"))

    found = gradients(llama(policy))

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_gradients_stay_when_the_backbone_is_frozen(policy: Policy) -> None:
    pair = []
    for chosen in ("none", policy):
        model = llama(chosen)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("embed_tokens" in name)
        pair.append(gradients(model))

    assert pair[0].keys() == {"model.embed_tokens.weight"}
    assert torch.equal(*(one["model.embed_tokens.weight"] for one in pair))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", 20 * WIDTH + 4 * KEYS + 8 * MLP + 4 * HEADS + 8),
        ("selective", 10 * WIDTH + 4 * KEYS + 4 * MLP + 4 * HEADS),
        ("full", 2 * WIDTH),
    ],
)
def test_a_layer_keeps_as_many_bytes_for_a_token_as_its_operations_need(
    policy: Policy, expected: int
) -> None:
    models = [llama(policy, num_layers) for num_layers in (2, 3)]
    for model in models:
        cast_parameters(model, torch.bfloat16)

    two, three = (kept_bytes(model) for model in models)

    assert (three - two) / TOKENS.numel() == expected


def test_a_deep_copy_calls_its_own_layers() -> None:
    model = llama("selective")
    before = hidden(model)

    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    assert torch.equal(hidden(other), before)


def sharded_equals_whole(_rank: int) -> None:
    for policy in POLICIES:
        expected = gradients(llama(policy))
        model = llama(policy)
        mesh = init_device_mesh("cpu", (1,))
        for layer in decoder_layers(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model.base_model, mesh=mesh)
        found = gradients(model)
        for name in expected.keys() - {"lm_head.weight"}:
            gradient = found[name]
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            assert torch.equal(whole, expected[name]), (policy, name)


def test_layers_may_be_sharded_afterwards() -> None:
    in_ranks(sharded_equals_whole, 1)


def test_a_model_without_layers_is_refused_with_the_remedy() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1))

    with pytest.raises(DataError, match=r"base.model: a gpt2 model has no `layers`"):
        decoder_layers(model)


def test_none_leaves_a_layer_as_it_is() -> None:
    layer = nn.Linear(2, 2)

    checkpoint_layers([layer], "none")

    assert "forward" not in vars(layer)
