"""Numbers for Prometheus: names, format, one server, and never a failed run."""

import contextlib
import json
import logging
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil import __version__
from anadil.runtime import prometheus

PORT = "ANADIL_METRICS_PORT"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As in a process that has just started."""
    prometheus.GAUGES.clear()
    prometheus._role.cache_clear()
    yield
    prometheus.GAUGES.clear()
    prometheus._role.cache_clear()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number: int = free.getsockname()[1]
    monkeypatch.setenv(PORT, str(number))
    return number


def page(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return text


def samples(text: str) -> dict[str, float]:
    """Series -> value, read as Prometheus reads them."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            found[series] = float(value)
    return found


def test_a_number_of_the_tracker_is_a_gauge_with_stage_and_rank(port: int) -> None:
    prometheus.set_gauges("pretrain", {"loss": 2.5, "lr": 1e-4, "tokens_per_s": 1234.5}, step=120)

    text = page(port)

    found = samples(text)
    assert found['anadil_loss{rank="0",stage="pretrain"}'] == 2.5
    assert found['anadil_learning_rate{rank="0",stage="pretrain"}'] == 1e-4
    assert found['anadil_tokens_per_second{rank="0",stage="pretrain"}'] == 1234.5
    assert found['anadil_step{rank="0",stage="pretrain"}'] == 120
    assert "# HELP anadil_loss Mean loss of the step, nats per token.\n# TYPE anadil_loss gauge\n" in text
    assert text.endswith("\n")


def test_the_latest_value_counts(port: int) -> None:
    prometheus.set_gauges("pretrain", {"loss": 2.5}, step=1)
    prometheus.set_gauges("pretrain", {"loss": 2.25}, step=2)

    found = samples(page(port))

    assert found['anadil_loss{rank="0",stage="pretrain"}'] == 2.25
    assert found['anadil_step{rank="0",stage="pretrain"}'] == 2


def test_times_of_start_step_and_checkpoint_are_told(port: int) -> None:
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


def test_figures_without_a_step_leave_the_step_alone(port: int) -> None:
    prometheus.set_gauges("clean", {"kept": 12})

    assert samples(page(port)) == {'anadil_kept{rank="0",stage="clean"}': 12}


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("loss", ("anadil_loss", "")),
        ("lr", ("anadil_learning_rate", "")),
        ("seconds", ("anadil_elapsed_seconds", "")),
        ("docs_per_s", ("anadil_docs_per_second", "")),
        ("step_s", ("anadil_step_seconds", "")),
        ("peak_memory_bytes", ("anadil_peak_memory_bytes", "")),
        ("dropped/short text", ("anadil_dropped", "short text")),
        ("seconds/dedup", ("anadil_elapsed_seconds", "dedup")),
        ("loop-rate.base", ("anadil_loop_rate_base", "")),
        ("itki", ("anadil_itki", "")),
        ("açıq", ("anadil_a__q", "")),
    ],
)
def test_names_are_those_that_prometheus_takes(name: str, metric: tuple[str, str]) -> None:
    assert prometheus.metric_name(name) == metric


def test_what_is_no_number_is_left_out_and_what_is_not_finite_is_said(port: int) -> None:
    values = {"gate": "passed", "ok": True, "nothing": None, "a": math.nan, "b": math.inf, "c": -math.inf}

    prometheus.set_gauges("report", values)

    text = page(port)
    assert 'anadil_a{rank="0",stage="report"} NaN\n' in text
    assert 'anadil_b{rank="0",stage="report"} +Inf\n' in text
    assert 'anadil_c{rank="0",stage="report"} -Inf\n' in text
    assert not {"gate", "ok", "nothing"} & {series[7:].partition("{")[0] for series in samples(text)}


def test_numbers_of_numpy_are_numbers(port: int) -> None:
    numpy = pytest.importorskip("numpy")

    prometheus.set_gauges("pretrain", {"loss": numpy.float32(0.5)}, step=1)

    assert samples(page(port))['anadil_loss{rank="0",stage="pretrain"}'] == 0.5


def test_label_values_are_escaped(port: int) -> None:
    prometheus.set_gauges("clean", {'dropped/a "b"\\c\nd': 1})

    assert 'part="a \\"b\\"\\\\c\\nd"' in page(port)


def test_nothing_listens_and_nothing_is_kept_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)

    prometheus.begin("clean")
    prometheus.set_gauges("clean", {"kept": 1})
    prometheus.saved_checkpoint("clean", 1)

    assert prometheus.GAUGES.text() == ""
    assert "metrics" not in {
        thread.name for thread in threading.enumerate() if thread.is_alive() and not thread.daemon
    }


def test_a_port_that_is_taken_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        if socket.has_dualstack_ipv6()
        else socket.create_server(("", 0)) as taken
    ):
        monkeypatch.setenv(PORT, str(taken.getsockname()[1]))
        with caplog.at_level(logging.WARNING):
            prometheus.begin("pretrain")
            prometheus.set_gauges("pretrain", {"loss": 1.0}, step=1)

    assert len(caplog.records) == 1
    assert "no metrics for Prometheus" in caplog.text
    assert "the run goes on" in caplog.text


