import copy
from itertools import pairwise

import pytest
import torch
from torch import nn
from transformers import GPT2Config, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from anadil.core.errors import DataError
from anadil.model.attention import (
    OPERATOR,
    attend,
    attend_by_document,
    attend_on_gpu,
    backward_on_gpu,
    packed_attention,
    packed_attention_backward,
    packed_attention_forward,
    row_borders,
    use_packed_attention,
)
from anadil.model.kernels import Policy, checkpoint_layers, decoder_layers
from tests.kit.llama import small_llama
from tests.kit.marks import gpu, matrix, slow

WIDTH, LENGTH = 32, 24
BORDERS = torch.tensor([0, 5, 12, 19, 24, 34, 41, 48], dtype=torch.int32)
"""Two rows of 24 tokens; documents of 5, 7 and 10 tokens, some of one length side by side."""
IDS = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % 64
PUSH = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
"""What the last hidden states are multiplied with, so that the gradients are of all sizes."""


def llama(**changes: int) -> LlamaForCausalLM:
    return small_llama(hidden_size=WIDTH, intermediate_size=48, **changes)


def positions() -> torch.Tensor:
    return torch.cat([torch.arange(end - begin) for begin, end in pairwise(BORDERS.tolist())]).view(2, -1)


def hidden(model: LlamaForCausalLM, borders: torch.Tensor | None = BORDERS) -> torch.Tensor:
    states: torch.Tensor = model.base_model(
        input_ids=IDS, position_ids=positions(), borders=borders, use_cache=False
    ).last_hidden_state
    return states


def alone(model: LlamaForCausalLM) -> torch.Tensor:
    """Last hidden states where each document is run by itself."""
    ids = IDS.flatten()
    pieces = [
        model.base_model(input_ids=ids[begin:end][None], use_cache=False).last_hidden_state[0]
        for begin, end in pairwise(BORDERS.tolist())
    ]
    return torch.cat(pieces).view(2, LENGTH, -1)


def gradients(model: nn.Module, states: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    (states * PUSH).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    assert len(one) == len(other)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("heads_of_keys", [1, 2, 4])
def test_packed_documents_are_as_documents_alone(heads_of_keys: int) -> None:
    plain = llama(num_key_value_heads=heads_of_keys)
    model = copy.deepcopy(plain)
    use_packed_attention(model)
    expected = alone(plain)

    states = hidden(model)

    assert (states - expected).abs().max() < 1e-6
    assert largest_difference(gradients(model, states), gradients(plain, expected)) < 2e-6
    assert "anadil" not in model.config.to_json_string(), "a saved model does not name the attention"


def test_a_batch_like_the_one_before_in_shape_has_borders_of_its_own() -> None:
    model = llama()
    use_packed_attention(model)
    borders = BORDERS.clone()
    before = hidden(model, borders)

    borders[1] += 1

    assert not torch.equal(hidden(model, borders)[0, 5], before[0, 5])
    assert torch.equal(hidden(model, borders)[1], before[1])


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_activations_may_be_made_again(policy: Policy) -> None:
    plain = llama()
    use_packed_attention(plain)
    model = copy.deepcopy(plain)
    checkpoint_layers(decoder_layers(model), policy)

    found = gradients(model, hidden(model))

    assert all(torch.equal(a, b) for a, b in zip(found, gradients(plain, hidden(plain)), strict=True))


def test_selective_recompute_runs_attention_once() -> None:
    model = llama()
    use_packed_attention(model)
    checkpoint_layers(decoder_layers(model), "selective")

    with torch.profiler.profile() as run:
        gradients(model, hidden(model))

    counts = {event.key: event.count for event in run.key_averages()}
    assert counts["aten::_scaled_dot_product_flash_attention_for_cpu"] == 2 * 3  # layers x lengths


@pytest.mark.parametrize("policy", [matrix("none"), slow("selective"), matrix("full")])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_layer_compiles_without_a_break(policy: Policy) -> None:
    plain = llama()
    use_packed_attention(plain)
    model = copy.deepcopy(plain)
    checkpoint_layers(decoder_layers(model), policy)
    for layer in decoder_layers(model):
        layer.compile(backend="aot_eager", fullgraph=True)

    found = gradients(model, hidden(model))
    other = hidden(model, row_borders(2, LENGTH))

    assert largest_difference(found, gradients(plain, hidden(plain))) < 1e-6
    assert (other - hidden(plain, row_borders(2, LENGTH))).abs().max() < 1e-6


def test_autocast_attends_in_bf16() -> None:
    model = llama()
    use_packed_attention(model)
    expected = hidden(model)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = hidden(model)
        states = torch.randn(48, 2, 8)
        attended = attend(states, states, states, BORDERS, BORDERS)

    assert attended.dtype == torch.bfloat16
    assert (found - expected).abs().max() < 0.1
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model, found))


