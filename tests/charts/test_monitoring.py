"""Alerts and dashboards ask only for metrics that somebody gives, in PromQL that parses."""

import json
import re
from collections.abc import Iterator

import promql_parser
import pytest

from anadil.runtime.prometheus import HELP
from tests.charts.chart import CASES, Object, named, render

EXPORTERS = {
    *(f"DCGM_FI_DEV_{name}" for name in ("GPU_UTIL", "FB_USED", "GPU_TEMP", "POWER_USAGE", "XID_ERRORS")),
    *(f"DCGM_FI_PROF_{name}" for name in ("PIPE_TENSOR_ACTIVE", "SM_ACTIVE", "DRAM_ACTIVE")),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    *(f"node_amazonefa_{name}" for name in ("rx_bytes", "tx_bytes", "rx_drops")),
    *(f"node_amazonefa_rdma_{name}" for name in ("read_bytes", "write_bytes", "read_wr_err", "write_wr_err")),
    *(f"training_operator_jobs_{name}_total" for name in ("failed", "restarted")),
    "hyperpod_training_operator_jobs_failed_total",
}
"""Sources: NVIDIA dcgm-exporter, etc/default-counters.csv; awsome-distributed-training, efa-node-exporter;
training operator 1.9, pkg/common/metrics.go; SageMaker HyperPod guide, observability."""
PARTS = ("expr", "lhs", "rhs", "args", "param", "vector_selector")
RULES = render(CASES["monitoring"])


def metrics(node: object) -> set[str]:
    if isinstance(node, list | tuple):
        return set().union(*map(metrics, node))
    if isinstance(node, promql_parser.VectorSelector):
        return {str(node.name)}
    return set().union(*(metrics(getattr(node, part)) for part in PARTS if hasattr(node, part)))


def rules() -> Iterator[Object]:
    for group in named(RULES, "PrometheusRule", "anadil")["spec"]["groups"]:
        yield from group["rules"]


def queries() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and itself."""
    for rule in rules():
        yield str(rule.get("alert") or rule["record"]), rule["expr"]
    for name in ("training", "gpus"):
        for panel in dashboard(name)["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]


def dashboard(name: str) -> Object:
    data = named(RULES, "ConfigMap", f"-dashboard-{name}")["data"]
    loaded: Object = json.loads(data[f"anadil-{name}.json"])
    return loaded


@pytest.mark.parametrize(("place", "expression"), list(queries()), ids=[place for place, _ in queries()])
def test_every_query_parses_and_names_metrics_that_there_are(place: str, expression: str) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    filled = re.sub(r"\$(namespace|job|host)", "x", expression)

    found = metrics(promql_parser.parse(filled))

    assert found
    assert found - EXPORTERS - HELP.keys() - recorded == set(), place


def test_what_operators_fear_has_an_alert_that_says_how_bad_it_is_what_happened_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]

    assert {rule["alert"].removeprefix("Anadil") for rule in alerts} == {
        "LossNotFinite", "LossSpike", "ThroughputDrop", "TensorCoresIdle", "Straggler", "CheckpointOld", "Stalled",
        "JobFailed", "JobRestarts", "GpuXid", "GpuHot", "EfaErrors",
    }  # fmt: skip
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["labels"]["team"] == "nlp"
        assert set(alert["annotations"]) == {"summary", "description"}
        assert "{{ " not in alert["annotations"]["description"]


def test_alerts_watch_the_namespace_of_jobs() -> None:
    values = CASES["monitoring"] | {"jobs": {"namespace": "hyperpod-ns-nlp"}}

    spec = named(render(values), "PrometheusRule", "anadil")["spec"]

    assert 'anadil_loss{namespace="hyperpod-ns-nlp"}' in json.dumps(spec).replace('\\"', '"')
    assert 'job_namespace="hyperpod-ns-nlp"' in json.dumps(spec).replace('\\"', '"')


def test_dashboards_are_found_by_grafana_and_have_no_panel_without_a_unit_or_a_word() -> None:
    for name in ("training", "gpus"):
        config = named(RULES, "ConfigMap", f"-dashboard-{name}")
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        for panel in dashboard(name)["panels"]:
            assert panel["description"]
            assert panel["fieldConfig"]["defaults"]["unit"]
        places = [tuple(panel["gridPos"].values()) for panel in dashboard(name)["panels"]]
        assert len(places) == len(set(places))


def test_the_pod_monitor_finds_the_port_of_training_pods() -> None:
    from anadil.launch.job import TrainingJob
    from anadil.launch.kubernetes.manifests import container_of
    from anadil.recipe.load import parse_recipe

    job = TrainingJob(
        stage="pretrain", recipe=parse_recipe("language: az", "r"), inputs={}, target="s3://b/m"
    )
    monitor = named(RULES, "PodMonitor", "-jobs")["spec"]

    assert monitor["podMetricsEndpoints"][0]["port"] in dict(container_of(job, "pytorch").ports)
    assert monitor["selector"]["matchLabels"].items() <= job.labels.items()
