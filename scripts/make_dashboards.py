"""Write the Grafana dashboards of the chart, charts/anadil/dashboards/*.json.

`python scripts/make_dashboards.py` writes them, `--check` exits 1 where one differs.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.runtime.metric_table import METRICS, MetricSpec
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


def training(metric: MetricSpec) -> Panel:
    """A graph of one gauge of our exporter."""
    legend = "{{training_job}} {{rank}}" if metric.by_rank else "{{training_job}}"
    query = f"{metric.gauge}{OURS}"
    return Panel(title=metric.panel, text=f"{metric.doc}.", unit=metric.unit, query=query, legend=legend)


def gpus(query: str, title: str, text: str, unit: str) -> Panel:
    """A graph of one figure of each GPU."""
    return Panel(title=title, text=text, unit=unit, query=query, legend="{{Hostname}} {{gpu}}")


def network(names: str, title: str, text: str, unit: str) -> Panel:
    """A graph of the rate of EFA counters of each machine."""
    rates = " + ".join(f"rate({name}[5m])" for name in names.split())
    return Panel(
        title=title, text=text, unit=unit, query=f"sum by (instance) ({rates})", legend="{{instance}}"
    )


# People look at these first.
FIRST = ("train", "validation", "system")
TRAINING = [
    *(training(each) for group in FIRST for each in METRICS if each.panel and each.group == group),
    Panel(
        title="Time that did not train",
        text="Share of the time, over all starts, by cause.",
        unit="percentunit",
        query='anadil_time_share{namespace=~"$namespace", training_job=~"$job", part!="step"}',
        legend="{{training_job}} {{part}}",
    ),
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
