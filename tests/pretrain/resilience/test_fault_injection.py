import logging
import math
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anadil.core.errors import RecipeError
from anadil.model.process_group import Group
from anadil.pretrain.callback import Section
from anadil.pretrain.state import State
from tests.kit.fault_injection import VARIABLE, FaultInjection, faults_from_environment


def injector(rank: int, trainer: Any = None) -> FaultInjection:
    faults = faults_from_environment()
    assert faults is not None
    callback = FaultInjection(faults)
    training: Any = SimpleNamespace(group=Group(rank=rank), trainer=trainer, state=SimpleNamespace(step=0))
    callback.training = training
    return callback


def enter(faults: FaultInjection, section: Section, num_done: int) -> None:
    faults.training.state = State(step=num_done, tokens=0, seconds=0.0)
    faults.on_section(section)


def loss_in(step: int, faults: FaultInjection) -> float:
    enter(faults, "forward", step - 1)
    return float(faults.loss(torch.tensor(2.0)))


def test_without_the_variable_there_are_no_faults(caplog: pytest.LogCaptureFixture) -> None:
    assert faults_from_environment() is None
    assert not caplog.text


def test_faults_reach_the_loss_and_the_optimizer_until_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"nan": {"step": 1}, "flip": {"step": 1}}')
    model, weight = torch.nn.L1Loss(), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight])
    trainer = SimpleNamespace(net=SimpleNamespace(model=model), tensors=lambda **_: {"weight": weight})
    one, other = torch.ones(2), torch.zeros(2)

    for_a_run = injector(0, trainer)
    for_a_run.pre_train()
    enter(for_a_run, "forward", 0)
    losses = [float(model(one, other))]
    optimizer.step()
    for_a_run.close()
    changed = weight.detach().clone()
    after = injector(0, trainer)
    after.pre_train()
    enter(after, "forward", 0)
    after.close()
    losses.append(float(model(one, other)))
    optimizer.step()

    assert math.isnan(losses[0])
    assert int((changed != 1).sum()) == 1
    assert losses[1] == 1
    assert torch.equal(weight, changed)


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


def test_faults_are_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, '{"nan": {"step": 5, "rank": 1}}')

    with caplog.at_level(logging.WARNING):
        faults_from_environment()

    assert "ANADIL_INJECT is set: this run causes faults on purpose" in caplog.text


def test_a_loss_becomes_nan_once_on_its_rank_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"nan": {"step": 5, "rank": 1}}')
    other, mine = injector(0), injector(1)

    losses = [loss_in(step, mine) for step in (4, 5, 5)]

    assert math.isnan(losses[1])
    assert (losses[0], losses[2]) == (2.0, 2.0)
    assert loss_in(5, other) == 2.0


def test_a_spike_multiplies_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"spike": {"step": 2, "factor": 10}}')

    assert loss_in(2, injector(0)) == 20.0


def test_memory_runs_out_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"oom": {"step": 2, "section": "backward"}}')
    faults = injector(0)

    enter(faults, "forward", 1)

    with pytest.raises(torch.OutOfMemoryError, match="Injected by ANADIL_INJECT"):
        enter(faults, "backward", 1)


def test_a_process_is_slow_for_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"sleep": {"step": 2, "until": 3, "seconds": 0.05}}')
    slept: list[float] = []
    monkeypatch.setattr("tests.kit.fault_injection.time.sleep", slept.append)
    faults = injector(0)
    sleeps = []

    for step in range(1, 5):
        enter(faults, "forward", step - 1)
        sleeps.append(len(slept))

    assert sleeps == [0, 1, 2, 2]
    assert slept == [0.05, 0.05]


def test_a_signal_is_sent_to_the_process_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"terminate": {"step": 2, "section": "save"}}')
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))

    enter(injector(0), "save", 2)

    assert received == [signal.SIGTERM]


def test_the_seed_decides_which_bit_is_flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"flip": {"step": 1, "seed": 3}}')
    two = [{"a": torch.zeros(50), "b": torch.zeros(50, dtype=torch.bfloat16)} for _ in range(2)]

    for one in two:
        faults = injector(0)
        enter(faults, "optimizer", 0)
        faults.flip(one)

    changed = [torch.cat([tensor.float() for tensor in one.values()]) for one in two]
    assert torch.equal(changed[0], changed[1])
    assert int((changed[0] != 0).sum()) == 1


def test_a_section_that_reports_itself_several_times_in_a_step_is_slow_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, '{"sleep": {"step": 2, "seconds": 0.05, "section": "validate"}}')
    slept: list[float] = []
    monkeypatch.setattr("tests.kit.fault_injection.time.sleep", slept.append)
    faults = injector(0)

    for _ in range(4):
        enter(faults, "validate", 2)

    assert slept == [0.05]
