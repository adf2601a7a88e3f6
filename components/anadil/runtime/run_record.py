"""Record of a run: its recipe, its progress, cost and results of its steps.

One small file, `<storage.root>/runs/<run>.json`, so that many runs are listed by one listing and a read of each;
`runs/<run>/recipe.json` is the resolved recipe. `anadil run` begins and ends it, and each step adds itself. Steps of a
run follow one another, so no two write at once. Steps of a pipeline may run side by side, and also write
`runs/<run>/<stage>.json`.
"""

import functools
import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core import errors
from anadil.core.errors import AnadilError, DataError
from anadil.core.log import masked
from anadil.core.processes import start_of
from anadil.core.reasons import first_mistake
from anadil.core.stages import FLOW, STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import RETRAIN, flow_of

log = logging.getLogger(__name__)

State = Literal["running", "finished", "failed", "stopped", "budget reached"]
STOPPED = (errors.INTERRUPTED, errors.Stopped.exit_code)
MAX_MESSAGE_CHARS = 2_000
RECIPE_FILE = "recipe.json"
LOG = "log.jsonl"
"""Messages of a run on this machine, in `runs/<run>/` of its work directory."""
UNWRITTEN = "ANADIL_UNWRITTEN_RECORD"
"""Names the record of which was said that it cannot be written."""


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step: in the record of its run, and in a file of its own for whoever follows a pipeline.

    Kubeflow Pipelines tells its exit handler nothing about the steps, and their logs go with the pods.
    """

    stage: str = ""
    status: Literal["running", "finished", "failed", "stopped"] = "running"
    exit_code: int = 0
    message: str = ""
    """Why it failed."""
    uri: str = ""
    """The artifact, if this process has made it."""
    seconds: float = 0
    figures: dict[str, bool | float | int | str] = field(default_factory=dict)
    """The stage's line of figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run."""

    id: str
    recipe: str
    """Name that the user gave the recipe; on a cluster, where nobody says, its language and base model."""
    started: float
    """Seconds since 1970."""
    updated: float
    """When it was last written."""
    stages: tuple[str, ...]
    """Those that the run has, in order."""
    root: str = ""
    """`storage.root`."""
    instance: str = ""
    """`cluster.instance`: what its hours cost."""
    nodes: int = 1
    process: str = ""
    """Host, id and start of the `anadil run` that drives it; empty on a cluster."""
    steps: dict[str, StepRecord] = field(default_factory=dict)
    exit_code: int | None = None
    """Exit code of the whole run; None while it runs, and where nobody was left to say."""
    message: str = ""
    """Why it ended."""

    @property
    def state(self) -> State:
        """Return the state of the run."""
        if self.exit_code is not None:
            return state_of(self.exit_code)
        if codes := [step.exit_code for step in self.steps.values() if step.exit_code]:
            return state_of(codes[-1])
        last = self.steps.get(self.stages[-1]) if self.stages else None
        if last and last.status == "finished":
            return "finished"
        return "stopped" if is_gone(self.process) else "running"


def ended_at(record: RunRecord, place: str) -> float:
    """Return when a run ended, in seconds since 1970: now while it runs, and its last sign where its process is gone."""
    if record.state == "running":
        return time.time()
    last = record.updated
    # A killed step has written nothing into the record since it began.
    if record.exit_code is None and "://" not in place:
        with suppress(OSError):
            last = max(last, Path(place, "runs", record.id, LOG).stat().st_mtime)
    return last


def state_of(exit_code: int) -> State:
    """State of a run that ended with an exit code."""
    if exit_code == errors.BudgetReached.exit_code:
        return "budget reached"
    return "finished" if not exit_code else "stopped" if exit_code in STOPPED else "failed"


def record_uri(root: str, run: str) -> str:
    """Return the place of a run's record."""
    return join(root, "runs", f"{run}.json")


def read_record(uri: str) -> RunRecord:
    """The record of a run."""
    try:
        return _adapter().validate_json(storage.store(uri).read(uri))
    except ValidationError as error:
        raise DataError(f"{uri}: not the record of a run ({first_mistake(error)}); remove it") from None


