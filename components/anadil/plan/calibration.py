"""Correction of predicted rates by those of a finished training, from its `training.jsonl`.

A rate holds for one model on one kind of device, so a run of any other is refused, and the plan names the run.
"""

import json
import math
import re
from dataclasses import asdict, dataclass
from statistics import median

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_table, read_verified
from anadil.core.errors import RecipeError
from anadil.plan.instances import CPU, LOCAL, OTHER_FORMS, Machine
from anadil.plan.layout import layout_of, work_of
from anadil.plan.model_shape import Shape
from anadil.plan.speed import speed
from anadil.recipe.sections import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured over predicted rates."""

    run: str
    """URI of the model whose training was measured."""
    machines: str
    """The machines that trained it, as its recipe and its summary say."""
    factor: float
    """Geometric mean over the phases."""
    low: float
    high: float


def calibrate(uri: str, recipe: Recipe, machine: Machine, shape: Shape) -> Calibration:
    """Calibration of a plan by the training that made a model artifact."""
    manifest = finished_manifest(uri, "model")
    ran, summary = Recipe.model_validate(manifest.recipe), read_table(uri, manifest, "training.json")
    device, devices, instance = str(summary["device"]), int(str(summary["world_size"])), ran.cluster.instance
    pairs: dict[str, tuple[object, object]] = {
        "base.model": (ran.base.model, recipe.base.model),
        "the number of parameters": (summary["parameters"], shape.parameters),
        "the device": (device, device if _is_device(device, machine) else machine.device),
        "cluster.instance": (instance, instance if not instance or machine.name == LOCAL else machine.name),
        "the number of devices on each node": (devices % machine.devices, 0),
        "precision": (summary["precision"], work_of(recipe, machine).compute),
    }
    now = asdict(work_of(recipe, machine))
    pairs |= {
        name: (value, now[name]) for name, value in asdict(work_of(ran, machine)).items() if name != "compute"
    }
    if reasons := [
        f"{name} is {was}, not {is_now}" for name, (was, is_now) in pairs.items() if was != is_now
    ]:
        raise RecipeError(
            f"--measured {uri}: {'; '.join(reasons)}; name a run of this model on such machines"
        )
    nodes, rates = devices // machine.devices, dict[int, list[float]]()
    for line in map(json.loads, read_verified(uri, manifest, "training.jsonl").splitlines()):
        if "tokens_per_s" in line:
            rates.setdefault(line["phase"] - 1, []).append(line["tokens_per_s"])
    ratios, layout = list[float](), layout_of(ran, machine, nodes)
    for phase, lines in rates.items():
        predicted = speed(
            shape, layout, work_of(ran, machine, ran.pretrain.phases[phase].trains), machine, nodes
        )
        # Predictions count padding too. Until the first line of a phase, kernels and buffers are made.
        filled = predicted.tokens_per_s * (1 - float(str(summary["packing_waste"])))
        ratios += [median(lines[1:]) / filled] if len(lines) > 1 else []
    if not ratios:
        raise RecipeError(
            f"--measured {uri}: no phase logged two lines; name a longer run, or lower its pretrain.log_every"
        )
    machines = f"{nodes} x {instance} ({devices} x {device})" if instance else f"{devices} x {device}"
    factor = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return Calibration(run=uri, machines=machines, factor=factor, low=min(ratios), high=max(ratios))


def _is_device(name: str, machine: Machine) -> bool:
    """True if a driver's name, such as `NVIDIA A100-SXM4-40GB`, is the machine's device."""
    if CPU in (machine.device, name.upper()):
        return machine.device == name.upper()
    (kind, *size), words = machine.device.upper().split(), set(re.split(r"[^A-Z0-9]+", name.upper()))
    sizes = {word for word in words if re.fullmatch(r"\d+GB", word)}
    return (
        kind in words
        and not OTHER_FORMS.search(name.upper())
        and (not size or not sizes or "".join(size) in sizes)
    )
