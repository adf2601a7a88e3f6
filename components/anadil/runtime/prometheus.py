"""The numbers of a running stage for Prometheus: `http://POD:$ANADIL_METRICS_PORT/metrics`.

Every number that goes to the tracker is a gauge `anadil_<name>` with labels `stage` and `rank`,
said by rank 0; beside it each process says what is its own. The processes of a pod share its port:
the first one serves, and the others leave their gauges in files that it reads when it is asked.
Nothing listens where ANADIL_METRICS_PORT is not set, and nothing here can fail a run: a port
that is taken costs a warning. docs/reference/metrics.md lists the names.
"""

import atexit
import contextlib
import functools
import json
import logging
import os
import re
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, SupportsFloat

from anadil import __version__

log = logging.getLogger(__name__)

PORT_VARIABLE = "ANADIL_METRICS_PORT"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Source: Prometheus, text-based exposition format."""
PATIENCE_S = 10
"""How long a client may be silent."""
RENAMED = {
    "lr": "learning_rate",
    "phase": "training_phase",
    "seconds": "elapsed_seconds",
    "tokens_per_s_per_device": "tokens_per_second_per_device",
}
"""Names of the tracker that say too little beside the metrics of others."""
HELP = {
    "anadil_info": "1; the label version is that of the program.",
    "anadil_start_timestamp_seconds": "When the stage began, Unix time.",
    "anadil_step": "Optimizer step that was logged last.",
    "anadil_last_step_timestamp_seconds": "When that step was logged, Unix time.",
    "anadil_checkpoint_step": "Optimizer step of the newest checkpoint of this start.",
    "anadil_checkpoint_timestamp_seconds": "When that checkpoint was written, Unix time.",
    "anadil_loss": "Mean loss of the step, nats per token.",
    "anadil_learning_rate": "Learning rate of the step.",
    "anadil_grad_norm": "Norm of the gradients before they are clipped.",
    "anadil_training_phase": "Phase of the recipe that runs, from 1.",
    "anadil_tokens": "Target tokens so far, over all starts.",
    "anadil_tokens_per_second": "Target tokens per second of all devices, since the line before.",
    "anadil_tokens_per_second_per_device": "The same for one device.",
    "anadil_mfu": "Model FLOPs utilization: share of the devices' dense bf16 peak, since the line before.",
    "anadil_elapsed_seconds": "Seconds in training so far, over all starts.",
    "anadil_goodput": "Share of the time since the first start that went into steps which count.",
    "anadil_time_share": "Share of the time since the first start by cause (part); all add up to 1.",
    "anadil_data_wait_seconds": "Longest that a process waited for data, mean per step of the last 20.",
    "anadil_checkpoint_stall_seconds": "Seconds that training waits for a checkpoint, mean.",
    "anadil_straggler_ratio": "Own work of the slowest process over the median.",
    "anadil_validation_bits_per_byte": "Of the corpus's held-out part, at the last validation.",
    "anadil_cost_usd": "On-demand price of the machines so far, USD.",
    "anadil_own_work_seconds": "Own work of each process, without waiting for others, mean per step of the last 20.",
    "anadil_own_data_wait_seconds": "The part of it in which the process waited for data.",
    "anadil_peak_memory_bytes": "Most memory of each process's device in the current phase.",
    "anadil_accuracy": "Share of target tokens that the model would have chosen (finetune).",
}
"""What the metrics of training mean; other stages' figures carry their tracker's name."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Metric name and its labels."""


class Gauges:
    """The latest value of every series; safe to read while another thread writes."""

    def __init__(self) -> None:
        self._values: dict[Series, float] = {}
        self._lock = threading.Lock()

    def set(self, values: Mapping[Series, float]) -> None:
        """Put new values in the place of old ones, all at once."""
        with self._lock:
            self._values.update(values)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()

    def values(self) -> dict[Series, float]:
        """Every series with its value, as they are now."""
        with self._lock:
            return dict(self._values)

    def text(self) -> str:
        """Everything in Prometheus' text format, ordered by name."""
        return text_of(self.values())


