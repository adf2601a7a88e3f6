import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from anadil.core.errors import DataError
from anadil.model.attention import use_packed_attention
from anadil.model.loss import IGNORED
from anadil.pretrain.data.batch import DEPTH, Prefetcher, batch_of
from anadil.pretrain.data.order import sequences_at, sequences_of_step
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.prepare import check_architecture
from anadil.tokens.packing import Packed, TokenStream, _best_fit, pack
from tests.kit.llama import small_llama

BOS, END = 1, 2


def stream_of(*sizes: int) -> TokenStream:
    """Documents `[BOS] ids [END]` whose ids are all different."""
    ids: list[int] = []
    starts = [0]
    for size in sizes:
        first = 10 + len(ids)
        ids += [BOS, *range(first, first + size), END]
        starts.append(len(ids))
    return TokenStream(ids=np.array(ids, dtype=np.int32), starts=np.array(starts), digest="d")


def all_rows(packed: Packed) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = batch_of(packed, np.arange(packed.num_sequences))
    return batch.input_ids, batch.position_ids, batch.labels


def llama() -> LlamaForCausalLM:
    model = small_llama(vocab_size=300, initializer_range=0.2)
    use_packed_attention(model)
    return model


def test_every_token_after_the_first_is_predicted_exactly_once() -> None:
    stream = stream_of(3, 40, 7, 1, 16, 90)

    packed = pack(stream, 16)

    expected = Counter(
        token
        for begin, end in pairwise(stream.first_starts(99))
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


def test_borders_are_the_begins_of_documents_of_rows_and_of_paddings() -> None:
    packed = pack(stream_of(3, 5, 4, 14), 16)

    batch = batch_of(packed, np.arange(packed.num_sequences))

    assert batch.borders.tolist() == [0, 15, 16, 20, 26, 31, 32]
    assert batch.borders.dtype == torch.int32
    begins = torch.nonzero(batch.position_ids.flatten() == 0).flatten()
    assert batch.borders[:-1].tolist() == begins.tolist()


def test_a_batch_goes_to_a_device_and_its_borders_stay() -> None:
    batch = batch_of(pack(stream_of(3, 40), 16), np.array([0]))

    moved = batch.to(torch.device("meta"))

    assert moved.input_ids.is_meta
    assert moved.labels.is_meta
    assert moved.borders is batch.borders


def one_at_a_time(sizes: np.ndarray, length: int) -> list[int]:
    """Best fit without haste: the largest piece first, into the fullest sequence with room for it."""
    rooms: list[int] = []
    stacks: dict[int, list[int]] = {}
    chosen = [0] * len(sizes)
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        room = min((room for room, stack in stacks.items() if stack and room >= size), default=0)
        if room:
            number = stacks[room].pop()
        else:
            number, room = len(rooms), length
            rooms.append(length)
        rooms[number] = room - size
        if room > size:
            stacks.setdefault(room - size, []).append(number)
        chosen[piece] = number
    return chosen


@pytest.mark.parametrize("length", [8, 17, 256, 40_000])
@pytest.mark.parametrize("num", [1, 5, 400])
def test_pieces_placed_at_once_lie_where_one_after_another_they_would(length: int, num: int) -> None:
    random = np.random.default_rng(length + num)
    sizes = np.minimum(random.lognormal(np.log(length / 8 + 1), 1.5, num).astype(np.int64) + 1, length)

    assert _best_fit(sizes, length).tolist() == one_at_a_time(sizes, length)


@pytest.mark.slow
def test_a_million_documents_are_packed_in_seconds() -> None:
    random = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(random.lognormal(5, 1.2, 1_000_000).astype(np.int64) + 2)])
    stream = TokenStream(ids=np.zeros(1, dtype=np.int32), starts=starts, digest="d")

    started = time.process_time()
    packed = pack(stream, 2048)

    assert time.process_time() - started < 30
    assert packed.waste < 0.001


def test_documents_without_a_pair_are_a_data_error() -> None:
    stream = TokenStream(ids=np.array([5], dtype=np.int32), starts=np.array([0, 1]), digest="d")

    with pytest.raises(DataError, match="no document has two tokens"):
        pack(stream, 16)


def test_packed_documents_give_the_states_that_they_give_alone() -> None:
    model = llama()
    packed = pack(stream_of(5, 9, 3, 25), 24)
    batch = batch_of(packed, np.arange(packed.num_sequences))

    together = last_hidden(model, batch.input_ids, batch.position_ids, batch.borders)

    for row in range(packed.num_sequences):
        at = 0
        for start, num, _ in packed.pieces[packed.rows[row] : packed.rows[row + 1]]:
            ids = torch.from_numpy(packed.stream.ids[start : start + num].astype(np.int64))[None]
            alone = last_hidden(
                model, ids, torch.arange(num)[None], torch.tensor([0, num], dtype=torch.int32)
            )
            assert (together[row, at : at + num] - alone[0]).abs().max() < 1e-5
            at += num


