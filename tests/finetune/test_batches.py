"""Chats of about one length share a batch; the order follows from seed and epoch alone."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.nn import functional
from trl.trainer import utils as trl_utils

from anadil.finetune.encode import IGNORED_LABEL
from anadil.finetune.trainer import LengthBatches, Mix, collator, token_counts
from tests.kit.llama import small_llama

MIXED = [int(length) for length in np.random.default_rng(0).lognormal(3.5, 1, 4_001)]
"""Tokens of chats such as people have them: many short answers, a few long ones."""


def padding_ratio(batches: Sequence[Sequence[int]]) -> float:
    """Tokens that are computed for each real one, where every batch is padded to its longest chat."""
    tables = [[MIXED[index] for index in batch] for batch in batches]
    return sum(max(each) * len(each) for each in tables) / sum(map(sum, tables))


def test_random_batches_compute_twice_their_tokens_and_ours_one_percent_more() -> None:
    shuffled = np.random.default_rng(1).permutation(len(MIXED))
    at_random = [shuffled[at : at + 8].tolist() for at in range(0, len(shuffled), 8)]

    assert padding_ratio(at_random) > 2
    assert padding_ratio([each.tolist() for each in LengthBatches(MIXED, 8, seed=0).batches()]) < 1.02


def test_an_epoch_has_each_chat_once_and_the_next_one_another_order() -> None:
    batches = LengthBatches(MIXED, 8, seed=0)
    first = list(batches)
    batches.set_epoch(1)
    second = list(batches)

    assert len(batches) == len(first) == 501
    for epoch in (first, second):
        assert Counter(index for batch in epoch for index in batch) == Counter(range(len(MIXED)))
    assert {tuple(sorted(batch)) for batch in first} != {tuple(sorted(batch)) for batch in second}
    lengths = [sum(MIXED[index] for index in batch) for batch in first]
    assert lengths != sorted(lengths)


def test_a_share_of_a_source_is_another_in_each_epoch_until_all_were_shown() -> None:
    own, other = np.arange(9), np.arange(9, 30)
    mix = Mix(sources=((own, 1 / 3), (other, 1.0)))
    batches = LengthBatches(MIXED[:30], 4, seed=5, mix=mix)
    shown = []
    for epoch in range(4):
        batches.set_epoch(epoch)
        shown.append({index for batch in batches for index in batch})

    assert len(batches) == 6
    assert all(len(each) == 24 and set(other.tolist()) < each for each in shown)
    assert set.union(*shown[:3]) == set(range(30))
    assert shown[3] == shown[0]
    assert np.array_equal(mix.places(5, 2), mix.places(5, 2))


def test_seed_and_epoch_alone_say_the_order() -> None:
    batches = LengthBatches(MIXED, 8, seed=3)
    batches.set_epoch(2)
    again = LengthBatches(MIXED, 8, seed=3)
    list(again)
    again.set_epoch(2)

    assert list(again) == list(batches)
    assert list(LengthBatches(MIXED, 8, seed=4)) != list(LengthBatches(MIXED, 8, seed=3))


@pytest.mark.parametrize("processes", [2, 3, 4, 16])
def test_processes_share_each_batch_that_one_process_has(processes: int) -> None:
    whole = list(LengthBatches(MIXED, 8, seed=0))

    parts = [
        list(LengthBatches(MIXED, 8, seed=0, rank=rank, processes=processes)) for rank in range(processes)
    ]

    assert [list(chain(*shared)) for shared in zip(*parts, strict=True)] == whole


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_few_chats_make_few_batches(count: int) -> None:
    batches = list(LengthBatches(MIXED[:count], 8, seed=0))

    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert max(map(len, batches)) <= 8


def test_a_process_that_no_chat_is_left_for_takes_part_without_loss() -> None:
    collate = collator(lambda rows: rows)
    row = {"input_ids": [5, 6, 7], "labels": [5, 6, 7]}

    assert collate([row]) == [row]
    (nothing,) = collate([])
    assert nothing["labels"] == [IGNORED_LABEL] * len(nothing["input_ids"])


def test_tokens_are_counted_without_reading_them() -> None:
    rows = Dataset.from_list([{"input_ids": [1] * length, "labels": [1] * length} for length in (3, 1, 7)])

    assert token_counts(rows) == [3, 1, 7]
    assert token_counts(rows.select([2, 0, 2])) == [7, 3, 7]


def test_the_head_is_computed_where_something_is_learned_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too; in TRL's own way a batch of padding and questions costs as much as one of answers."""
    seen: list[int] = []
    chunked = trl_utils._ChunkedLogProbFunction.apply

    def noted(hidden: torch.Tensor, *rest: object) -> object:
        seen.append(len(hidden))
        return chunked(hidden, *rest)

    monkeypatch.setattr(trl_utils._ChunkedLogProbFunction, "apply", noted)
    model = small_llama()
    trl_utils.add_fused_lm_head(model)
    ids = torch.arange(24).reshape(2, 12)
    labels = ids.clone()
    labels[:, :9] = IGNORED_LABEL

    with torch.no_grad():
        loss = model(input_ids=ids, labels=labels, fused_lm_head=True).loss
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)

    expected = functional.cross_entropy(logits, labels[:, 1:].flatten())
    assert seen == [6]
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
