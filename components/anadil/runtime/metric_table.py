"""Metrics of training. One row feeds log, file, tracker, Prometheus, the dashboard and the reference.

A row and the value are all that a metric takes. A value that follows from the others of a logged line stands in the
row; any other is recorded by the callback that measures it.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from anadil.core.stages import WRITERS, forms_of

Sink = Literal["log", "jsonl", "tracker", "prometheus"]
ALL: tuple[Sink, ...] = ("log", "jsonl", "tracker", "prometheus")
"""Every logged line: the run's log, `training.jsonl`, what `tracking.uri` names and Prometheus."""

GAUGE: tuple[Sink, ...] = ("prometheus",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric."""

    name: str
    """In logs and files; `loss/<source>` is a row for all names behind the slash."""
    doc: str
    """A sentence without full stop."""
    unit: str = "none"
    """As Grafana names it."""
    sinks: tuple[Sink, ...] = ALL
    group: Literal["train", "validation", "system"] = "system"
    """First part of the key of pre-training's curve in MLflow."""
    stages: str = "pretrain"
    """Stages that have it."""
    written_out: str = ""
    """For Prometheus, where `name` says too little beside metrics of others."""
    panel: str = ""
    """Title in the dashboard of training; empty: it has no panel."""
    by_rank: bool = False
    """Each process has its own value."""
    value: Callable[[Mapping[str, float]], float] | None = None
    """Computes it from the values of a logged line; None: it is recorded."""

    @property
    def gauge(self) -> str:
        """Name for Prometheus."""
        return gauge_name(self.name)


METRICS = (
    MetricSpec(name="info", doc="1; the label version is that of the program", sinks=GAUGE, stages=""),
    MetricSpec(name="start_timestamp_s", doc="Unix time at which the stage began", sinks=GAUGE, stages=""),
    MetricSpec(name="step", doc="Optimizer step that was logged last", unit="short", sinks=("log", "jsonl", "prometheus"), stages="",
               panel="Step"),
    MetricSpec(name="last_step_timestamp_s", doc="Unix time at which that step was logged", sinks=GAUGE,
               stages=""),
    MetricSpec(name="checkpoint_step", doc="Optimizer step of the newest checkpoint of this start",
               sinks=GAUGE),
    MetricSpec(name="checkpoint_timestamp_s", doc="Unix time at which that checkpoint was written",
               sinks=GAUGE),
    MetricSpec(name="phase", doc="Phase of the recipe, from 1", written_out="training_phase", panel="Phase"),
    MetricSpec(name="loss", doc="Mean loss of the step, nats per token", group="train", stages="pretrain, finetune",
               panel="Loss"),
    MetricSpec(name="loss/<source>", doc="Mean loss of a source of the recipe (part), nats per token, since the line before",
               group="train", written_out="source_loss"),
    MetricSpec(name="kl", doc="Divergence from the base where it is the teacher, nats per token, since the line before",
               group="train", panel="Divergence from the base"),
    MetricSpec(name="teacher_weight", doc="Weight of that divergence in the loss", group="train"),
    MetricSpec(name="lr", doc="Learning rate of the step", unit="sci", group="train", stages="pretrain, finetune",
               written_out="learning_rate", panel="Learning rate"),
    MetricSpec(name="grad_norm", doc="Norm of the gradients before clipping; it rises before the loss does", group="train",
               stages="pretrain, finetune", panel="Gradient norm"),
    MetricSpec(name="expert_load_max", doc="Tokens of the busiest expert of any layer over the mean of its layer, in the step",
               group="train"),
    MetricSpec(name="experts_idle", doc="Experts of all layers that got no token in the step", group="train"),
    MetricSpec(name="rows_unseen", doc="Rows of new tokens that no batch of a phase of new_rows has held so far", group="train"),
    MetricSpec(name="accuracy", doc="Share of target tokens that the model would have chosen", group="train",
               stages="finetune"),
    MetricSpec(name="tokens", doc="Target tokens so far, over all starts", unit="short", panel="Tokens"),
    MetricSpec(name="tokens/<source>", doc="Target tokens of a source of the recipe (part) so far, over all starts",
               written_out="source_tokens"),
    MetricSpec(name="seconds", doc="Time in training so far, over all starts", unit="s", written_out="elapsed_seconds",
               panel="Time in training"),
    MetricSpec(name="tokens_per_s", doc="Target tokens per second of all devices, since the line before", unit="short",
               panel="Throughput"),
    MetricSpec(name="tokens_per_s_per_device", doc="Target tokens per second of one device", unit="short",
               written_out="tokens_per_second_per_device"),
    MetricSpec(name="mfu", doc="Share of the GPUs' dense bf16 peak, since the line before; for GPUs that `anadil plan` knows",
               unit="percentunit", panel="Model FLOPs utilization"),
    MetricSpec(name="goodput", doc="Share of the time since the first start in steps that count", unit="percentunit",
               panel="Goodput"),
    MetricSpec(name="time_share", doc="Share of the time since the first start by cause (part); all add up to 1", unit="percentunit",
               sinks=("tracker", "prometheus")),
    MetricSpec(name="data_wait_s", doc="Longest wait of a process for data, median per step of the last 20", unit="s",
               panel="Wait for data"),
    MetricSpec(name="straggler_ratio", doc="Own work of the slowest process over the median"),
    MetricSpec(name="checkpoint_stall_s", doc="Time that training waits for a checkpoint, mean", unit="s",
               panel="Checkpoint stall"),
    MetricSpec(name="cost_usd", doc="On-demand price of the machines so far; where cluster.instance has a known price",
               unit="currencyUSD", panel="Cost"),
    MetricSpec(name="validation_bits_per_byte", doc="Bits per byte of held-out text at the last validation", group="validation",
               panel="Bits per byte"),
    MetricSpec(name="validation_bits_per_byte/<source>", doc="The same of a source of the recipe (part)", group="validation",
               written_out="source_validation_bits_per_byte"),
    MetricSpec(name="peak_memory_bytes", doc="Peak memory of each process's GPU in the current phase", unit="bytes",
               panel="Peak memory", by_rank=True),
    MetricSpec(name="resident_memory_bytes", doc="Memory of the first process in its machine", unit="bytes"),
    MetricSpec(name="own_work_s", doc="Own work of each process per step, without waits; one above the rest slows all down", unit="s",
               sinks=GAUGE, panel="Own work", by_rank=True),
    MetricSpec(name="own_data_wait_s", doc="Part of own work in which the process waited for data", unit="s", sinks=GAUGE,
               by_rank=True),
)  # fmt: skip
"""In the order of a logged line."""
BY_NAME: Mapping[str, MetricSpec] = {each.name: each for each in METRICS}


def spec_of(name: str) -> MetricSpec | None:
    """Row of a metric, also of one of a source; None where it has none."""
    head, slash, _ = name.partition("/")
    return BY_NAME.get(name) or (BY_NAME.get(f"{head}/<source>") if slash else None)


def gauge_name(name: str) -> str:
    """Prometheus' name of a metric, or of a figure that has no row; what stands behind a slash is a label of it.

    Source: Prometheus, metric and label naming: base units, written out.
    """
    head = name.partition("/")[0]
    spec, name = spec_of(name) or BY_NAME.get(head), head
    name = spec.written_out if spec and spec.written_out else name
    name = re.sub(r"_per_s$", "_per_second", name)
    name = re.sub(r"_s$", "_seconds", name)
    return "anadil_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def curve_key(stage: str, name: str) -> str:
    """MLflow's key of a curve, whose page groups by the part before the slash; `system/` has a page of its own."""
    if stage in [WRITERS[form].name for form in forms_of("tokenizer")]:
        return f"{stage}/{name}"
    spec = spec_of(name)
    if spec is not None and spec.group == "train":
        return f"{'train' if stage == 'pretrain' else stage}/{name}"
    # Finetuning has a validation of its own, whose figures have no row.
    return name.replace("_", "/", 1) if name.startswith("validation_") else f"system/{name}"


def complete(values: Mapping[str, float]) -> dict[str, float]:
    """Values of a logged line with those that follow from them, in the table's order."""
    missing = [name for name in values if spec_of(name) is None]
    assert not missing, f"metrics without a row in the table: {sorted(missing)}"
    line = dict(values)
    for each in METRICS:
        if each.value is not None:
            with suppress(KeyError):  # the line of the base, before the first step, has few values
                line[each.name] = each.value(line)
    places = {each.name: place for place, each in enumerate(METRICS)}
    # Names without a row were refused above.
    rows = {name: places[spec.name] for name in line if (spec := spec_of(name))}
    return {name: line[name] for name in sorted(line, key=rows.__getitem__)}


def values_for(sink: Sink, line: Mapping[str, float]) -> dict[str, float]:
    """Values of a logged line that a sink gets."""
    specs = {name: spec_of(name) for name in line}
    return {name: line[name] for name, spec in specs.items() if spec is not None and sink in spec.sinks}
