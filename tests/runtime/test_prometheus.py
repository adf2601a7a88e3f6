"""Metrics for Prometheus: names, one server for the processes of a pod, and never a failed run."""

import logging
import math
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anadil import __version__
from anadil.runtime import prometheus
from tests.kit.gauges import forget_gauges, fresh_gauges

pytest.importorskip("prometheus_client", reason="needs prometheus-client")

PORT = "ANADIL_METRICS_PORT"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a process that torchrun has just started: its siblings are the children of this one."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    with fresh_gauges(monkeypatch, tmp_path):
        yield


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    monkeypatch.setenv(PORT, str(number))
    return number


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text: str = answer.read().decode()
    return text


def samples(text: str) -> dict[str, float]:
    """Series -> value, read as Prometheus reads them."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, value in lines}


def test_a_number_of_mlflow_is_a_gauge_whose_latest_value_counts(port: int) -> None:
    prometheus.set_gauges("pretrain", {"loss": 2.5, "lr": 1e-4, "tokens_per_s": 1234.5}, step=119)
    prometheus.set_gauges("pretrain", {"loss": 2.25}, step=120)

    text = page(port)

    found = samples(text)
    assert found['anadil_loss{rank="0",stage="pretrain"}'] == 2.25
    assert found['anadil_learning_rate{rank="0",stage="pretrain"}'] == 1e-4
    assert found['anadil_tokens_per_second{rank="0",stage="pretrain"}'] == 1234.5
    assert found['anadil_step{rank="0",stage="pretrain"}'] == 120
    assert "# HELP anadil_loss Mean loss of the step, nats per token.\n# TYPE anadil_loss gauge\n" in text


def test_times_of_start_step_and_checkpoint_are_set(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    prometheus.begin("finetune")
    prometheus.set_gauges("finetune", {"loss": 1.0}, step=3)
    prometheus.saved_checkpoint("finetune", 3)

    found = samples(page(port))

    labels = '{rank="0",stage="finetune"}'
    start = found[f"anadil_start_timestamp_seconds{labels}"]
    assert 0 <= found[f"anadil_last_step_timestamp_seconds{labels}"] - start < 60
    assert 0 <= found[f"anadil_checkpoint_timestamp_seconds{labels}"] - start < 60
    assert found[f"anadil_checkpoint_step{labels}"] == 3
    assert found[f'anadil_info{{rank="0",stage="finetune",version="{__version__}"}}'] == 1


def test_figures_without_a_step_set_no_step(port: int) -> None:
    prometheus.set_gauges("clean", {"kept": 12, "seconds": 2.0, 'seconds/a "b"\\c\nd': 1.0})

    assert samples(page(port)) == {
        'anadil_kept{rank="0",stage="clean"}': 12,
        'anadil_elapsed_seconds{rank="0",stage="clean"}': 2,
        'anadil_elapsed_seconds{part="a \\"b\\"\\\\c\\nd",rank="0",stage="clean"}': 1,
    }


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("lr", ("anadil_learning_rate", "")),
        ("docs_per_s", ("anadil_docs_per_second", "")),
        ("peak_memory_bytes", ("anadil_peak_memory_bytes", "")),
        ("dropped/short text", ("anadil_dropped", "short text")),
        ("loop-rate.base", ("anadil_loop_rate_base", "")),
        ("açıq", ("anadil_a__q", "")),
    ],
)
def test_names_are_those_that_prometheus_takes(name: str, metric: tuple[str, str]) -> None:
    assert prometheus.metric_name(name) == metric


def test_what_is_no_number_is_left_out_and_what_is_not_finite_is_served(port: int) -> None:
    numpy = pytest.importorskip("numpy")
    values = {"gate": "passed", "ok": True, "nothing": None, "a": math.nan, "b": -math.inf}

    prometheus.set_gauges("report", values | {"c": numpy.float32(0.5)})

    found = samples(page(port))
    assert {series[7:].partition("{")[0] for series in found} == {"a", "b", "c"}
    assert math.isnan(found['anadil_a{rank="0",stage="report"}'])
    assert found['anadil_b{rank="0",stage="report"}'] == -math.inf
    assert found['anadil_c{rank="0",stage="report"}'] == 0.5


def test_without_a_port_the_client_is_not_even_loaded(tmp_path: Path) -> None:
    code = "import sys; from anadil.runtime import prometheus; prometheus.begin('clean'); print('prometheus_client' in sys.modules)"

    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, list(tmp_path.iterdir())) == (0, "False\n", [])


def test_a_port_that_is_taken_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as taken:
        monkeypatch.setenv(PORT, str(taken.getsockname()[1]))
        with caplog.at_level(logging.WARNING):
            prometheus.begin("pretrain")
            prometheus.set_gauges("pretrain", {"loss": 1.0}, step=1)

    assert len(caplog.records) == 1
    assert "no metrics for Prometheus" in caplog.text
    assert "the run continues" in caplog.text


@pytest.mark.parametrize("value", ["http", "-1", "0", "70000"])
def test_a_port_that_is_none_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv(PORT, value)

    with caplog.at_level(logging.WARNING):
        prometheus.begin("pretrain")

    assert f"{PORT}={value}: no metrics" in caplog.text


@pytest.mark.parametrize("obstacle", ["file", "link", "no package"])
def test_where_the_figures_cannot_be_shared_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    port: int,
    obstacle: str,
    tmp_path: Path,
) -> None:
    place = prometheus._make_directory()
    if obstacle == "no package":
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
    else:
        place.rmdir()
        place.touch() if obstacle == "file" else place.symlink_to(tmp_path)

    with caplog.at_level(logging.WARNING):
        prometheus.begin("pretrain")

    assert "the run continues" in caplog.text
    with pytest.raises(urllib.error.URLError):
        page(port)


CHILD = """
import sys
from anadil.runtime import prometheus
prometheus.begin("pretrain")
prometheus.set_own("pretrain", {"own_work_s": float(sys.argv[1]), "part/a b": float("nan")})
prometheus.set_gauges("pretrain", {"loss": 9.0}, step=5)
print("said", flush=True)
sys.stdin.read()
"""


@contextmanager
def sibling(rank: int, work_s: float) -> Iterator[subprocess.Popen[str]]:
    """Another process of the machine, as torchrun starts it: a child of the same parent."""
    environment = {**os.environ, "LOCAL_RANK": str(rank), "RANK": str(rank)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(work_s)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "said\n"
        yield child
        child.stdin.close()


def own_work(text: str) -> list[float]:
    return [value for series, value in sorted(samples(text).items()) if "own_work" in series]


def test_the_first_process_of_a_machine_serves_what_the_others_have_of_their_own(
    port: int, tmp_path: Path
) -> None:
    prometheus.begin("pretrain")
    prometheus.set_own("pretrain", {"own_work_s": 0.25})
    prometheus.set_gauges("pretrain", {"loss": 2.0}, step=5)

    with sibling(1, 0.5), sibling(2, 0.75):
        text = page(port)

    found = samples(text)
    assert own_work(text) == [0.25, 0.5, 0.75]
    assert text.count("# TYPE anadil_own_work_seconds gauge\n") == 1
    assert math.isnan(found['anadil_part{part="a b",rank="2",stage="pretrain"}'])
    assert [series for series in found if "_loss" in series] == ['anadil_loss{rank="0",stage="pretrain"}']
    assert 'rank="1"' not in page(port)
    (directory,) = tmp_path.iterdir()
    assert [path.name for path in directory.iterdir()] == [f"gauge_livemostrecent_{os.getpid()}.db"]


def test_a_rank_that_was_killed_is_gone_and_its_next_start_counts_once(port: int) -> None:
    prometheus.begin("pretrain")

    with sibling(1, 0.5) as killed:
        killed.kill()
        killed.wait()
        after = page(port)
    with sibling(1, 0.75):
        text = page(port)

    assert 'rank="1"' not in after
    assert own_work(text) == [0.75]
    assert text.count('anadil_info{rank="1"') == 1


def test_a_restarted_pod_shows_nothing_of_the_start_before(port: int) -> None:
    """Its /tmp outlives the container, and the same process ids come again."""
    prometheus.set_gauges("pretrain", {"loss": 2.0}, step=500)
    forget_gauges()
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ[PORT] = str(free.getsockname()[1])

    prometheus.begin("pretrain")

    assert {series.partition("{")[0] for series in samples(page(int(os.environ[PORT])))} == {
        "anadil_info", "anadil_start_timestamp_seconds",
    }  # fmt: skip


def test_the_first_process_of_another_machine_says_its_rank(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("RANK", "8")

    prometheus.begin("pretrain")

    assert 'anadil_start_timestamp_seconds{rank="8",stage="pretrain"}' in samples(page(port))


def test_a_listening_process_ends_when_its_work_does_and_leaves_nothing(port: int, tmp_path: Path) -> None:
    code = "from anadil.runtime import prometheus; prometheus.begin('clean'); print('done')"

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert list(tmp_path.iterdir()) == []


def test_the_reference_lists_the_metrics_of_training() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    section = text.partition("## Training")[2].partition("## ")[0]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(prometheus.HELP)
