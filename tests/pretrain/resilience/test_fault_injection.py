import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anadil.core.errors import RecipeError
from anadil.model.process_group import Group
from anadil.pretrain.state import State
from tests.kit.fault_injection import VARIABLE, FaultInjection, faults_from_environment


def loss_in(step: int, faults: FaultInjection, rank: int) -> float:
    state, trainer = State(step=step - 1, tokens=0, seconds=0.0), None
    training: Any = SimpleNamespace(group=Group(rank=rank), trainer=trainer, state=state)
    faults.training = training
    faults.on_section("forward")
    return float(faults.loss(torch.tensor(2.0)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"explode": {"step": 1}}', "explode: Extra inputs are not permitted"),
        ('{"nan": {"step": 0}}', "nan.step: must be above 0"),
        ('{"nan": {"step": 1, "section": "lunch"}}', "nan.section: must be 'start'"),
        ("[]", "all: must be a table of keys"),
    ],
)
def test_what_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv(VARIABLE, text)

    with pytest.raises(RecipeError) as caught:
        faults_from_environment()

    assert str(caught.value).startswith(f"{VARIABLE}: ")
    assert words in str(caught.value)


def test_faults_are_announced_and_happen_once_on_their_rank_and_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert faults_from_environment() is None
    assert not caplog.text
    monkeypatch.setenv(
        VARIABLE, '{"nan": {"step": 5, "rank": 1}, "spike": {"step": 6, "factor": 10, "rank": 1}}'
    )
    faults = faults_from_environment()
    assert faults is not None

    losses = [loss_in(step, FaultInjection(faults), rank=0) for step in (5, 6)]
    mine = FaultInjection(faults)
    losses += [loss_in(step, mine, rank=1) for step in (4, 5, 5, 6)]

    assert "ANADIL_INJECT is set: this run causes faults on purpose" in caplog.text
    assert losses[:3] + losses[4:] == [2.0, 2.0, 2.0, 2.0, 20.0]
    assert math.isnan(losses[3])