def test_queries_see_the_keys_before_them_where_a_document_began_earlier() -> None:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(20, num, 8, generator=random) for num in (4, 2, 2))
    whole = torch.tensor([0, 12, 20], dtype=torch.int32)
    expected = attend(query, key, value, whole, whole)[7:]

    found = attend(query[7:], key, value, torch.tensor([0, 5, 13], dtype=torch.int32), whole)

    assert (found - expected).abs().max() < 1e-6


@pytest.mark.parametrize("window", [0, 1, 2, 4, 12])
@pytest.mark.parametrize("way", [attend_by_document, lambda *given: packed_attention(*given)[0]])
def test_both_ways_have_the_gradients_of_a_mask(way: object, window: int) -> None:
    assert callable(way)
    random = torch.Generator().manual_seed(0)
    given = [
        torch.randn(size, num, 8, generator=random, dtype=torch.float64, requires_grad=True)
        for size, num in ((9, 4), (12, 2), (12, 2))
    ]
    query_borders = torch.tensor([0, 2, 5, 9], dtype=torch.int32)
    key_borders = torch.tensor([0, 5, 8, 12], dtype=torch.int32)
    seen = torch.zeros(9, 12, dtype=torch.bool)
    for (begin, end), (first, last) in zip(
        pairwise(query_borders.tolist()), pairwise(key_borders.tolist()), strict=True
    ):
        for row in range(begin, end):
            here = last - (end - 1 - row)
            seen[row, max(first, here - (window or 12)) : here] = True
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in given)
    masked = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    expected = masked[0].transpose(0, 1)
    push = torch.randn(9, 4, 8, generator=random, dtype=torch.float64)

    result = way(*given, query_borders, key_borders, 8**-0.5, window)

    assert (result - expected).abs().max() < 1e-12
    ours, theirs = (torch.autograd.grad(each, given, push) for each in (result, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 1e-12


def test_the_operators_tell_the_shapes_of_their_results() -> None:
    query, key, value = (torch.randn(48, num, 8, requires_grad=True) for num in (4, 2, 2))
    result = packed_attention(query, key, value, BORDERS, BORDERS, 0.3, 4)

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(OPERATOR, (query, key, value, BORDERS, BORDERS, 0.3, 4), test_utils=tests)
    given = (
        torch.randn(48, 4, 8),
        *(part.detach() for part in (query, key, value, *result)),
        BORDERS,
        BORDERS,
    )
    schema = ("test_schema", "test_faketensor")
    torch.library.opcheck(packed_attention_backward, (*given, 0.3, 4), test_utils=schema)


def test_what_a_gpu_is_asked_has_the_order_of_arguments_of_torch() -> None:
    # Meta tensors go through torch's own operators as far as their shapes.
    query, key, value = (torch.empty(48, num, 8, device="meta", dtype=torch.bfloat16) for num in (4, 2, 2))

    attended, sums = attend_on_gpu(query, key, value, BORDERS, BORDERS, 0.3, 4)
    found = backward_on_gpu(attended, query, key, value, attended, sums, BORDERS, BORDERS, 0.3, 4)

    assert attended.shape == query.shape
    assert (sums.shape, sums.dtype) == ((4, 48), torch.float32)
    assert [gradient.shape for gradient in found] == [query.shape, key.shape, value.shape]


def test_a_mask_is_an_error_and_no_leak() -> None:
    model = llama()
    use_packed_attention(model)

    with pytest.raises(AssertionError, match="borders take the place of attention_mask"):
        model.base_model(input_ids=IDS, attention_mask=torch.ones_like(IDS), use_cache=False)


@pytest.mark.parametrize("window", [1, 4, LENGTH])
def test_a_window_is_that_of_transformers_with_documents_and_without(window: int) -> None:
    config = MistralConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=window,
    )  # fmt: skip
    plain = MistralForCausalLM(config).eval()
    model = copy.deepcopy(plain)
    use_packed_attention(model)

    assert (hidden(model) - alone(plain)).abs().max() < 1e-5
    whole = plain.base_model(input_ids=IDS, use_cache=False).last_hidden_state
    assert (model.base_model(input_ids=IDS, use_cache=False).last_hidden_state - whole).abs().max() < 1e-5


@pytest.mark.parametrize("window", [0, 3])
def test_sinks_have_result_and_gradients_of_all_scores(window: int) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2 * LENGTH, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    sinks, push = torch.randn(4, requires_grad=True), torch.randn(2 * LENGTH, 4, 8)
    given = [query, key, value, sinks]

    fast = attend(query, key, value, BORDERS, BORDERS, window=window, sinks=sinks)
    slow_one: torch.Tensor = attend_by_document(
        query, key, value, BORDERS, BORDERS, 8**-0.5, window, 0.0, sinks
    )
    without = attend(query, key, value, BORDERS, BORDERS, window=window)

    assert (fast - slow_one).abs().max() < 1e-6
    assert (fast - without).abs().max() > 0.1
    ours, theirs = (torch.autograd.grad((each * push).sum(), given) for each in (fast, slow_one))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_scores_changed_otherwise_are_refused_and_dropout_in_training_only() -> None:
    layer, states = nn.Identity(), torch.zeros(1, 1, 2, 4)

    packed_attention_forward(layer.eval(), states, states, states, None, dropout=0.1)
    with pytest.raises(DataError, match="attention_dropout"):
        packed_attention_forward(layer.train(), states, states, states, None, dropout=0.1)
    with pytest.raises(DataError, match=r"base.model: its attention has position_bias, which"):
        packed_attention_forward(layer, states, states, states, None, position_bias=states)


def test_a_model_with_attention_of_its_own_is_refused() -> None:
    model = llama()
    model._can_set_attn_implementation = lambda: False
    model.config = GPT2Config()

    with pytest.raises(DataError, match=r"base.model: the attention"):
        use_packed_attention(model)


def windowed(states: list[torch.Tensor], window: int) -> torch.Tensor:
    query, key, value = states
    return attend(query, key, value, BORDERS, BORDERS, window=window)


@gpu()
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("heads_of_keys", [1, 4])
def test_flash_attention_gives_what_a_cpu_gives_within_documents(heads_of_keys: int, window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = int(BORDERS[-1])
    shapes = [(tokens, 4, 64), (tokens, heads_of_keys, 64), (tokens, heads_of_keys, 64)]
    on_cpu = [torch.randn(shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]
    on_gpu = [each.detach().cuda().requires_grad_() for each in on_cpu]
    push = torch.randn(shapes[0], generator=generator).bfloat16()

    expected = windowed(on_cpu, window)
    found = windowed(on_gpu, window)

    assert (found.cpu() - expected).abs().max() < 0.02
    theirs = torch.autograd.grad((expected * push).sum(), on_cpu)
    ours = torch.autograd.grad((found * push.cuda()).sum(), on_gpu)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.cpu() - other).abs().max() < 0.02 * other.abs().max()


@gpu()
@pytest.mark.parametrize("window", [0, 4])
def test_attention_in_fp32_on_a_gpu_gives_what_a_cpu_gives(window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(int(BORDERS[-1]), heads, 64) for heads in (4, 2, 2)]
    states = [torch.randn(shape, generator=generator) for shape in shapes]

    found = windowed([each.cuda() for each in states], window)

    assert (found.cpu() - windowed(states, window)).abs().max() < 1e-5
