"""MLflow without its power to stop a run: stages append to a spool, another process sends it.

One metric to a server that is away blocks the MLflow client for minutes, so no stage ever
calls it. A `Tracker` appends JSON lines to `<spool>/<stage>.jsonl`; `Sender`, in a process of
its own (`python -m anadil.tracking SPOOL --uri URI`), follows the files and remembers in
`sent.json` how far it came. What could not be sent stays in the spool; the sender of the next
run with the same work directory sends it.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anadil import log as logs
from anadil.config import Recipe

log = logging.getLogger(__name__)

SPOOL_VARIABLE = "ANADIL_TRACKING_SPOOL"
"""Names the spool directory to stages that run inside `anadil run`, which owns the sender."""
SPOOL = "tracking"
"""Directory of the spool in the work directory of a stage that runs alone."""
DONE = "done"
"""File that the sender leaves when all is sent."""
CLOSED = "closed"
"""File whose presence tells the sender that no more lines will come."""
PATIENCE_S = 20.0
"""How long the end of a run waits for a sender that is not done."""
HTTP_BAD_REQUEST = 400
MAX_VALUE_CHARS = 6_000
"""Longest parameter or tag value that MLflow 3 takes."""


class Tracker:
    """The write side of one stage's tracking; every call returns at once and none fails."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def start(self) -> None:
        """The stage begins, maybe again after it was killed."""
        self._append({"kind": "start", "time": _now_ms()})

    def params(self, values: Mapping[str, object]) -> None:
        """Settings of the stage."""
        texts = {name: str(value)[:MAX_VALUE_CHARS] for name, value in values.items()}
        self._append({"kind": "params", "values": texts})

    def tags(self, values: Mapping[str, object]) -> None:
        """Words by which runs are found, such as URIs and digests."""
        texts = {name: str(value)[:MAX_VALUE_CHARS] for name, value in values.items()}
        self._append({"kind": "tags", "values": texts})

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Numbers at a step; for training a step is an optimizer step."""
        self._append({"kind": "metrics", "values": dict(values), "step": step, "time": _now_ms()})

    def end(self, status: str) -> None:
        """How the stage ended: FINISHED, FAILED or KILLED."""
        self._append({"kind": "end", "status": status, "time": _now_ms()})

    def _append(self, line: dict[str, object]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # NumPy's and torch's numbers are numbers too.
                file.write(json.dumps(line, default=float) + "\n")
        except OSError as error:
            log.warning("tracking: cannot write %s (%s); tracking of this stage ends here", self._path, error)
            self._path = None


@contextmanager
def tracked(stage: str, recipe: Recipe, work: Path) -> Iterator[Tracker]:
    """A tracker for one stage; outside `anadil run` with a sender of its own.

    Args:
        stage: Name of the nested run.
        recipe: Its `tracking` section says where MLflow is.
        work: Directory for the spool where nobody else has one.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        yield Tracker(None)
        return
    spool = os.environ.get(SPOOL_VARIABLE)
    if spool:
        yield _open(Path(spool), stage)
        return
    uri = tracking_uri(recipe)
    if uri is None:
        yield Tracker(None)
        return
    folder = work / SPOOL
    with sender(folder, uri, recipe.tracking.experiment, stage):
        yield _open(folder, stage)


def tracking_uri(recipe: Recipe, default: str | None = None) -> str | None:
    """Where MLflow is: the recipe, else MLFLOW_TRACKING_URI, else `default`; None for `off`."""
    uri = recipe.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or default
    return None if uri == "off" else uri


@contextmanager
def sender(spool: Path, uri: str, experiment: str, run_name: str) -> Iterator[None]:
    """Run a sender beside the block, and wait a bounded time for it at the end."""
    spool.mkdir(parents=True, exist_ok=True)
    (spool / CLOSED).unlink(missing_ok=True)
    (spool / DONE).unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "anadil.tracking",
        str(spool),
        "--experiment",
        experiment,
        "--name",
        run_name,
    ]
    # The URI may hold a password, so it travels in the environment, not in the arguments.
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "PYTHONUNBUFFERED": "1"}
    with (spool / "sender.log").open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        (spool / CLOSED).touch()
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code:
            log.warning(
                "tracking: MLflow did not take everything; it stays in %s (see sender.log there), and the next "
                "run beside it sends it, or: python -m anadil.tracking %s",
                spool,
                spool,
            )


def has_unsent(work: Path) -> bool:
    """Whether the work directory of a stage keeps tracking that MLflow has not taken yet."""
    return _waits(work / SPOOL)


def _open(spool: Path, stage: str) -> Tracker:
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{stage}.jsonl"
    tracker = Tracker(path)
    tracker.start()
    return tracker


def _now_ms() -> int:
    return int(time.time() * 1000)