def test_an_architecture_that_leaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    inner = model.model.forward
    monkeypatch.setattr(
        model.model,
        "forward",
        lambda input_ids, position_ids, use_cache, borders=None: inner(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache
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
            for i in sequences_of_step(step, batch_size=2, blocks=np.array([0, 10]), seed=3)
        ]
        for start in (0, 5)
    ]

    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]


def test_a_step_may_span_epochs_and_be_larger_than_one() -> None:
    chosen = sequences_of_step(0, batch_size=7, blocks=np.array([0, 3]), seed=0)

    assert Counter(chosen[:6].tolist()) == {0: 2, 1: 2, 2: 2}
    assert len(chosen) == 7


def with_bos(*sizes: int) -> TokenStream:
    return replace(stream_of(*sizes), bos=BOS)


@pytest.mark.parametrize("length", [8, 9, 16, 64])
def test_bos_stands_before_every_piece_and_is_never_predicted(length: int) -> None:
    sizes = (3, 40, 7, 1, length - 1, length, length + 1, 3 * length)

    packed = pack(with_bos(*sizes), length)

    inputs, positions, labels = all_rows(packed)
    is_text = torch.zeros_like(inputs, dtype=torch.bool)
    for row, borders in enumerate(positions == 0):
        for begin in torch.nonzero(borders).flatten().tolist():
            is_text[row, begin] = bool((labels[row, begin : begin + 2] != IGNORED).any())
    assert (inputs[is_text] == BOS).all()
    assert BOS not in labels
    expected = Counter(stream_of(*sizes).ids[:].tolist())
    del expected[BOS]
    assert Counter(labels[labels != IGNORED].tolist()) == expected
    assert packed.num_targets == expected.total()


def test_the_token_behind_bos_in_a_later_piece_is_context_alone() -> None:
    packed = pack(with_bos(20), 16)  # 21 pairs: 16 in the first piece, 5 behind BOS and the token before them

    inputs, _, labels = all_rows(packed)

    at = int(torch.nonzero(inputs[1] == BOS)[0])
    assert packed.pieces[:].tolist() == [[0, 16, 0], [16, 5, 1]]
    assert inputs[1, at : at + 3].tolist() == [BOS, *packed.stream.ids[16:18]]
    assert labels[1, at : at + 3].tolist() == [IGNORED, *packed.stream.ids[17:19]]


def test_blocks_follow_each_other_in_an_order_of_each_epoch_and_so_do_their_sequences() -> None:
    blocks = np.array([0, 4, 4, 9, 20])
    places = np.arange(60)

    chosen = sequences_at(places, blocks=blocks, seed=1)

    epochs = chosen.reshape(3, 20)
    assert [sorted(epoch) for epoch in epochs.tolist()] == [list(range(20))] * 3
    turns = [np.searchsorted(blocks, epoch, side="right") - 1 for epoch in epochs]
    # Each block is read once, from its first sequence to its last.
    assert all(np.count_nonzero(np.diff(turn)) == 2 for turn in turns)
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    assert chosen[7:31].tolist() == sequences_at(places[7:31], blocks=blocks, seed=1).tolist()
    assert chosen[::-1].tolist() == sequences_at(places[::-1], blocks=blocks, seed=1).tolist()


def test_each_step_gets_its_own_in_order() -> None:
    made: list[int] = []

    def make(step: int) -> str:
        made.append(step)
        return f"batch {step}"

    with Prefetcher(make, 3, 8) as ahead:
        got = [ahead.get(step) for step in range(3, 8)]

    assert got == [f"batch {step}" for step in range(3, 8)]
    assert made == [3, 4, 5, 6, 7]


def test_what_comes_next_is_made_while_the_step_runs() -> None:
    ready = threading.Semaphore(0)

    def make(step: int) -> int:
        ready.release()
        return step

    with Prefetcher(make, 0, 10) as ahead:
        ahead.get(0)
        begun = [ready.acquire(timeout=10) for _ in range(1 + DEPTH)]
        beyond = ready.acquire(timeout=0.1)

    assert begun == [True] * (1 + DEPTH)
    assert not beyond


def test_an_error_is_raised_in_its_step_and_the_next_goes_on() -> None:
    def make(step: int) -> int:
        if step == 1:
            raise DataError("step 1: no")
        return step

    with Prefetcher(make, 0, 3) as ahead:
        first = ahead.get(0)
        with pytest.raises(DataError, match="step 1: no"):
            ahead.get(1)
        third = ahead.get(2)

    assert (first, third) == (0, 2)


def test_steps_can_be_left_out_and_done_again() -> None:
    with Prefetcher(lambda step: step, 0, 100) as ahead:
        got = [ahead.get(0), ahead.get(1)]
        for step in (1, 50):
            ahead.restart(step)
            got.append(ahead.get(step))

    assert got == [0, 1, 1, 50]


def test_closing_leaves_what_was_not_begun_and_ends_the_thread() -> None:
    made: list[int] = []
    begun = threading.Event()

    def make(step: int) -> None:
        begun.set()
        time.sleep(0.05)
        made.append(step)

    with Prefetcher(make, 0, 100):
        begun.wait()

    assert made == [0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("anadil-prefetch")]
