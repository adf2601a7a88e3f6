"""MLflow that cannot stop a run: stages append to a spool, another process sends it.

One metric to a server that is away blocks the MLflow client for minutes, so no stage ever
calls it. A `Tracker` appends JSON lines to `<spool>/<stage>.jsonl`; `mlflow_sender.py`, in a process
of its own, follows the files and remembers in `sent.json` how far it came. What could not be sent stays in the spool; the sender of the next
run with the same work directory sends it.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from anadil.core.errors import PreflightError
from anadil.core.log import masked
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import tracking_fault
from anadil.runtime import prometheus

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
MAX_VALUE_CHARS = 6_000
"""Longest parameter or tag value that MLflow 3 takes."""
LEARNING = ("loss", "lr", "grad_norm", "accuracy")
"""Curves that people look at first."""


class Tracker:
    """The write side of one stage's tracking; every call returns at once and none fails."""

    def __init__(self, path: Path | None, stage: str = "") -> None:
        self._path = path
        self._stage = stage

    def start(self) -> None:
        """The stage begins, maybe again after it was killed."""
        self._append({"kind": "start", "time": _now_ms()})

    def params(self, values: Mapping[str, object]) -> None:
        """Settings of the stage."""
        self._append({"kind": "params", "values": _texts(values)})

    def tags(self, values: Mapping[str, object]) -> None:
        """Words by which runs are found, such as URIs and digests."""
        self._append({"kind": "tags", "values": _texts(values)})

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of a step (for training an optimizer step), or without one the stage's final figures.

        A curve's key has a group before a slash and a final figure's has none, so that no key
        of MLflow has two meanings.
        """
        prometheus.set_gauges(self._stage, values, step or 0)
        keyed = values if step is None else {self._curve(name): value for name, value in values.items()}
        self._append({"kind": "metrics", "values": dict(keyed), "step": step, "time": _now_ms()})

    def run_params(self, values: Mapping[str, object]) -> None:
        """Settings of the whole run, of which this stage is a part."""
        self._append({"kind": "run params", "values": _texts(values)})

    def run_metrics(self, values: Mapping[str, float]) -> None:
        """Figures by which whole runs are compared."""
        self._append({"kind": "run metrics", "values": dict(values), "time": _now_ms()})

    def _curve(self, name: str) -> str:
        """A curve's key: MLflow shows groups by name, and `system/` on a page of its own."""
        if self._stage == "tokenizer":
            return f"tokenizer/{name}"
        if name in LEARNING:
            return f"train/{name}"
        if name.startswith("validation_"):
            return name.replace("_", "/", 1)
        return f"system/{name}"

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
def track_stage(stage: str, recipe: Recipe, work: Path) -> Iterator[Tracker]:
    """A tracker for one stage; outside `anadil run` with a sender of its own.

    Args:
        stage: Name of the nested run.
        recipe: Its `tracking` section says where MLflow is.
        work: Directory for the spool where nobody else has one.
    """
    prometheus.begin(stage)
    if int(os.environ.get("RANK", "0")) > 0:
        yield Tracker(None, stage)
        return
    spool = os.environ.get(SPOOL_VARIABLE)
    if spool:
        yield _open(Path(spool), stage)
        return
    uri = tracking_uri(recipe)
    if uri is None:
        yield Tracker(None, stage)
        return
    folder = work / SPOOL
    with run_sender(folder, uri, recipe.tracking.experiment, stage):
        yield _open(folder, stage)


def tracking_uri(recipe: Recipe, default: str | None = None) -> str | None:
    """Where MLflow is: the recipe, else MLFLOW_TRACKING_URI, else `default`; None for `off`.

    Raises:
        PreflightError: The variable names no address that a recipe may name.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if recipe.tracking.uri is None and given and (fault := tracking_fault(given)):
        raise PreflightError(f"MLFLOW_TRACKING_URI: {masked(given)}: {fault}; or set tracking.uri")
    uri = recipe.tracking.uri or given or default
    return None if uri == "off" else uri


def run_settings(recipe: Recipe) -> dict[str, str]:
    """What a run is known by: language, base, seed, and each key that is not the default, by its path."""
    always = {"language": recipe.language_code, "base.model": recipe.base.model, "seed": str(recipe.seed)}
    given = dict(_flat("", recipe.model_dump(mode="json", exclude_defaults=True)))
    return always | {key: value for key, value in given.items() if key not in always}


def _flat(prefix: str, node: object) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix, node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


@contextmanager
def run_sender(spool: Path, uri: str, experiment: str, run_name: str) -> Iterator[None]:
    """Run a sender beside the block, and wait a bounded time for it at the end."""
    spool.mkdir(parents=True, exist_ok=True)
    (spool / CLOSED).unlink(missing_ok=True)
    (spool / DONE).unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "anadil.runtime.mlflow_sender", str(spool)),
        *("--experiment", experiment, "--name", run_name, "--parent", str(os.getpid())),
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
                "run beside it sends it, or: python -m anadil.runtime.mlflow_sender %s",
                spool,
                spool,
            )


def has_unsent(spool: Path) -> bool:
    """Whether an earlier run left lines in this spool that MLflow has not taken yet."""
    return (spool / CLOSED).exists() and not (spool / DONE).exists() and any(spool.glob("*.jsonl"))


def _open(spool: Path, stage: str) -> Tracker:
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{stage}.jsonl"
    tracker = Tracker(path, stage)
    tracker.start()
    return tracker


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value)[:MAX_VALUE_CHARS] for name, value in values.items()}


def _now_ms() -> int:
    return int(time.time() * 1000)