class Sender:
    """Follows the files of one spool and hands their lines to MLflow, each once."""

    def __init__(self, spool: Path, experiment: str, name: str) -> None:
        from mlflow import MlflowClient

        self.spool = spool
        self.client: Any = MlflowClient()
        self.experiment = experiment
        self.name = name
        self._state_path = spool / "sent.json"
        self.state: dict[str, Any] = {"parent": None, "runs": {}, "offsets": {}, "failed": False}
        if self._state_path.is_file():
            self.state.update(json.loads(self._state_path.read_text(encoding="utf-8")))

    def follow(self, poll_s: float = 0.5) -> None:
        """Send until the spool is closed and nothing is left."""
        self._ensure_parent()
        while True:
            closed = (self.spool / CLOSED).exists()
            sent = sum(self._send_file(path) for path in sorted(self.spool.glob("*.jsonl")))
            if closed and not sent:
                break
            if not sent:
                time.sleep(poll_s)
        status = "FAILED" if self.state["failed"] else "FINISHED"
        if not os.environ.get("MLFLOW_RUN_ID"):
            self.client.set_terminated(self.state["parent"], status)
        (self.spool / DONE).touch()

    def _ensure_parent(self) -> None:
        # Kubeflow Pipelines' MLflow plugin opens the run itself and names it here.
        self.state["parent"] = self.state["parent"] or os.environ.get("MLFLOW_RUN_ID")
        if self.state["parent"]:
            return
        found = self.client.get_experiment_by_name(self.experiment)
        experiment_id = found.experiment_id if found else self.client.create_experiment(self.experiment)
        run = self.client.create_run(experiment_id, run_name=self.name)
        self.state["parent"] = run.info.run_id
        self._save()

    def _send_file(self, path: Path) -> int:
        offset = int(self.state["offsets"].get(path.name, 0))
        with path.open("rb") as file:
            file.seek(offset)
            lines = [line for line in file.readlines(1_000_000) if line.endswith(b"\n")]
        metrics: list[Any] = []
        for line in lines:
            try:
                data = json.loads(line)
            except ValueError:
                log.warning("left out a damaged line of %s: its writer was killed", path)
                continue
            metrics += self._send(path.stem, data)
        self._log(path.stem, metrics)
        if lines:
            self.state["offsets"][path.name] = offset + sum(map(len, lines))
            self._save()
        return len(lines)

    def _send(self, stage: str, line: dict[str, Any]) -> list[Any]:
        """Send one line, or give back its metrics, which go out many at a time."""
        from mlflow.entities import Metric

        kind = line["kind"]
        if kind == "start":
            self._run(stage, line["time"])
        elif kind == "end":
            self.state["failed"] |= line["status"] == "FAILED"
            self.client.set_terminated(self._run(stage), line["status"], line["time"])
        elif kind == "metrics":
            # A repeated send is harmless: key, step, time and value are MLflow's primary key.
            step, moment = line["step"], line["time"]
            return [Metric(name, float(value), moment, step) for name, value in line["values"].items()]
        else:
            call = self.client.set_tag if kind == "tags" else self.client.log_param
            for name, value in line["values"].items():
                self._unless_refused(call, self._run(stage), name, value)
        return []

    def _log(self, stage: str, metrics: list[Any]) -> None:
        for start in range(0, len(metrics), 1000):  # MLflow's largest batch
            batch = metrics[start : start + 1000]
            self._unless_refused(self.client.log_batch, self._run(stage), batch)

    def _unless_refused(self, call: Callable[..., object], *values: object) -> None:
        """Make a call; what the server will never take is left out, so that it does not block the rest."""
        from mlflow.exceptions import MlflowException

        try:
            call(*values)
        except MlflowException as error:
            if error.get_http_status_code() != HTTP_BAD_REQUEST:
                raise
            log.warning("left out: %s", error)

    def _run(self, stage: str, start_ms: int | None = None) -> str:
        runs: dict[str, str] = self.state["runs"]
        if stage not in runs:
            experiment_id = self.client.get_run(self.state["parent"]).info.experiment_id
            tags = {"mlflow.parentRunId": self.state["parent"]}
            run = self.client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=stage)
            runs[stage] = run.info.run_id
            self._save()
        return runs[stage]

    def _save(self) -> None:
        draft = self._state_path.with_suffix(".draft")
        draft.write_text(json.dumps(self.state), encoding="utf-8")
        draft.replace(self._state_path)


def main() -> int:
    """`python -m anadil.tracking SPOOL`: send a spool to MLFLOW_TRACKING_URI, and those beside it that wait."""
    parser = argparse.ArgumentParser(prog="python -m anadil.tracking", description=main.__doc__)
    parser.add_argument("spool", type=Path, help="directory that holds the lines")
    parser.add_argument("--experiment", default="anadil", help="MLflow experiment")
    parser.add_argument("--name", default="anadil", help="name of the parent run")
    options = parser.parse_args()
    logs.set_up("tracking")
    # Small limits: whoever waits for us waits seconds, and the spool keeps what is left.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    waiting = [
        path for path in sorted(options.spool.parent.iterdir()) if path != options.spool and _waits(path)
    ]
    while not waiting and not any(options.spool.glob("*.jsonl")):
        if (options.spool / CLOSED).exists():
            return 0  # every stage was reused: there is nothing to send, and MLflow takes seconds to import
        time.sleep(0.2)
    from mlflow.exceptions import MlflowException

    try:
        for spool in [*waiting, options.spool]:
            Sender(spool, options.experiment, options.name).follow()
    except (MlflowException, OSError) as error:
        log.warning("MLflow is away: %s", error)
        return 1
    return 0


def _waits(spool: Path) -> bool:
    """Whether an earlier run left lines in this spool."""
    return (spool / CLOSED).exists() and not (spool / DONE).exists() and any(spool.glob("*.jsonl"))


if __name__ == "__main__":
    sys.exit(main())
