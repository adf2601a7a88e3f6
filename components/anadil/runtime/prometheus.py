"""Metrics of a running stage for Prometheus: `http://POD:$ANADIL_METRICS_PORT/metrics`.

Every number that goes to MLflow is a gauge `anadil_<name>` with labels `stage` and `rank`, set by rank 0. Each process adds
its own. The processes of a pod share one port: the first serves, and reads the files that `prometheus_client`
(multiprocess mode) keeps for every process. Without ANADIL_METRICS_PORT nothing listens. Nothing here fails a run: a taken
port costs a warning.
"""

import atexit
import contextlib
import functools
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

from anadil import __version__
from anadil.core.processes import start_of
from anadil.runtime.metric_table import METRICS, gauge_name

if TYPE_CHECKING:
    from prometheus_client import Gauge

log = logging.getLogger(__name__)

PORT_VARIABLE = "ANADIL_METRICS_PORT"
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Read by prometheus_client."""
CLIENT_TIMEOUT_S = 10
MODE = "livemostrecent"
"""How gauges of several processes are merged: those of dead processes are dropped, and no label `pid` is added.
A rank that was restarted has the same labels as before; its newest value wins."""
FILE_BYTES = 1 << 16
"""First size of a process's file; about 500 gauges. Source: prometheus_client.mmap_dict."""
HELP = {each.gauge: f"{each.doc}." for each in METRICS}
"""By metric; other stages' figures have none."""


def begin(stage: str) -> None:
    """The stage starts: listen, where a port is given, and say what runs."""
    _set(stage, "anadil_info", 1.0, version=__version__)
    _set(stage, "anadil_start_timestamp_seconds", time.time())


def set_gauges(stage: str, values: Mapping[str, object], step: int = 0) -> None:
    """Set metrics of a stage, numbers only. Only rank 0 does, as all processes have the same.

    `step` is the optimizer step; 0 where the numbers belong to none.
    """
    if not _is_first():
        return
    set_own(stage, values)
    if step:
        _set(stage, "anadil_step", step)
        _set(stage, "anadil_last_step_timestamp_seconds", time.time())


def set_own(stage: str, values: Mapping[str, object]) -> None:
    """Set metrics of this process alone, such as its memory; each rank has its own."""
    for name, value in values.items():
        number = _as_number(value)
        if number is not None:
            metric, part = metric_name(name)
            _set(stage, metric, number, **({"part": part} if part else {}))


def saved_checkpoint(stage: str, step: int) -> None:
    """A checkpoint of a step lies where a restart finds it."""
    if _is_first():
        _set(stage, "anadil_checkpoint_step", step)
        _set(stage, "anadil_checkpoint_timestamp_seconds", time.time())


def metric_name(name: str) -> tuple[str, str]:
    """Metric of an MLflow name, and the label `part` of what stands behind a slash.

    `tokens_per_s` is `anadil_tokens_per_second`; `dropped/short` is `anadil_dropped{part="short"}`.
    """
    return gauge_name(name), name.partition("/")[2]


def _set(stage: str, metric: str, value: float, **labels: str) -> None:
    if _start():
        labels |= {"rank": os.environ.get("RANK", "0"), "stage": stage}
        _gauge(metric, tuple(sorted(labels))).labels(**labels).set(value)


@functools.cache
def _gauge(metric: str, labels: tuple[str, ...]) -> "Gauge":
    from prometheus_client import Gauge

    return Gauge(metric, HELP.get(metric, ""), labels, registry=None, multiprocess_mode=MODE)


@functools.cache
def _start() -> bool:
    """Return whether this process has metrics; the first call makes its file, and the first process of a pod listens."""
    port = os.environ.get(PORT_VARIABLE, "")
    serves = os.environ.get("LOCAL_RANK", "0") == "0"
    if not port:
        return False
    try:
        directory = _make_directory()
        os.environ[DIRECTORY_VARIABLE] = str(directory)
        from prometheus_client import values

        # Not left to the variable, which is read once: another package may have imported the client before.
        values.ValueClass = values.MultiProcessValue()
        # Written out, since a mapped file on a full disk would end the process by SIGBUS, and empty,
        # since a pod that is restarted keeps its /tmp and gives the same process ids again.
        (directory / f"gauge_{MODE}_{os.getpid()}.db").write_bytes(bytes(FILE_BYTES))
        atexit.register(_remove_files, directory)
        if serves:
            _serve(int(port), directory)
    except (ImportError, OSError, ValueError) as error:
        level = logging.WARNING if serves else logging.DEBUG
        log.log(level, "%s=%s: no metrics for Prometheus (%s); the run continues", PORT_VARIABLE, port, error)
        return False
    return True


def _make_directory() -> Path:
    # One for the processes that one torchrun started.
    parent = os.getppid()
    directory = Path(tempfile.gettempdir()) / f"anadil-metrics-{os.getuid()}-{parent}-{start_of(parent)}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(f"{directory}: not a directory of this user")
    return directory


def _serve(port: int, directory: Path) -> None:
    """Listen on every interface of the pod, IPv6 too where there is any."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.multiprocess import MultiProcessCollector

    if not 0 < port < 2**16:
        raise ValueError("a port is 1 to 65535")
    registry = CollectorRegistry()
    registry.register(_DeadProcesses(directory))
    MultiProcessCollector(registry, str(directory))
    address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104  Prometheus is outside of the pod
    server, _ = start_http_server(port, address, registry)
    server.RequestHandlerClass.timeout = CLIENT_TIMEOUT_S


class _DeadProcesses:
    """A collector without metrics that goes first: it removes the files of processes that have ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> list[object]:
        """Remove them."""
        for path in self._directory.glob(f"gauge_{MODE}_*.db"):
            pid = path.stem.rpartition("_")[2]
            with contextlib.suppress(PermissionError):
                try:
                    os.kill(int(pid), 0)
                except (ProcessLookupError, ValueError):
                    path.unlink(missing_ok=True)
        return []


def _remove_files(directory: Path) -> None:
    with contextlib.suppress(OSError):
        (directory / f"gauge_{MODE}_{os.getpid()}.db").unlink(missing_ok=True)
        directory.rmdir()


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
