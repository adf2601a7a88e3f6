from collections import Counter

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.errors import DataError
from anadil.model.loss import IGNORED
from anadil.pretrain.packing import Packed, batch_of, pack, sequences_of_step
from anadil.pretrain.probe import check_architecture, last_hidden
from anadil.pretrain.tokens import Stream

BOS, END = 1, 2


def stream_of(*sizes: int) -> Stream:
    """Documents `[BOS] ids [END]` whose ids are all different."""
    ids: list[int] = []
    starts = [0]
    for size in sizes:
        first = 10 + len(ids)
        ids += [BOS, *range(first, first + size), END]
        starts.append(len(ids))
    return Stream(ids=np.array(ids, dtype=np.int32), starts=np.array(starts), digest="d")


def all_rows(packed: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = batch_of(packed, np.arange(packed.num_sequences))
    return batch.input_ids, batch.position_ids, batch.labels


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def test_every_token_after_the_first_is_predicted_exactly_once() -> None:
    stream = stream_of(3, 40, 7, 1, 16, 90)

    packed = pack(stream, 16)

    expected = Counter(
        token
        for begin, end in zip(stream.starts, stream.starts[1:], strict=False)
        for token in stream.ids[begin + 1 : end].tolist()
    )
    labels = all_rows(packed)[2]
    assert Counter(labels[labels != IGNORED].tolist()) == expected
    assert packed.num_targets == expected.total()


def test_no_label_crosses_a_document_border() -> None:
    packed = pack(stream_of(3, 40, 7, 1, 16, 90), 16)

    inputs, _, labels = all_rows(packed)

    assert BOS not in labels
    assert END not in inputs[labels != IGNORED]
    inner = (labels != IGNORED) & (labels != END) & (inputs != BOS)
    assert torch.equal(labels[inner], inputs[inner] + 1)


def test_positions_begin_at_zero_with_every_document() -> None:
    packed = pack(stream_of(3, 5, 4), 16)

    inputs, positions, labels = all_rows(packed)

    assert torch.equal(positions == 0, (inputs == BOS) | (labels == IGNORED))


def test_pieces_are_packed_with_little_waste() -> None:
    random = np.random.default_rng(0)

    packed = pack(stream_of(*random.integers(1, 400, 300)), 256)

    assert packed.waste < 0.02
    assert packed.num_sequences == pytest.approx(packed.num_targets / 256, rel=0.03)


def test_targets_are_counted_without_building_the_batch() -> None:
    packed = pack(stream_of(3, 40, 7), 16)
    sequences = np.array([1, 0])

    labels = batch_of(packed, sequences).labels

    assert packed.targets_of(sequences) == int((labels != IGNORED).sum())


def test_documents_without_a_pair_are_a_data_error() -> None:
    stream = Stream(ids=np.array([5], dtype=np.int32), starts=np.array([0, 1]), digest="d")

    with pytest.raises(DataError, match="no document has two tokens"):
        pack(stream, 16)


def test_packed_documents_give_the_states_that_they_give_alone() -> None:
    model = llama()
    packed = pack(stream_of(5, 9, 3, 25), 24)
    batch = batch_of(packed, np.arange(packed.num_sequences))

    together = last_hidden(model, batch.input_ids, batch.position_ids)

    for row in range(packed.num_sequences):
        at = 0
        for start, num in packed.pieces[packed.rows[row] : packed.rows[row + 1]]:
            ids = torch.from_numpy(packed.stream.ids[start : start + num].astype(np.int64))[None]
            alone = last_hidden(model, ids, torch.arange(num)[None])
            assert (together[row, at : at + num] - alone[0]).abs().max() < 1e-5
            at += num


@pytest.mark.parametrize("leak", [{"use_cache": True}, {"attention_mask": torch.ones(1, 12).long()}])
def test_a_cache_or_a_mask_would_let_documents_leak(leak: dict[str, object]) -> None:
    model = llama()
    ids = torch.arange(12)[None]
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])

    states = model.model(**{"input_ids": ids, "position_ids": positions, "use_cache": False, **leak})

    alone = last_hidden(model, ids[:, 5:], positions[:, 5:])
    assert (states.last_hidden_state[:, 5:] - alone).abs().max() > 0.1


def test_an_architecture_that_leaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    inner = model.model.forward
    monkeypatch.setattr(
        model.model,
        "forward",
        lambda input_ids, position_ids, use_cache: inner(
            input_ids=input_ids,
            position_ids=position_ids,
            use_cache=use_cache,
            attention_mask=torch.ones_like(input_ids),
        ),
    )

    with pytest.raises(DataError, match="in a llama model packed documents see each other"):
        check_architecture(model)


def test_an_architecture_that_changes_its_logits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(model.lm_head, "forward", lambda states: torch.tanh(states @ model.lm_head.weight.T))

    with pytest.raises(DataError, match="changes its logits after the head"):
        check_architecture(model)


def test_an_epoch_takes_each_sequence_once_and_the_next_in_another_order() -> None:
    epochs = [
        [
            int(i)
            for step in range(start, start + 5)
            for i in sequences_of_step(step, batch_size=2, num_sequences=10, seed=3)
        ]
        for start in (0, 5)
    ]

    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]


def test_a_step_may_span_epochs_and_be_larger_than_one() -> None:
    chosen = sequences_of_step(0, batch_size=7, num_sequences=3, seed=0)

    assert Counter(chosen[:6].tolist()) == {0: 2, 1: 2, 2: 2}
    assert len(chosen) == 7


def test_the_processes_share_a_step_without_overlap() -> None:
    chosen = sequences_of_step(4, batch_size=8, num_sequences=100, seed=1)

    shares = [chosen[rank::3] for rank in range(3)]

    assert sorted(np.concatenate(shares)) == sorted(chosen)
