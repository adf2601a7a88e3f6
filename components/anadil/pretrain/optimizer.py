"""The optimizer of a phase: its groups, its rates, and its moments as named tensors.

It is made after parameters are spread over processes: before, it would hold other tensors and change nothing.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from anadil.recipe.pretrain import OPTIMIZERS, Phase, Pretrain

Parameters = Mapping[str, nn.Parameter]
"""By name; a tied one once."""
Groups = list[dict[str, Any]]


def _adamw(groups: Groups, settings: Pretrain) -> torch.optim.Optimizer:
    # torch's fused kernel changes all tensors of a group at once, on a GPU and, measured with torch
    # 2.13, in a sixth of the time on a CPU.
    return torch.optim.AdamW(groups, betas=settings.betas, fused=True)


MAKERS: Mapping[str, Callable[[Groups, Pretrain], torch.optim.Optimizer]] = {"adamw": _adamw}
"""How each of `OPTIMIZERS` is made from groups of parameters with `lr` and `weight_decay`."""


def train_only(parameters: Parameters, chosen: Collection[str]) -> None:
    """Freeze all parameters but the chosen ones, and free every gradient."""
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in chosen)
        # A gradient of the last phase would be clipped and applied once more.
        parameter.grad = None


def make_optimizer(
    parameters: Parameters, phase: Phase, settings: Pretrain, embeddings: Collection[str]
) -> torch.optim.Optimizer:
    """Make the recipe's optimizer over the parameters that require a gradient, at the phase's peak rates."""
    groups: dict[Any, dict[str, Any]] = {}
    moments = OPTIMIZERS[settings.optimizer].moments
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            continue
        lr, decay = phase.lr, settings.weight_decay if parameter.ndim >= 2 else 0.0
        if name in embeddings:
            lr = phase.lr if phase.embedding_lr is None else phase.embedding_lr
            of_embeddings = settings.embedding_weight_decay
            decay = settings.weight_decay if of_embeddings is None else of_embeddings
        # Decay would move the rows that a phase of new rows leaves as they are.
        decay = 0.0 if phase.trains == "new_rows" else decay
        # Fused kernels want the tensors of a group on one mesh, so each mesh is a group of its own.
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        entry = {"params": [], "lr": lr, "peak_lr": lr, "weight_decay": decay, "moments": moments}
        group = groups.setdefault((name in embeddings, parameter.ndim < 2, mesh), entry)
        group["params"].append(parameter)
    return MAKERS[settings.optimizer](list(groups.values()), settings)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's rate to its peak times `factor`."""
    for group in optimizer.param_groups:
        # From the peak each time: a factor on the last rate would drift after a resume.
        group["lr"] = group["peak_lr"] * factor


def set_eps(optimizer: torch.optim.Optimizer, eps: float) -> None:
    """Set what Adam adds to the root of each second moment; never 0, which would make NaN of a row without a gradient."""
    for group in optimizer.param_groups:
        group["eps"] = max(eps, 1e-12)


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocate zero moments at step 0, spread as the parameters are, to load into."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                # torch's fused kernel wants the step beside the parameter.
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{name: torch.zeros_like(parameter.detach()) for name in group["moments"]},
            }


def state_tensors(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, torch.Tensor]:
    """Moments of trained parameters by `<moment> <parameter>`, without step counts: see `set_step`."""
    moments = {each: group["moments"] for group in optimizer.param_groups for each in group["params"]}
    return {
        f"{moment} {name}": optimizer.state[parameter][moment]
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in moments[parameter]
    }


def set_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Set the step count of the moments: the steps done in this phase."""
    for state in optimizer.state.values():
        state["step"].fill_(step)


def free_state(optimizer: torch.optim.Optimizer) -> None:
    """Free moments and gradients at a phase's end, whoever else still holds the optimizer."""
    optimizer.zero_grad(set_to_none=True)
    optimizer.state.clear()
    optimizer.param_groups.clear()