# One for all records: making it takes longer than a record.
_adapter = functools.cache(lambda: TypeAdapter(RunRecord))


def new_record(recipe: Recipe, run: str, *, name: str = "", until: str = "", process: str = "") -> RunRecord:
    """Return the record of a run that begins now.

    `name` is what the user called the recipe, `until` the last stage, `process` from `this_process`.
    """
    now = time.time()
    model = recipe.base.model.rstrip("/").rpartition("/")[2]
    return RunRecord(
        id=run, recipe=name or f"{recipe.language_code} {model}", started=now, updated=now, root=recipe.storage.root or "",
        stages=tuple(step.name for step in flow_of(recipe, until)),
        instance=recipe.cluster.instance or "", nodes=recipe.cluster.nodes, process=process,
    )  # fmt: skip


def note_step(recipe: Recipe, run: str, stage: str, step: StepRecord) -> None:
    """Put a step into the record of its run; what cannot be written fails no step."""
    root = recipe.storage.root
    # A pod of a parallel loop is a part of a step.
    names = {step.name for step in flow_of(recipe, FLOW[-1].name)} | {*STAGES, RETRAIN}
    if not root or stage not in names:
        return
    uri = record_uri(root, run)
    with no_failure(uri):
        known = _known(uri)
        record = known or new_record(recipe, run)
        if not known:
            write_recipe(root, run, recipe)
        step = replace(step, message=masked(step.message)[:MAX_MESSAGE_CHARS])
        if stage == RETRAIN:
            # It is no stage and makes no artifact; where it fails, the run has.
            _write(uri, replace(record, exit_code=step.exit_code or None, message=step.message))
        else:
            _write(uri, replace(record, steps=record.steps | {stage: step}))


def step_uri(root: str, run: str, stage: str) -> str:
    """Return the place of a step's record."""
    return join(root, "runs", run, f"{stage}.json")


def read_steps(root: str, run: str, stages: Sequence[str]) -> list[StepRecord]:
    """Records that the steps of a run have written, in this order."""
    uris = [step_uri(root, run, stage) for stage in stages]
    return [read_step(uri) for uri in uris if storage.store(uri).exists(uri)]


def read_step(uri: str) -> StepRecord:
    """The record of a step."""
    try:
        return StepRecord(**json.loads(storage.store(uri).read(uri)))
    except (ValueError, TypeError) as error:
        raise DataError(f"{uri}: not the status of a step ({error}); remove it") from None


@contextmanager
def record_step(recipe: Recipe, run: str, stage: str) -> Iterator[StepRecord]:
    """Record that the block runs and how it ended; nothing without a run or a `storage.root`.

    Yields:
        A record that takes the artifact, its figures, and the exit code of processes whose error is not known here.
    """
    step, started, root = StepRecord(stage=stage), time.monotonic(), recipe.storage.root
    if not root or not run:
        yield step
        return
    note_step(recipe, run, stage, step)

    def end(code: int, message: str = "") -> None:
        step.status = "finished" if not code else "stopped" if code in STOPPED else "failed"
        step.exit_code, step.message = code, masked(message)[:MAX_MESSAGE_CHARS]
        step.seconds = round(time.monotonic() - started, 1)
        uri = step_uri(root, run, stage)
        # The step itself has ended as it has; only the page about the run knows less.
        with no_failure(record_uri(root, run), uri):
            storage.store(uri).write(uri, json.dumps(asdict(step), ensure_ascii=False).encode())
        note_step(recipe, run, stage, step)

    try:
        yield step
    except AnadilError as error:
        end(error.exit_code, str(error))
        raise
    except KeyboardInterrupt:
        end(errors.INTERRUPTED, "interrupted")
        raise
    except Exception as error:  # recorded as a bug and raised again, so that the record never says "running"
        end(errors.BUG, f"bug: {type(error).__name__}: {error}")
        raise
    # A process of the group may have recorded its URI or its error already. That record is more exact, so it stays.
    if step.uri:
        end(0)
    elif step.exit_code:
        recorded: list[StepRecord] = []
        with suppress(AnadilError):
            recorded = read_steps(root, run, [stage])
        if not any(each.exit_code for each in recorded):
            end(step.exit_code)


