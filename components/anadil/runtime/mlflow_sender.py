"""Process that hands a run's tracking to MLflow: `python -m anadil.runtime.mlflow_sender SPOOL`.

It follows the spool of a run, tries again while the server is away, ends with the run, and leaves what could not be sent
for the next sender in the same place.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anadil.core import log as logs
from anadil.core.errors import RecipeError
from anadil.core.install import install, install_module
from anadil.runtime.mlflow_records import Records
from anadil.runtime.reachable import answers
from anadil.runtime.trackers import noted
from anadil.runtime.tracking_spool import CLOSED, DONE, RUN, SENDER, has_unsent

log = logging.getLogger(__name__)

LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}  # fmt: skip
"""Timeouts of MLflow's client: whoever waits for a sender waits seconds, the spool keeps what is left, and a sender tries
again itself. It neither prints the address, which may hold a password, nor tells others of its use, nor runs what a pickle says."""
LONGEST_PAUSE_S = 15.0
"""Between two tries to reach a server; shorter than a run's patience at its end."""
PROBE_S = 5.0
"""How long a server has to answer at all, before a client is loaded, which takes seconds of CPU time."""
SIGN_IN = frozenset((401, 403))
MAX_BATCH = {"Metric": 800, "Param": 100, "RunTag": 100}
"""Most entities of each kind in a request: MLflow's limits. A server that hashes a password for each request takes .5 to 2 s."""
Pending = defaultdict[str, list[Any]]
"""Id of a run -> metrics, settings and tags that go out in few calls."""


class Sender:
    """Follows the files of one spool and hands their lines to MLflow, each once."""

    def __init__(self, spool: Path, experiment: str, name: str, shared: str = "") -> None:
        self.spool = spool
        self.records = Records(spool)
        self.client = self.records.client
        self.experiment = experiment
        self.name = name
        self.shared = shared
        self.state = self.records.state

    def follow(self, is_closed: Callable[[], bool], poll_s: float = 0.5) -> None:
        """Send until the spool is closed and nothing is left."""
        first = min(
            (moment for path in self.spool.glob("*.jsonl") if (moment := began(path)[0])), default=None
        )
        self.records.ensure_parent(self.experiment, self.name, self.shared, first)
        while True:
            closed = is_closed()
            # Whole files, in the order of the stages: what makes a model is sent before what reads it.
            sent = sum(self._send_whole(path) for path in sorted(self.spool.glob("*.jsonl"), key=began))
            trouble = self.records.upload()
            if closed and not sent:
                break
            if not sent:
                time.sleep(poll_s)
        self._end()
        if trouble:
            raise OSError(f"artifacts: {trouble}") from trouble

    def _end(self) -> None:
        ended: dict[str, str] = self.state["ended"]
        for stage, run in self.state["runs"].items():
            if stage not in ended:
                ended[stage] = "KILLED"
                self.client.set_terminated(run, "KILLED")
        status = next((s for s in ("FAILED", "KILLED") if s in ended.values()), "FINISHED")
        # A sender of no stage sends for others, and does not know how the run ended.
        if ended and not self.state.get("given"):
            self.client.set_terminated(self.state["parent"], status, self.state.get("ended at"))

    def _send_whole(self, path: Path) -> int:
        total = 0
        while sent := self._send_file(path):
            total += sent
        return total

    def _send_file(self, path: Path) -> int:
        offset = int(self.state["offsets"].get(path.name, 0))
        lines, end = whole_lines(path, offset)
        pending: Pending = defaultdict(list)
        for line in lines:
            if (data := parsed(line, path)) is not None:
                self._send(path.stem, data, pending)
        self._flush(pending)
        if lines:
            self.records.save_lines(path.name, end)
        return len(lines)

    def _send(self, stage: str, line: dict[str, Any], pending: Pending) -> None:
        """Send one line, or let its values wait for others."""
        from mlflow.entities import Param, RunTag

        records, kind = self.records, line["kind"]
        is_of_run = kind.startswith("run ")
        if kind == "start":
            self.state["ended"].pop(stage, None)
            records.run(stage, line["time"])
        elif kind == "end":
            self._flush(pending)
            self.state["ended"][stage] = line["status"]
            self.state["ended at"] = max(line["time"], self.state.get("ended at", 0))
            self.client.set_terminated(records.run(stage), line["status"], line["time"])
        elif kind in ("metrics", "run metrics"):
            run = self.state["parent"] if is_of_run else records.run(stage)
            pending[run] += self._metrics(kind if is_of_run else stage, line)
        elif kind in ("params", "tags", "run params", "run tags"):
            run = self.state["parent"] if is_of_run else records.run(stage)
            values = records.fresh(kind, line["values"]) if is_of_run else line["values"]
            entity = RunTag if kind.endswith("tags") else Param
            pending[run] += [entity(name, str(value)) for name, value in values.items()]
        elif kind == "inputs":
            records.log_inputs(stage, line["datasets"])
        elif kind == "model":
            records.log_model(stage, line)
        elif kind == "files":
            records.add_files(line["values"])

    def _metrics(self, owner: str, line: dict[str, Any]) -> list[Any]:
        """A repeated send is harmless: key, step, time and value are MLflow's primary key."""
        from mlflow.entities import Metric

        step, moment = line.get("step"), line["time"]
        values = line["values"] if step else self.records.fresh(owner, line["values"])
        return [Metric(name, float(value), moment, step or 0) for name, value in values.items()]

    def _flush(self, pending: Pending) -> None:
        for run, values in pending.items():
            kinds = {name: [each for each in values if type(each).__name__ == name] for name in MAX_BATCH}
            while batch := [each for name, most in MAX_BATCH.items() for each in kinds[name][:most]]:
                self._log_batch(run, batch)
                kinds = {name: kinds[name][most:] for name, most in MAX_BATCH.items()}
        pending.clear()

    def _log_batch(self, run: str, batch: list[Any]) -> None:
        """Send what the server takes of a batch that it refuses: one bad name must not cost a thousand figures."""
        kinds = ([each for each in batch if type(each).__name__ == name] for name in MAX_BATCH)
        if self.records.unless_refused(self.client.log_batch, run, *kinds, quiet=len(batch) > 1):
            return
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]) if half else ():
            self._log_batch(run, part)


