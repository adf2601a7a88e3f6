"""Write the Grafana dashboards of the chart, charts/anadil/dashboards/*.json.

`python scripts/make_dashboards.py` writes them, `--check` exits 1 where one differs.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generate import write_or_check

FOLDER = Path(__file__).parents[1] / "charts/anadil/dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OURS = '{namespace=~"$namespace", training_job=~"$job"}'
GPU = '{Hostname=~"$host"}'
WIDTH, HEIGHT, COLUMNS = 8, 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph."""

    title: str
    text: str
    unit: str
    query: str
    legend: str


def training(name: str, title: str, text: str, unit: str, legend: str = "{{training_job}}") -> Panel:
    """A graph of one gauge of our exporter."""
    return Panel(title=title, text=text, unit=unit, query=f"{name}{OURS}", legend=legend)


def gpus(query: str, title: str, text: str, unit: str) -> Panel:
    """A graph of one figure of each GPU."""
    return Panel(title=title, text=text, unit=unit, query=query, legend="{{Hostname}} {{gpu}}")


def network(names: str, title: str, text: str, unit: str) -> Panel:
    """A graph of the rate of EFA counters of each machine."""
    rates = " + ".join(f"rate({name}[5m])" for name in names.split())
    return Panel(
        title=title, text=text, unit=unit, query=f"sum by (instance) ({rates})", legend="{{instance}}"
    )


TRAINING = [
    training("anadil_loss", "Loss", "Nats per token, of the step that was logged last.", "none"),
    training("anadil_learning_rate", "Learning rate", "Of the step.", "sci"),
    training("anadil_grad_norm", "Gradient norm", "Before clipping. It rises before the loss does.", "none"),
    training("anadil_tokens_per_second", "Throughput", "Target tokens per second of all devices.", "short"),
    training("anadil_tokens", "Tokens", "Target tokens so far, over all starts.", "short"),
    training("anadil_step", "Step", "Optimizer step that was logged last.", "short"),
    training("anadil_training_phase", "Phase", "Phase of the recipe, from 1.", "none"),
    training(
        "anadil_validation_bits_per_byte",
        "Bits per byte",
        "Of held-out text, at the last validation.",
        "none",
    ),
    training(
        "anadil_mfu", "Model FLOPs utilization", "Share of the devices' dense bf16 peak.", "percentunit"
    ),
    training(
        "anadil_goodput",
        "Goodput",
        "Share of the time, over all starts, in steps which count.",
        "percentunit",
    ),
    Panel(
        title="Time that did not train",
        text="Share of the time, over all starts, by cause.",
        unit="percentunit",
        query='anadil_time_share{namespace=~"$namespace", training_job=~"$job", part!="step"}',
        legend="{{training_job}} {{part}}",
    ),
    training("anadil_data_wait_seconds", "Wait for data", "Longest of a process, per step.", "s"),
    training(
        "anadil_checkpoint_stall_seconds", "Checkpoint stall", "Training waits this long for each.", "s"
    ),
    training(
        "anadil_own_work_seconds",
        "Own work",
        "Of each process, per step, without waiting for others: one above the rest slows all of them down.",
        "s",
        "{{training_job}} {{rank}}",
    ),
    training(
        "anadil_peak_memory_bytes",
        "Peak memory",
        "Of each process's device.",
        "bytes",
        "{{training_job}} {{rank}}",
    ),
    training("anadil_cost_usd", "Cost", "On-demand price of the machines so far.", "currencyUSD"),
    training("anadil_elapsed_seconds", "Time in training", "Over all starts.", "s"),
    Panel(
        title="Age of the newest checkpoint",
        text="What a restart would lose now.",
        unit="s",
        query=f"time() - anadil_checkpoint_timestamp_seconds{OURS}",
        legend="{{training_job}}",
    ),
    Panel(
        title="Time since the last step",
        text="A straight line upwards is a job that hangs, or writes its model.",
        unit="s",
        query=f"time() - anadil_last_step_timestamp_seconds{OURS}",
        legend="{{training_job}}",
    ),
    Panel(
        title="Failed jobs",
        text="Of the training operator, in an hour.",
        unit="none",
        query='increase(training_operator_jobs_failed_total{job_namespace=~"$namespace"}[1h])',
        legend="{{job_namespace}}",
    ),
]
GPUS = [
    gpus(f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{GPU}", "Tensor cores", "Share of cycles in which they work.", "percentunit"),
    gpus(f"DCGM_FI_PROF_SM_ACTIVE{GPU}", "Multiprocessors", "Share of cycles with work.", "percentunit"),
    gpus(f"DCGM_FI_PROF_DRAM_ACTIVE{GPU}", "Memory traffic", "Share of cycles.", "percentunit"),
    gpus(f"DCGM_FI_DEV_GPU_UTIL{GPU}", "Utilization", "Says only that some kernel runs.", "percent"),
    gpus(f"DCGM_FI_DEV_FB_USED{GPU} * 1048576", "Memory", "In use.", "bytes"),
    gpus(f"DCGM_FI_DEV_POWER_USAGE{GPU}", "Power", "A GPU below the others waits, or is throttled.", "watt"),
    gpus(f"DCGM_FI_DEV_GPU_TEMP{GPU}", "Temperature", "Of the chip.", "celsius"),
    gpus(f"DCGM_FI_DEV_XID_ERRORS{GPU}", "Xid", "Code of the last error; 0 is none.", "none"),
    gpus(f"rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{GPU}[5m])", "NVLink", "As DCGM counts it.", "none"),
    network("node_amazonefa_rx_bytes node_amazonefa_tx_bytes", "EFA traffic", "In and out.", "Bps"),
    network(
        "node_amazonefa_rdma_read_bytes node_amazonefa_rdma_write_bytes",
        "EFA RDMA",
        "Near 0 between machines that train together: NCCL does not use EFA.",
        "Bps",
    ),
    network(
        "node_amazonefa_rx_drops node_amazonefa_rdma_read_wr_err node_amazonefa_rdma_write_wr_err",
        "EFA errors",
        "Packets dropped and work requests failed.",
        "cps",
    ),
]  # fmt: skip


def dashboard(title: str, panels: list[Panel], variables: dict[str, str], series: str) -> str:
    """A dashboard as Grafana stores it.

    Args:
        title: Shown in lists.
        panels: In rows of three.
        variables: Name of a choice -> label whose values it offers.
        series: Metric that has these labels.
    """
    content = {
        "uid": title.lower().replace(" ", "-")[:40],
        "title": title,
        "tags": ["anadil"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                *(_variable(name, label, series) for name, label in variables.items()),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(content, indent=1) + "\n"


def _variable(name: str, label: str, series: str) -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [{"refId": "A", "datasource": SOURCE, "expr": panel.query, "legendFormat": panel.legend}],
    }


if __name__ == "__main__":
    choices = {"namespace": "namespace", "job": "training_job"}
    hosts = {"host": "Hostname"}
    sys.exit(
        write_or_check(
            {
                FOLDER / "training.json": lambda: dashboard(
                    "anadil training", TRAINING, choices, "anadil_step"
                ),
                FOLDER / "gpus.json": lambda: dashboard(
                    "anadil GPUs and network", GPUS, hosts, "DCGM_FI_DEV_GPU_UTIL"
                ),
            }
        )
    )
