from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import DataError
from anadil.model.attention import use_packed_attention
from anadil.model.decoding import Decoder
from anadil.model.load import load_model
from anadil.model.recurrence import start_anew_at_borders
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.prepare import check_architecture
from tests.kit.families import make_family
from tests.kit.marks import matrix, slow
from tests.model.test_decoding import NUM_IDS, PROMPTS, decoded, one_by_one, without_cache

LENGTHS = (70, 3, 60, 1, 66, 9, 80, 7, 128, 88)
"""Borders of documents in two rows: some are shorter than a convolution, some longer than a chunk of the delta rule."""
BORDERS = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)
KINDS = ("lfm2", "qwen3_5_text", slow("granitemoehybrid"), slow("olmo_hybrid"), matrix("qwen3_5_moe_text"))


def states_and_gradients(model: Any, parts: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    states = torch.cat(parts)
    model.zero_grad()
    (states * torch.linspace(-1, 1, states.numel()).view(states.shape)).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return states.detach(), [each.grad.clone() for each in model.base_model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_are_computed_as_each_by_itself(tmp_path: Path, kind: str) -> None:
    model: Any = load_model(make_family(tmp_path, kind, max_position_embeddings=256))
    ids = torch.arange(sum(LENGTHS)) * 7 % 300
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    alone = [
        model.base_model(input_ids=ids[None, begin:end], use_cache=False).last_hidden_state[0]
        for begin, end in pairwise(BORDERS.tolist())
    ]
    expected, gradients = states_and_gradients(model, alone)
    use_packed_attention(model)
    use_packed_attention(model)  # as `build` and `parallelize` do

    packed = last_hidden(model, ids.view(2, -1), positions.view(2, -1), BORDERS)
    found, ours = states_and_gradients(model, [packed.flatten(0, 1)])

    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_runs_over_a_border_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"anadil.model.attention.{start_anew_at_borders.__name__}", lambda _: None)
    model: Any = load_model(make_family(tmp_path, kind))
    use_packed_attention(model)

    with pytest.raises(DataError, match=f"in a {kind} model packed documents see each other"):
        check_architecture(model)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_answer(tmp_path: Path, kind: str) -> None:
    """As fine-tuning pads rows on the right, and as generation pads prompts on the left."""
    model: Any = load_model(make_family(tmp_path, kind))
    ids = torch.arange(12)[None] * 7 + 1
    alone = model(input_ids=ids, use_cache=False).logits[0]
    padding, mask = torch.zeros(1, 5, dtype=torch.int64), torch.tensor([[1] * 12 + [0] * 5])

    right = model(input_ids=torch.cat([ids, padding], 1), attention_mask=mask, use_cache=False)
    left = model(
        input_ids=torch.cat([padding, ids], 1), attention_mask=mask.flip(1), use_cache=False,
        position_ids=torch.tensor([[0] * 5 + list(range(12))]),
    )  # fmt: skip

    torch.testing.assert_close(right.logits[0, :12], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(left.logits[0, 5:], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [matrix("lfm2"), "qwen3_5_text"])
def test_a_batch_is_written_by_states_as_by_whole_passes(tmp_path: Path, kind: str) -> None:
    model: Any = load_model(make_family(tmp_path, kind, vocab_size=NUM_IDS))

    batch = decoded(model)

    assert batch == one_by_one(model)
    assert [own[0].tokens for own in batch] == [without_cache(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_that_goes_back_starts_its_states_anew(tmp_path: Path, kind: str) -> None:
    model: Any = load_model(make_family(tmp_path, kind, vocab_size=NUM_IDS))
    writer = Decoder(model, ends=frozenset(), num_ids=NUM_IDS)

    for prompt in ([5, 9, 3, 4], [5, 9, 8], [5, 9, 8, 7, 6]):
        written = tuple(writer.stream(prompt, seed=None, temperature=1, most=6))

        assert written == without_cache(model, prompt, 6)