def end_run(root: str, run: str, exit_code: int, message: str = "") -> None:
    """Record how a whole run ended, if it has a record."""
    uri = record_uri(root, run)
    with no_failure(uri):
        if record := _known(uri):
            message = masked(message)[:MAX_MESSAGE_CHARS]
            _write(uri, replace(record, exit_code=exit_code, message=message or record.message))


def end_left_run(root: str, run: str, message: str) -> None:
    """Record as failed a run that still says that it runs: its last step left no word."""
    uri = record_uri(root, run)
    with no_failure(uri):
        record = _known(uri)
    if record and record.state == "running":
        end_run(root, run, errors.AnadilError.exit_code, message)


def recipe_name(name_or_path: str) -> str:
    """Name in a list of a recipe that was given by name, by path, as JSON text, or as the recipe of an earlier run."""
    path = Path(name_or_path)
    if path.name == RECIPE_FILE and path.parent.parent.name == "runs":
        with suppress(AnadilError):
            return read_record(f"{path.parent}.json").recipe
    return "" if name_or_path.lstrip().startswith("{") else Path(name_or_path).stem


@contextmanager
def recorded_run(recipe: Recipe, work: Path, run: str, name: str, until: str) -> Iterator[list[int]]:
    """Keep the record of a run that this process drives, in its storage root and in the work directory.

    Yields:
        A list that takes the run's exit code.
    """
    root = str(recipe.storage.root)
    begun = new_record(recipe, run, name=name, until=until, process=this_process())
    for place in dict.fromkeys((root, str(work))):
        with no_failure(record_uri(place, run)):
            write_recipe(place, run, recipe)
            _write(record_uri(place, run), begun)
    codes: list[int] = []
    ended = errors.BUG
    try:
        yield codes
        ended = codes[-1] if codes else 0
    except KeyboardInterrupt:
        ended = errors.INTERRUPTED
        raise
    except AnadilError as error:
        ended = error.exit_code
        raise
    finally:
        end_run(root, run, ended)
        if root != str(work):
            with no_failure(record_uri(root, run)):
                last = _known(record_uri(root, run)) or replace(begun, exit_code=ended)
                _write(record_uri(str(work), run), last)


def this_process() -> str:
    """Mark that tells this process from every other one, also after its id was given to another."""
    return f"{socket.gethostname()} {os.getpid()} {start_of(os.getpid())}"


def is_gone(process: str) -> bool:
    """Return whether a process of this machine has ended; False for other machines."""
    host, _, rest = process.partition(" ")
    number, _, start = rest.partition(" ")
    return host == socket.gethostname() and number.isdigit() and start_of(int(number)) != start


def _known(uri: str) -> RunRecord | None:
    return read_record(uri) if storage.store(uri).exists(uri) else None


def _write(uri: str, record: RunRecord) -> None:
    content = asdict(replace(record, updated=time.time()))
    storage.store(uri).write(uri, json.dumps(content, ensure_ascii=False).encode(errors="replace"))


def write_recipe(root: str, run: str, recipe: Recipe) -> str:
    """Write the resolved recipe of a run; return its place."""
    uri = join(root, "runs", run, RECIPE_FILE)
    storage.store(uri).write(uri, recipe.model_dump_json(indent=1).encode(errors="replace"))
    return uri


@contextmanager
def no_failure(record: str, uri: str = "") -> Iterator[None]:
    """Let a run continue whose record, or a file of it, cannot be written: one warning for each record."""
    try:
        yield
    except (AnadilError, OSError) as error:
        if os.environ.get(UNWRITTEN) != record:
            log.warning("%s: cannot be written: %s", uri or record, error)
        # The processes of its steps inherit it.
        os.environ[UNWRITTEN] = record


def recipe_of(root: str, run: str) -> Mapping[str, object]:
    """The resolved recipe of a run; empty where it was not kept."""
    uri = join(root, "runs", run, RECIPE_FILE)
    with suppress(ValueError):
        recipe = json.loads(storage.store(uri).read(uri)) if storage.store(uri).exists(uri) else {}
        return recipe if isinstance(recipe, dict) else {}
    return {}