def text_of(values: Mapping[Series, float]) -> str:
    """Series in Prometheus' text format, ordered by name."""
    lines: list[str] = []
    family = ""
    for (name, labels), value in sorted(values.items()):
        if name != family:
            family = name
            lines += [f"# HELP {name} {_escaped(HELP[name])}"] if name in HELP else []
            lines.append(f"# TYPE {name} gauge")
        shown = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels)
        lines.append(f"{name}{{{shown}}} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


GAUGES = Gauges()
"""Those of this process, which runs one stage."""


def begin(stage: str) -> None:
    """The stage starts: listen, where a port is given, and say what runs."""
    _show(
        {
            ("anadil_info", (*_labels(stage), ("version", __version__))): 1.0,
            ("anadil_start_timestamp_seconds", _labels(stage)): time.time(),
        }
    )


def set_gauges(stage: str, values: Mapping[str, object], step: int = 0) -> None:
    """Show numbers of a stage; only rank 0 does, as all processes have the same.

    Args:
        stage: Name of the stage.
        values: As they go to the tracker; what is no number is left out.
        step: Optimizer step; 0 where the numbers belong to none.
    """
    if not _is_first():
        return
    found = _series(stage, values)
    if step:
        found["anadil_step", _labels(stage)] = float(step)
        found["anadil_last_step_timestamp_seconds", _labels(stage)] = time.time()
    _show(found)


def set_own(stage: str, values: Mapping[str, object]) -> None:
    """Show numbers of this process alone, such as its memory; each rank has its own."""
    _show(_series(stage, values))


def saved_checkpoint(stage: str, step: int) -> None:
    """A checkpoint of a step lies where a restart finds it."""
    if not _is_first():
        return
    _show(
        {
            ("anadil_checkpoint_step", _labels(stage)): float(step),
            ("anadil_checkpoint_timestamp_seconds", _labels(stage)): time.time(),
        }
    )


def metric_name(name: str) -> tuple[str, str]:
    """The metric of a tracker's name, and the label `part` of what stands behind a slash.

    `tokens_per_s` is `anadil_tokens_per_second`; `dropped/short` is `anadil_dropped{part="short"}`.

    Source: Prometheus, metric and label naming: base units, written out.
    """
    head, _, part = name.partition("/")
    head = RENAMED.get(head, head)
    head = re.sub(r"_per_s$", "_per_second", head)
    head = re.sub(r"_s$", "_seconds", head)
    return "anadil_" + re.sub(r"[^a-zA-Z0-9_]", "_", head), part


def _show(values: Mapping[Series, float]) -> None:
    role = _role()
    if role == "none":
        return
    GAUGES.set(values)
    if role == "leaves":
        _leave()


@functools.cache
def _role() -> Literal["serves", "leaves", "none"]:
    """What this process does with its gauges; the first one of a machine listens, once."""
    asked = os.environ.get(PORT_VARIABLE, "")
    if not asked:
        return "none"
    if os.environ.get("LOCAL_RANK", "0") != "0":
        atexit.register(_tidy)
        return "leaves"
    try:
        listener = listen(int(asked))
    except (OSError, ValueError) as error:
        log.warning("%s=%s: no metrics for Prometheus (%s); the run goes on", PORT_VARIABLE, asked, error)
        return "none"
    threading.Thread(target=listener.serve_forever, name="metrics", daemon=True).start()
    return "serves"


def _shared() -> Path:
    """Directory in which the processes of a machine, children of one torchrun, leave their gauges."""
    return Path(tempfile.gettempdir()) / f"anadil-metrics-{os.getuid()}-{os.getppid()}"


def _leave() -> None:
    """Put all gauges of this process where the one that serves finds them, old or new and never half."""
    folder = _shared()
    path = folder / f"{os.getpid()}.json"
    draft = path.with_suffix(".draft")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        draft.write_text(json.dumps(list(GAUGES.values().items())), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.debug("%s: metrics of this process are not shown (%s)", path, error)


def _tidy() -> None:
    """Leave nothing behind; the last process takes the directory away."""
    folder = _shared()
    with contextlib.suppress(OSError):
        (folder / f"{os.getpid()}.json").unlink(missing_ok=True)
        folder.rmdir()


def _left() -> Iterator[tuple[Series, float]]:
    """What the other living processes of this machine have left; what the dead have left is removed."""
    folder = _shared()
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return  # somebody else's: anybody may write there
        files = sorted(folder.glob("*.json"))
    except OSError:
        return
    for path in files:
        try:
            if not _lives(int(path.stem)):
                path.unlink(missing_ok=True)
                continue
            content = json.loads(path.read_text(encoding="utf-8"))
            yield from (
                ((name, tuple((k, v) for k, v in labels)), value) for (name, labels), value in content
            )
        except (OSError, ValueError):
            continue  # of another program, or gone meanwhile


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def listen(port: int) -> ThreadingHTTPServer:
    """A server on every interface of the pod, IPv6 too where there is any.

    Raises:
        OSError: The port is taken.
        ValueError: There is no such port.
    """
    if not 0 < port < 2**16:
        raise ValueError("a port is 1 to 65535")
    server = ThreadingHTTPServer(("", port), Page, bind_and_activate=False)
    server.socket.close()
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server.socket = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    server.server_address = server.socket.getsockname()
    return server


class Page(BaseHTTPRequestHandler):
    """`GET /metrics`, and nothing else."""

    timeout = PATIENCE_S
    server_version = "anadil"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with all gauges of the machine's processes."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = text_of({**dict(_left()), **GAUGES.values()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's signature
        """Say nothing: a scrape every few seconds is no news."""


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _series(stage: str, values: Mapping[str, object]) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for name, value in values.items():
        number = _as_number(value)
        if number is not None:
            metric, part = metric_name(name)
            labels = _labels(stage) if not part else (("part", part), *_labels(stage))
            found[metric, labels] = number
    return found


def _labels(stage: str) -> tuple[tuple[str, str], ...]:
    return (("rank", os.environ.get("RANK", "0")), ("stage", stage))


def _as_number(value: object) -> float | None:
    """Numbers of NumPy and torch are numbers too; truth values and words are not."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