@pytest.mark.parametrize("value", ["http", "-1", "70000"])
def test_a_port_that_is_none_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv(PORT, value)

    with caplog.at_level(logging.WARNING):
        prometheus.begin("pretrain")

    assert f"{PORT}={value}: no metrics" in caplog.text


CHILD = """
import sys
from anadil import exporter
exporter.begin("pretrain")
exporter.set_own("pretrain", {"own_work_s": float(sys.argv[1]), "part/a b": float("nan")})
exporter.set_gauges("pretrain", {"loss": 9.0}, step=5)
print("said", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def sibling(port: int, rank: int, work_s: float) -> Iterator[None]:
    """Another process of the machine, as torchrun starts it: a child of the same parent."""
    environment = {**os.environ, PORT: str(port), "LOCAL_RANK": str(rank), "RANK": str(rank)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(work_s)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "said\n"
        yield
        child.stdin.close()


@pytest.fixture
def siblings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This process is one of them: to its children, their parent's id is this one's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "getppid", os.getpid)


@pytest.mark.usefixtures("siblings")
def test_the_first_process_of_a_machine_serves_what_the_others_have_of_their_own(port: int) -> None:
    prometheus.begin("pretrain")
    prometheus.set_own("pretrain", {"own_work_s": 0.25})
    prometheus.set_gauges("pretrain", {"loss": 2.0}, step=5)

    with sibling(port, 1, 0.5), sibling(port, 2, 0.75):
        text = page(port)
    after = page(port)

    found = samples(text)
    works = [found[f'anadil_own_work_seconds{{rank="{rank}",stage="pretrain"}}'] for rank in range(3)]
    assert works == [0.25, 0.5, 0.75]
    assert text.count("# TYPE anadil_own_work_seconds gauge\n") == 1
    assert math.isnan(found['anadil_part{part="a b",rank="2",stage="pretrain"}'])
    assert [series for series in found if series.startswith("anadil_loss")] == [
        'anadil_loss{rank="0",stage="pretrain"}'
    ]
    assert 'rank="1"' not in after
    assert not prometheus._shared().exists()


@pytest.mark.usefixtures("siblings")
def test_what_is_left_is_read_whole_or_not_at_all(port: int) -> None:
    prometheus.begin("pretrain")
    folder = prometheus._shared()
    folder.mkdir()
    for name, text in ((f"{os.getpid()}.json", "[[["), ("x.json", "[]"), (f"{os.getppid()}.draft", "{")):
        (folder / name).write_text(text)

    assert 'anadil_info{rank="0"' in page(port)


@pytest.mark.usefixtures("siblings")
def test_a_directory_that_is_a_link_is_not_read(port: int, tmp_path: Path) -> None:
    prometheus.begin("pretrain")
    (tmp_path / "elsewhere").mkdir()
    series = [[["anadil_own_work_seconds", [["rank", "7"]]], 1.0]]
    (tmp_path / "elsewhere" / f"{os.getpid()}.json").write_text(json.dumps(series))
    prometheus._shared().symlink_to(tmp_path / "elsewhere")

    assert 'rank="7"' not in page(port)


@pytest.mark.usefixtures("siblings")
def test_a_process_that_cannot_leave_its_gauges_goes_on(
    monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("RANK", "11")
    prometheus._shared().write_text("in the way")

    prometheus.begin("pretrain")
    prometheus.set_own("pretrain", {"own_work_s": 1.0})

    with pytest.raises(urllib.error.URLError):
        page(port)
    assert tmp_path.is_dir()


def test_the_first_process_of_another_machine_says_its_rank(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "8")

    prometheus.begin("pretrain")

    assert 'anadil_start_timestamp_seconds{rank="8",stage="pretrain"}' in samples(page(port))


def test_only_the_metrics_are_served(port: int) -> None:
    prometheus.begin("clean")

    with pytest.raises(urllib.error.HTTPError, match="404"):
        page(port, "/")


def test_reading_while_writing_shows_whole_lines(port: int) -> None:
    prometheus.begin("pretrain")
    done = threading.Event()

    def write() -> None:
        step = 0
        while not done.is_set():
            step += 1
            prometheus.set_gauges("pretrain", {f"x{step % 50}": step, "loss": 1 / step}, step=step)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            assert samples(page(port))
    finally:
        done.set()
        writer.join()


def test_a_listening_process_ends_when_its_work_does(port: int) -> None:
    code = "from anadil import exporter; exporter.begin('clean'); print('done')"

    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={PORT: str(port)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, "done\n")


def test_the_reference_lists_the_metrics_of_training() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    section = text.partition("## Training")[2].partition("## ")[0]

    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(prometheus.HELP)
