"""The question to the base: what does it need at position 0?"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anadil.encode.packing import Packed, pack
from anadil.encode.token_stream import TokenStream
from anadil.model.loss import IGNORED
from anadil.pretrain.data.packing import Batch
from anadil.pretrain.first_position import (
    LEANS_FROM,
    FirstPosition,
    probe_first_position,
    tell_first_position,
)
from tests.kit.pretraining import make_tokenizer

BOS = 297


@dataclass
class Model:
    """Gives each target one nat behind BOS at position 0, and more without; as many groups score as there are."""

    without: float
    groups: int = 1

    @property
    def mesh(self) -> SimpleNamespace:
        return SimpleNamespace(data=self.groups)

    def nats(self, batch: Batch) -> torch.Tensor:
        begins = batch.borders[:-1].tolist()
        ends = batch.borders[1:].tolist()
        ids, labels = batch.input_ids.flatten(), batch.labels.flatten()
        total = 0.0
        for begin, end in zip(begins, ends, strict=True):
            each = 1.0 if ids[begin] == BOS else self.without
            total += each * int((labels[begin:end] != IGNORED).sum())
        return torch.tensor(total)

    def add_up(self, nats: torch.Tensor) -> torch.Tensor:
        return nats * self.groups


def packed(*sizes: int, length: int = 64) -> Packed:
    documents = [[BOS, *range(size), 298] for size in sizes]
    starts = np.cumsum([0, *map(len, documents)])
    return pack(
        TokenStream(ids=np.concatenate(documents).astype(np.int32), starts=starts, digest="d"), length
    )


def ask(model: Any, sequences: Packed) -> FirstPosition | None:
    return probe_first_position(model, sequences)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("length", [8, 64, 200])
def test_the_same_targets_are_scored_behind_bos_and_without(length: int, groups: int) -> None:
    found = ask(Model(without=3.5, groups=groups), packed(90, 20, 250, 81, length=length))

    assert found is not None
    assert (found.with_bos, found.without) == pytest.approx((1.0, 3.5))
    assert found.without - found.with_bos > LEANS_FROM
    assert 0 < found.targets <= length


def test_a_base_that_does_not_mind_does_not_lean() -> None:
    found = ask(Model(without=0.99), packed(90, 20))

    assert found is not None
    assert found.without - found.with_bos <= LEANS_FROM


def test_short_documents_are_no_answer() -> None:
    assert ask(Model(without=3.5), packed(5, 20, 60)) is None


@pytest.mark.parametrize(("bos", "warned"), [(BOS, False), (None, True)])
def test_a_base_that_leans_on_a_bos_that_is_not_set_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bos: int | None, warned: bool
) -> None:
    sequences = packed(90)
    stream = replace(sequences.stream, bos=bos)
    found = FirstPosition(with_bos=3.54, without=5.85, targets=640)

    with caplog.at_level(logging.INFO):
        tell_first_position(found, replace(sequences, stream=stream), make_tokenizer(tmp_path))

    assert "3.54 nats a token behind <|begin_of_text|> and 5.85 without it (640 targets)" in caplog.text
    assert any(record.levelno == logging.WARNING for record in caplog.records) == warned
