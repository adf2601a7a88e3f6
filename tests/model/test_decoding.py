from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.model.decoding import LIKELIEST, TEMPERATURE, TOP_P, Continuation, Decoder, choose
from anadil.model.load import load_model
from tests.kit.families import SIZES, make_family
from tests.kit.llama import small_llama
from tests.kit.marks import gpu, matrix, slow

NUM_IDS = SIZES["vocab_size"]
PROMPTS = [[5, 9, 3], list(range(20, 60)), [7], [1, 2, 3, 4, 5, 6, 7], [9, 9], list(range(100, 118))]
SEEDS = [[None, 100 + place] for place in range(len(PROMPTS))]
FAMILIES = ("gemma3_text", "glm4", "gpt_neox", "mistral", "olmo2", "phi3", "qwen2", "qwen3")


def decoded(
    model: Any,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    seeds: Sequence[Sequence[int | None]] = SEEDS,
    *,
    ends: frozenset[int] = frozenset(),
    new: int = 24,
    **changes: Any,
) -> list[list[Continuation]]:
    """By prompt, in their order."""
    decoder = Decoder(model, ends=ends, num_ids=NUM_IDS)
    written = dict(decoder.batches(prompts, seeds, max_new_tokens=new, **changes))
    return [written[place] for place in range(len(prompts))]


def one_by_one(model: Any, **changes: Any) -> list[list[Continuation]]:
    """Each continuation in a batch of its own."""
    return [
        [decoded(model, [prompt], [[seed]], **changes)[0][0] for seed in own]
        for prompt, own in zip(PROMPTS, SEEDS, strict=True)
    ]


def without_cache(model: Any, prompt: Sequence[int], new: int) -> tuple[int, ...]:
    """Greedy, each token by a whole pass: nothing of ours is in it."""
    ids = list(prompt)
    while len(ids) < len(prompt) + new:
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.fixture(scope="module")
def model() -> Any:
    return small_llama(vocab_size=NUM_IDS, max_position_embeddings=256, initializer_range=0.3)


def test_a_batch_writes_what_each_prompt_alone_gets(model: Any) -> None:
    batch = decoded(model)

    assert batch == one_by_one(model)
    assert [own[0].tokens for own in batch] == [without_cache(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize("limit", [1, 100, 300, 10_000])
def test_the_size_of_a_batch_changes_no_text(model: Any, limit: int) -> None:
    assert decoded(model, batch_tokens=limit) == decoded(model)


@pytest.mark.parametrize(
    "family", [(slow if each in ("gemma3_text", "gpt_neox") else matrix)(each) for each in FAMILIES]
)
def test_models_of_each_family_write_in_a_batch_what_they_write_alone(family: str, tmp_path: Path) -> None:
    model: Any = load_model(make_family(tmp_path, family)).eval()

    assert decoded(model) == one_by_one(model)


@gpu()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_writes_in_a_batch_what_each_prompt_alone_gets(family: str, tmp_path: Path) -> None:
    model: Any = load_model(make_family(tmp_path, family)).eval().cuda()

    assert decoded(model) == one_by_one(model)


@pytest.mark.parametrize("family", [matrix("gemma3_text"), "mistral"])
def test_a_window_shorter_than_the_text_hides_the_same_tokens_from_a_padded_row(
    family: str, tmp_path: Path
) -> None:
    model: Any = load_model(make_family(tmp_path, family, sliding_window=8)).eval()

    batch = decoded(model)

    assert batch == one_by_one(model)
    assert [own[0].tokens for own in batch] == [without_cache(model, prompt, 24) for prompt in PROMPTS]


def test_a_row_that_has_ended_leaves_its_batch_and_the_others_stay_as_they_are(model: Any) -> None:
    free = decoded(model)
    ends = frozenset({free[0][0].tokens[2], free[3][1].tokens[5]})
    rows: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )

    found = decoded(model, ends=ends)

    hook.remove()
    assert rows[:2] == [len(PROMPTS), 2 * len(PROMPTS)]
    assert rows[-1] < rows[1]
    assert sum(rows[1:]) == sum(len(one.tokens) for own in found for one in own) - sum(
        not one.ended for own in found for one in own
    )
    for own, before in zip(found, free, strict=True):
        for one, whole in zip(own, before, strict=True):
            place = next((i for i, token in enumerate(whole.tokens) if token in ends), None)
            assert one == Continuation(tokens=whole.tokens[:place], ended=place is not None)


def test_memory_follows_the_limit_and_not_the_number_of_prompts(model: Any) -> None:
    sizes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].numel()), with_kwargs=True
    )

    decoded(model, [list(range(50))] * 40, [[None]] * 40, new=14, batch_tokens=640)

    hook.remove()
    assert max(sizes) == 10 * 50
    assert len(sizes) == 4 * 14


def test_each_sample_has_its_own_seed(model: Any) -> None:
    first, second, again = decoded(model, [[5, 9, 3]] * 3, [[1], [2], [1]])

    assert first == again != second


def test_a_prompt_beyond_the_models_positions_loses_its_beginning(model: Any) -> None:
    short: Any = small_llama(vocab_size=NUM_IDS, max_position_embeddings=32)
    prompt = list(range(100))

    (found,), (cut,) = decoded(short, [prompt, prompt[-22:]], [[None], [None]], new=10)

    assert found == cut
    assert len(found.tokens) == 10


def test_samples_have_the_shares_of_the_likeliest_ids() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.5, -9.0, 1.0]]).repeat(4_000, 1)
    uniform = torch.rand(4_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    chosen = choose(logits, uniform)

    shares = torch.softmax(logits[0].double() / TEMPERATURE, 0)
    # 0.59, 0.26 and 0.11: the first two hold less than TOP_P, the third completes it.
    kept = torch.where(torch.tensor([True, False, True, False, True]), shares, 0)
    assert float(shares[[0, 2]].sum()) < TOP_P
    measured = torch.bincount(chosen, minlength=5) / 4_000
    assert torch.allclose(measured.double(), kept / kept.sum(), atol=0.025)


def test_a_flat_distribution_is_sampled_beyond_the_likeliest_ids() -> None:
    logits = torch.zeros(2_000, 4 * LIKELIEST)
    uniform = torch.rand(2_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    assert len(set(choose(logits, uniform).tolist())) > 2 * LIKELIEST


def test_greedy_rows_and_samples_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0], [3.0, 0.0], [0.0, 0.1]])
    uniform = torch.tensor([float("nan"), float("nan"), 0.0], dtype=torch.float64)

    assert choose(logits, uniform).tolist() == [1, 0, 0]
