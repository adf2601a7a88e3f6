"""Throughput, share of the devices' peak, cost, and the budget of a run."""

import logging
import re
from dataclasses import dataclass
from typing import Any

import torch

from anadil.core.errors import PreflightError
from anadil.core.format import human_seconds
from anadil.plan.instances import OTHER_FORMS, machines
from anadil.plan.model_shape import Shape, Trains, shape_from
from anadil.recipe.cluster import Cluster
from anadil.recipe.pretrain import Faults

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Turns tokens and seconds into rates; the same on every process."""

    shape: Shape
    """Sizes of the model that is trained, with its own vocabulary."""
    context: int
    """Tokens of a sequence."""
    devices: int
    peak_flops: float | None
    """Dense bf16 peak of one device, whatever the precision; None where it is not known, as on a CPU."""

    def figures(self, tokens: float, seconds: float, trains: Trains) -> dict[str, float]:
        """Rates of a part of training that took `seconds` for `tokens` targets of all devices."""
        rate = tokens / max(seconds, 1e-9)
        # Per device too: it compares runs of different sizes.
        each = rate / self.devices
        rates = {"tokens_per_s": round(rate, 1), "tokens_per_s_per_device": round(each, 1)}
        if self.peak_flops:
            # 6 N + 12 L h S, as planned, so that measured and planned MFU mean the same. Source: model_shape.
            flops = self.shape.flops_per_token(self.context, trains)
            rates["mfu"] = round(each * flops / self.peak_flops, 5)
        return rates


def rates_of(config: Any, *, context: int, devices: int, device: torch.device) -> Throughput:
    """Make the rates of a model from its `config` after its vocabulary was fitted."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_of(name) if name else None
    if name and peak is None:
        log.info("%s is not in the table of machines, so MFU is not reported", name)
    shape = shape_from(config.to_dict(), config.name_or_path or "model")
    return Throughput(shape=shape, context=context, devices=devices, peak_flops=peak)


def peak_of(name: str) -> float | None:
    """Dense bf16 peak of a GPU by its driver's name, such as `NVIDIA H100 80GB HBM3`; None for an unknown one.

    Source: anadil.plan, instances.yaml: data sheets.
    """
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    # A PCIe card of the same name has another peak. No MFU is better than a wrong one.
    if OTHER_FORMS.search(name.upper()):
        return None
    return next((each.flops_bf16 for each in machines() if each.device.split()[0] in words), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """Hours and money that a run may take."""

    hours: float | None
    usd: float | None
    usd_per_hour: float | None
    """On-demand price of all nodes together; None where it is not known."""

    def cost(self, seconds: float) -> float | None:
        """USD of the nodes for some seconds; None where the price is not known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * seconds / 3600

    def reached(self, seconds: float) -> str | None:
        """Text of `BudgetReached` after `seconds` on the nodes, over all starts; None before the budget's end."""
        cost = self.cost(seconds)
        # Hours first: they are measured, money is a price list's.
        if self.hours is not None and seconds >= self.hours * 3600:
            key, spent, budget = "hours", human_seconds(seconds), f"{self.hours:g} hours"
        elif self.usd is not None and cost is not None and cost >= self.usd:
            key, spent, budget = "usd", f"{cost:,.2f} USD", f"{self.usd:,g} USD"
        else:
            return None
        return (
            f"the budget is used up: {spent} of {budget}; training is saved, and the same command resumes "
            f"from there with a larger pretrain.faults.budget_{key}"
        )


def recipe_budget(faults: Faults, cluster: Cluster) -> RunBudget:
    """Make the recipe's budget, with the on-demand price of its nodes."""
    price = usd_per_hour(cluster)
    if faults.budget_usd is not None and price is None:
        raise PreflightError(
            f"pretrain.faults.budget_usd is {faults.budget_usd:g}, but the price of cluster.instance "
            f"({cluster.instance or 'not set'}) is not known; set cluster.instance to a type that "
            "`anadil plan` prices, or set pretrain.faults.budget_hours instead"
        )
    return RunBudget(hours=faults.budget_hours, usd=faults.budget_usd, usd_per_hour=price)


def usd_per_hour(cluster: Cluster) -> float | None:
    """On-demand price of all nodes of a run; None for an unknown one. Source: instances.yaml, which dates each."""
    # SageMaker's names are EC2's behind `ml.`.
    prices = {each.name: each.on_demand for each in machines()}
    price = prices.get((cluster.instance or "").removeprefix("ml."))
    return None if price is None else price * cluster.nodes