def main() -> int:
    """`python -m anadil.runtime.mlflow_sender SPOOL`: send a spool to its MLflow server, and those beside it that wait."""
    options = _options()
    current: Path = options.spool
    note = noted(current)
    # The variable has the password that the spool must not hold.
    os.environ.update(LIMITS | {"MLFLOW_TRACKING_URI": note.get("uri", "")} | os.environ)
    if not os.environ["MLFLOW_TRACKING_URI"]:
        log.error("%s: names no MLflow server; name it in MLFLOW_TRACKING_URI", current)
        return RecipeError.exit_code
    unsent = [path for path in sorted(current.parent.iterdir()) if path != current and has_unsent(path)]

    def is_closed() -> bool:
        closed = current / CLOSED
        if options.parent and os.getppid() != options.parent:
            closed.touch()  # the run was killed: nobody else will
        return closed.exists()

    while (
        not unsent
        and not note.get("status")
        and not any(path.stem != RUN for path in current.glob("*.jsonl"))
    ):
        if is_closed():
            return 0  # every stage was reused: there is nothing to send, and a client takes seconds to import
        time.sleep(0.2)

    def send_one(spool: Path) -> None:
        note = noted(spool)
        if note.get("status"):
            Records(spool).end_all(note["experiment"], note["run"], note["status"])
            return
        sender = Sender(
            spool, note.get("experiment", "anadil"), note.get("name", spool.name), note.get("run", "")
        )
        sender.follow(is_closed if spool == current else lambda: True)
        (spool / DONE).touch()

    def try_all() -> str:
        return _trouble([path for path in (*unsent, current) if not (path / DONE).exists()], send_one)

    return send_all(try_all, is_closed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {SENDER}", description=main.__doc__)
    parser.add_argument("spool", type=Path, help="directory that holds the lines")
    parser.add_argument("--parent", type=int, default=0, help="process whose end closes the spool")
    options = parser.parse_args()
    logs.set_up("tracking")
    return options


def send_all(try_all: Callable[[], str], is_closed: Callable[[], bool]) -> int:
    """Try until all is sent, or once more after the run has ended; the exit code."""
    pause_s = 1.0
    while True:
        last = is_closed()
        if not (reason := try_all()):
            return 0
        log.warning("%s", reason)
        if last:
            return 1
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _trouble(spools: Sequence[Path], send: Callable[[Path], None]) -> str:
    """Send all spools; return why that failed, empty if it did not."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not answers(uri, PROBE_S):
        return f"MLflow is away: nothing answers at {uri}"
    # The plugin for SageMaker asks of each address whether it is SageMaker's, and warns where it is not.
    logging.getLogger("mlflow.tracking.request_header.registry").setLevel(logging.ERROR)
    try:
        for spool in spools:
            send(spool)
    except ImportError as error:
        # A database asks for drivers beside the client.
        module = error.name or "mlflow"
        remedy = install("tracking") if module.startswith("mlflow") else install_module(module)
        return f"tracking needs a package that is not installed: {error}; {remedy}"
    except Exception as error:  # noqa: BLE001  drivers of databases have errors of their own: another try may help
        status = getattr(error, "get_http_status_code", int)()
        if status in SIGN_IN:
            return (
                f"MLflow refuses: {error}; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
                "MLFLOW_TRACKING_TOKEN (pods: cluster.secrets)"
            )
        return f"MLflow is away: {type(error).__name__}: {error}"
    return ""


def whole_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Lines from a byte on that are written to their end, a megabyte at most, and where the next one begins."""
    with path.open("rb") as file:
        file.seek(offset)
        lines = [line for line in file.readlines(1_000_000) if line.endswith(b"\n")]
    return lines, offset + sum(map(len, lines))


def parsed(line: bytes, path: Path) -> dict[str, Any] | None:
    """Content of a line; None for a damaged one, which is said."""
    try:
        data: dict[str, Any] = json.loads(line)
    except ValueError:
        log.warning("left out a damaged line of %s: its writer was killed", path)
        return None
    return data


def began(path: Path) -> tuple[int, str]:
    """When a stage began, in ms, by its first line; what is of no stage comes first."""
    with path.open("rb") as file:
        try:
            return int(json.loads(file.readline()).get("time", 0)), path.name
        except ValueError:
            return 0, path.name


if __name__ == "__main__":
    sys.exit(main())
