"""The process that hands a run's tracking to MLflow: `python -m anadil.runtime.mlflow_sender SPOOL`.

It follows the spool of a run, tries again while the server is away, ends with the run, and
leaves what could not be sent for the next sender in the same place.
"""

import argparse
import copy
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anadil.core import log as logs
from anadil.runtime.mlflow_spool import CLOSED, DONE, has_unsent

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 15.0
"""Between two tries to reach a server; shorter than a run's patience at its end."""
HTTP_BAD_REQUEST = 400
KIND_TAG = "mlflow.experimentKind"
KIND = "custom_model_development"
"""What makes MLflow's pages open an experiment as one of training and not of chat applications.
Source: ExperimentKind in the pages of MLflow 3.17."""


class Sender:
    """Follows the files of one spool and hands their lines to MLflow, each once."""

    def __init__(self, spool: Path, experiment: str, name: str) -> None:
        from mlflow import MlflowClient

        self.spool = spool
        self.client: Any = MlflowClient()
        self.experiment = experiment
        self.name = name
        self._state_path = spool / "sent.json"
        self.state: dict[str, Any] = {"parent": None, "runs": {}, "offsets": {}, "ended": {}, "finals": {}}
        if self._state_path.is_file():
            self.state.update(json.loads(self._state_path.read_text(encoding="utf-8")))
        # What this process has handed over; remembered only with the offset of its lines, so that
        # a server that goes away in between loses nothing.
        self._finals: dict[str, dict[str, Any]] = copy.deepcopy(self.state["finals"])

    def follow(self, is_closed: Callable[[], bool], poll_s: float = 0.5) -> None:
        """Send until the spool is closed and nothing is left."""
        self._ensure_parent()
        while True:
            closed = is_closed()
            sent = sum(self._send_file(path) for path in sorted(self.spool.glob("*.jsonl")))
            if closed and not sent:
                break
            if not sent:
                time.sleep(poll_s)
        self._end()
        (self.spool / DONE).touch()

    def _end(self) -> None:
        """Say how the runs ended; a stage without a last line was killed."""
        ended: dict[str, str] = self.state["ended"]
        for stage, run in self.state["runs"].items():
            if stage not in ended:
                ended[stage] = "KILLED"
                self.client.set_terminated(run, "KILLED")
        status = next((s for s in ("FAILED", "KILLED") if s in ended.values()), "FINISHED")
        if not os.environ.get("MLFLOW_RUN_ID"):
            self.client.set_terminated(self.state["parent"], status)

    def _ensure_parent(self) -> None:
        # Kubeflow Pipelines' MLflow plugin opens the run itself and names it here.
        self.state["parent"] = self.state["parent"] or os.environ.get("MLFLOW_RUN_ID")
        if self.state["parent"]:
            return
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            experiment_id = self.client.create_experiment(self.experiment, tags={KIND_TAG: KIND})
        else:
            experiment_id = found.experiment_id
            if KIND_TAG not in found.tags:
                self._unless_refused(self.client.set_experiment_tag, experiment_id, KIND_TAG, KIND)
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
            self.state["finals"] = copy.deepcopy(self._finals)
            self._save()
        return len(lines)

    def _send(self, stage: str, line: dict[str, Any]) -> list[Any]:
        """Send one line, or give back its metrics, which go out many at a time."""
        from mlflow.entities import Metric

        kind = line["kind"]
        if kind == "start":
            self.state["ended"].pop(stage, None)
            self._run(stage, line["time"])
        elif kind == "end":
            self.state["ended"][stage] = line["status"]
            self.client.set_terminated(self._run(stage), line["status"], line["time"])
        elif kind in ("metrics", "run metrics"):
            # A repeated send is harmless: key, step, time and value are MLflow's primary key.
            step, moment = line.get("step"), line["time"]
            values = line["values"] if step else self._new(kind if kind == "run metrics" else stage, line)
            metrics = [Metric(name, float(value), moment, step or 0) for name, value in values.items()]
            if kind == "metrics":
                return metrics
            self._unless_refused(self.client.log_batch, self.state["parent"], metrics)
        elif kind == "run params":
            for name, value in self._new(kind, line).items():
                self._unless_refused(self.client.log_param, self.state["parent"], name, value)
        else:
            call = self.client.set_tag if kind == "tags" else self.client.log_param
            for name, value in line["values"].items():
                self._unless_refused(call, self._run(stage), name, value)
        return []

    def _new(self, owner: str, line: dict[str, Any]) -> dict[str, Any]:
        """Values that were not sent before: final figures are said by several places, and shown once."""
        known = self._finals.setdefault(owner, {})
        new = {name: value for name, value in line["values"].items() if known.get(name) != value}
        known.update(new)
        return new

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
    """`python -m anadil.runtime.mlflow_sender SPOOL`: send a spool to MLFLOW_TRACKING_URI, and those beside it that wait."""
    parser = argparse.ArgumentParser(prog="python -m anadil.runtime.mlflow_sender", description=main.__doc__)
    parser.add_argument("spool", type=Path, help="directory that holds the lines")
    parser.add_argument("--experiment", default="anadil", help="MLflow experiment")
    parser.add_argument("--name", default="anadil", help="name of the parent run")
    parser.add_argument("--parent", type=int, default=0, help="process whose end closes the spool")
    options = parser.parse_args()
    logs.set_up("tracking")
    # Small limits: whoever waits for us waits seconds, and the spool keeps what is left.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    waiting = [
        path for path in sorted(options.spool.parent.iterdir()) if path != options.spool and has_unsent(path)
    ]

    def is_closed() -> bool:
        closed: Path = options.spool / CLOSED
        if options.parent and os.getppid() != options.parent:
            closed.touch()  # the run was killed: nobody else will
        return closed.exists()

    while not waiting and not any(options.spool.glob("*.jsonl")):
        if is_closed():
            return 0  # every stage was reused: there is nothing to send, and MLflow takes seconds to import
        time.sleep(0.2)
    return _send_all([*waiting, options.spool], options.experiment, options.name, is_closed)


def _send_all(spools: list[Path], experiment: str, name: str, is_closed: Callable[[], bool]) -> int:
    """Send spools one after another; while the run goes on, a server that is away is tried again."""
    from mlflow.exceptions import MlflowException

    pause_s = 1.0
    while True:
        last = is_closed()
        try:
            for spool in spools:
                if not (spool / DONE).exists():
                    is_own = spool == spools[-1]
                    Sender(spool, experiment, name).follow(is_closed if is_own else lambda: True)
        except (MlflowException, OSError) as error:
            log.warning("MLflow is away: %s", error)
            if last:
                return 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        else:
            return 0


if __name__ == "__main__":
    sys.exit(main())
