import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Shard

from anadil.pretrain.lr_schedule import ends_phase, phase_of, rate_factor
from anadil.pretrain.optimizer import (
    MAKERS,
    allocate_state,
    free_state,
    make_optimizer,
    set_rates,
    state_tensors,
    train_only,
)
from anadil.recipe.pretrain import OPTIMIZERS, Phase, Pretrain
from tests.kit.ranks import in_ranks

PHASE = Phase(trains="all", steps=8, lr=0.01, embedding_lr=0.002)
SETTINGS = Pretrain(phases=(PHASE,), weight_decay=0.1, embedding_weight_decay=0.0)
EMBEDDINGS = ("embed.weight", "head.weight")
IDS = torch.arange(12).reshape(3, 4) % 11


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, dtype=dtype)
        self.inner = nn.Linear(6, 6, bias=False, dtype=dtype)
        self.norm = nn.RMSNorm(6, dtype=dtype)
        self.head = nn.Linear(6, 11, bias=False, dtype=dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.inner(self.embed(ids))))
        return logits.float().square().sum()


def model(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(3)
    return Model(dtype)


def step(made: Model, optimizer: torch.optim.Optimizer, ids: torch.Tensor = IDS) -> float:
    loss = made(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def parameters(made: nn.Module) -> dict[str, nn.Parameter]:
    return dict(made.named_parameters())


def test_matrices_vectors_and_embeddings_have_rates_and_decays_of_their_own() -> None:
    named = parameters(model())

    optimizer = make_optimizer(named, PHASE, SETTINGS, EMBEDDINGS)

    names = {id(parameter): name for name, parameter in named.items()}
    found = {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert found == {
        "embed.weight": (0.002, 0.0),
        "inner.weight": (0.01, 0.1),
        "norm.weight": (0.01, 0.0),
        "head.weight": (0.002, 0.0),
    }


def test_embeddings_are_as_the_matrices_where_the_recipe_says_nothing() -> None:
    phase = PHASE.model_copy(update={"embedding_lr": None})
    settings = SETTINGS.model_copy(update={"embedding_weight_decay": None})

    optimizer = make_optimizer(parameters(model()), phase, settings, EMBEDDINGS)

    rates = {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert rates == {(0.01, 0.1), (0.01, 0.0)}


def test_rates_are_the_factor_of_each_peak_however_often_they_are_set() -> None:
    optimizer = make_optimizer(parameters(model()), PHASE, SETTINGS, EMBEDDINGS)

    for factor in (0.5, 0.1):
        set_rates(optimizer, factor)

    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([0.0002, 0.001])


def test_frozen_parameters_have_no_state_no_gradient_and_stay() -> None:
    made = model()
    named = parameters(made)
    made(IDS).backward()
    before = {name: parameter.detach().clone() for name, parameter in named.items()}

    train_only(named, EMBEDDINGS)
    optimizer = make_optimizer(named, PHASE, SETTINGS, EMBEDDINGS)
    assert all(parameter.grad is None for parameter in named.values())
    loss = made(IDS)
    loss.backward()
    optimizer.step()

    assert {name for name, parameter in named.items() if parameter.grad is not None} == set(EMBEDDINGS)
    assert sorted(state_tensors(optimizer, named)) == sorted(
        f"{moment} {name}" for moment in ("exp_avg", "exp_avg_sq") for name in EMBEDDINGS
    )
    changed = {name for name, parameter in named.items() if not torch.equal(parameter, before[name])}
    assert changed == set(EMBEDDINGS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_keeps_the_moments_that_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pretrain, "optimizer", name)
    made = model()
    optimizer = make_optimizer(parameters(made), PHASE, SETTINGS, EMBEDDINGS)
    step(made, optimizer)

    for parameter, state in optimizer.state.items():
        kept = {key for key, value in state.items() if value.shape == parameter.shape}
        assert kept == set(OPTIMIZERS[name].moments)
    assert MAKERS.keys() == OPTIMIZERS.keys()


def test_allocated_moments_are_those_that_a_step_would_make() -> None:
    made = model()
    stepped = make_optimizer(parameters(made), PHASE, SETTINGS, EMBEDDINGS)
    step(made, stepped)
    allocated = make_optimizer(parameters(made), PHASE, SETTINGS, EMBEDDINGS)

    allocate_state(allocated)

    for parameter in made.parameters():
        one, other = stepped.state[parameter], allocated.state[parameter]
        assert {key: (value.shape, value.dtype, value.device) for key, value in one.items()} == {
            key: (value.shape, value.dtype, value.device) for key, value in other.items()
        }


def test_moments_and_gradients_are_freed_at_a_phase_border() -> None:
    made = model()
    optimizer = make_optimizer(parameters(made), PHASE, SETTINGS, EMBEDDINGS)
    made(IDS).backward()
    optimizer.step()
    held = [weakref.ref(tensor) for tensor in state_tensors(optimizer, parameters(made)).values()]
    held += [weakref.ref(parameter.grad) for parameter in made.parameters() if parameter.grad is not None]
    assert all(reference() is not None for reference in held)

    free_state(optimizer)
    gc.collect()

    assert [reference() for reference in held] == [None] * 12


def on_several_meshes(_rank: int) -> None:
    flat, square = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
    several = {
        "a": nn.Parameter(distribute_tensor(torch.ones(4, 4), flat, [Shard(0)])),
        "b": nn.Parameter(distribute_tensor(torch.ones(4, 4), square, [Shard(0), Shard(1)])),
        "c": nn.Parameter(torch.ones(4, 4)),
    }
    for parameter in several.values():
        parameter.grad = torch.ones_like(parameter)

    make_optimizer(several, PHASE, SETTINGS, ()).step()

    changed = [p.full_tensor() if isinstance(p, DTensor) else p for p in several.values()]
    assert torch.equal(changed[0], changed[1])
    assert torch.equal(changed[0], changed[2])


def test_parameters_on_different_meshes_and_on_none_have_one_optimizer() -> None:
    in_ranks(on_several_meshes, 2)


PHASES = (Phase(trains="embeddings", steps=10, lr=1.0), Phase(trains="all", steps=20, lr=0.5))
RATES = Pretrain(phases=PHASES, warmup_fraction=0.2, final_lr_fraction=0.1)


def test_a_step_belongs_to_the_phase_that_its_number_falls_into_and_phases_end_after_their_last() -> None:
    assert [phase_of(step, PHASES) for step in (0, 9, 10, 29)] == [(0, 0), (0, 9), (1, 0), (1, 19)]
    assert [step for step in range(40) if ends_phase(step, PHASES)] == [10, 30]


def test_the_rate_rises_to_the_peak_then_falls_to_its_tenth() -> None:
    rates = [rate_factor(step, PHASES[0], RATES) for step in range(10)]

    assert rates[:2] == [0.5, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[5] == pytest.approx(0.55)
    assert rates[9] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("steps", "step", "changes"),
    [
        (1, 0, {}),
        (20, 0, {"warmup_fraction": 0.0}),
        (10, 9, {"warmup_fraction": 1.0}),
        (10, 9, {"schedule": "wsd", "decay_fraction": 0.0}),
    ],
)
def test_the_rate_is_at_the_peak_where_nothing_rises_or_falls(
    steps: int, step: int, changes: dict[str, Any]
) -> None:
    phase = Phase(trains="all", steps=steps, lr=0.3)

    assert rate_factor(step, phase, RATES.model_copy(update=changes)) == pytest.approx(1.0, rel=0.01)


WSD = RATES.model_copy(update={"schedule": "wsd", "decay_fraction": 0.3})


def test_wsd_stays_at_the_peak_then_falls_in_a_line() -> None:
    factors = [rate_factor(step, PHASES[0], WSD) for step in range(10)]

    assert factors == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.7, 0.4, 0.1])


def test_the_warm_up_comes_first_where_it_overlaps_the_fall() -> None:
    settings = WSD.model_copy(update={"warmup_fraction": 0.5, "decay_fraction": 0.9})

    factors = [rate_factor(step, PHASES[0], settings) for step in range(10)]

    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_factor_is_above_nothing_and_never_above_the_peak(schedule: str) -> None:
    for steps in (1, 2, 3, 7, 50):
        for share in (0.0, 0.05, 0.5, 1.0):
            settings = RATES.model_copy(
                update={"schedule": schedule, "warmup_fraction": share, "decay_fraction": 1 - share}
            )
            phase = Phase(trains="all", steps=steps, lr=1.0)
            assert all(0 < rate_factor(step, phase, settings) <= 1 for step in range(steps))
