"""W&B and TensorBoard by their own clients, in the process of each stage; MLflow has a spool (`tracking_spool.py`).

A client that fails costs one warning, and the stage goes on without it.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import uuid4

from anadil.core.files import write_atomic
from anadil.core.install import install
from anadil.core.json_text import json_lines
from anadil.core.log import masked
from anadil.recipe.tracking_address import TENSORBOARD, tensorboard_folder, tracker, wandb_project
from anadil.runtime.reachable import answers

log = logging.getLogger(__name__)

STATE = "tracker.json"
"""File beside the steps of a run with what they share: the run's id and page in W&B, or its directory."""
FILES = "files"
"""Directory beside it with what is to become artifacts."""
NAMES = {"mlflow": "MLflow", "wandb": "W&B", TENSORBOARD: "TensorBoard"}
NOTE_TAG = "mlflow.note.content"
"""Tag whose text is the run's notes, and the description on MLflow's page."""
TEXTS = ("recipe.yaml", "report.md")
"""Small files that TensorBoard shows as texts."""
PROBE_S = 5.0
"""How long W&B has to answer at all, before its client is started."""
FINISH_S = 20.0
"""How long the end of a stage waits for uploads."""
OFFLINE = ("offline", "dryrun", "disabled")
LIMITS = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
SETTINGS = {
    "disable_git": True, "save_code": False, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True,
    "x_save_requirements": False, "init_timeout": FINISH_S, "finish_timeout": FINISH_S, "finish_timeout_raises": True,
}  # fmt: skip
"""Machine, code and packages would tell more than was asked."""


class Client(Protocol):
    """A client of a tracker, which takes lines of a stage as `Tracker` makes them."""

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Hand over one line."""

    def close(self) -> None:
        """Wait a bounded time for what was handed over."""


class GuardedClient:
    """A client whose first error is a warning, and its end."""

    def __init__(self, uri: str, folder: Path, stage: str, name: str, group: str) -> None:
        """Open the client for a stage.

        Args:
            uri: `tracking.uri`, of W&B or TensorBoard.
            folder: Of the run, shared by its steps.
            group: Id of a run whose other steps share no folder with this one; empty for none.
        """
        self._kind, self._folder = tracker(uri), folder
        self._client: Client | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._client = (
                EventFiles(uri, folder, noted(folder).get("name", name))
                if self._kind == TENSORBOARD
                else WandbRun(uri, folder, stage, noted(folder).get("name", name), group)
            )
        except Exception as error:  # noqa: BLE001  a client has errors of many libraries, and none may end a run
            self._fail(error)

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Hand over one line."""
        if self._client is not None:
            try:
                self._client.send(stage, line)
            except Exception as error:  # noqa: BLE001  as above
                self._fail(error)

    def send_all(self, stage: str, file: Path) -> None:
        """Hand over the lines of a file, if there is one, once."""
        if file.is_file():
            for line in json_lines(file):
                self.send(stage, line)
            file.rename(file.with_suffix(".sent"))

    def close(self) -> None:
        """End the client."""
        if self._client is not None:
            try:
                self._client.close()
            except Exception as error:  # noqa: BLE001  as above
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._client, remedy = None, "correct tracking.uri, or make room there"
        if isinstance(error, ImportError):
            remedy = install(self._kind)
        elif self._kind != TENSORBOARD:
            remedy = "set WANDB_API_KEY (pods: cluster.secrets), or WANDB_MODE=offline"
        reason = f"tracking: {NAMES[self._kind]}: {masked(str(error)) or type(error).__name__}"
        is_new = said_first(self._folder, reason)
        log.log(
            logging.WARNING if is_new else logging.DEBUG, "%s; the run goes on without it; %s", reason, remedy
        )


class EventFile:
    """The event file of one stage, or of the run.

    tensorboardX's own SummaryWriter hands events to a thread through a short queue, and waits for ever once that thread
    has died of a full disk. So its file format is used without its thread.
    """

    def __init__(self, folder: Path) -> None:
        """Begin the file; a stage that was begun before goes on in the same directory."""
        self._events = import_module("tensorboardX.proto.event_pb2")
        self._summaries = import_module("tensorboardX.proto.summary_pb2")
        folder.mkdir(parents=True, exist_ok=True)
        self._last = -1 if not any(folder.glob("events*")) else None
        # Its own name has seconds: a file that another step has just begun would be written over.
        writer = import_module("tensorboardX.event_file_writer").EventsWriter
        self._writer = writer(str(folder / f"events.{time.time_ns()}"))

    def add_step(self, values: Mapping[str, float], step: int, time_ms: int) -> None:
        """Add points of curves; a stage that goes back hides what it has from there on."""
        if self._last is None or step < self._last:
            # Source: TensorBoard, event.proto: START hides what there is from this step on.
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(step, time_ms, session_log=begun)
        self._last = step
        self.add(values, step, time_ms)

    def add(self, values: Mapping[str, float], step: int, time_ms: int) -> None:
        """Add numbers, all in one event."""
        value = self._summaries.Summary.Value
        scalars = [value(tag=name, simple_value=float(number)) for name, number in values.items()]
        self._write(step, time_ms, summary=self._summaries.Summary(value=scalars))

    def add_text(self, name: str, markdown: str) -> None:
        """Add a text, which TensorBoard shows on a page of its own."""
        text = import_module("tensorboardX.summary").text(name, markdown)
        self._write(0, round(1000 * time.time()), summary=text)

    def close(self) -> None:
        """End the file."""
        self._writer.close()

    def _write(self, step: int, time_ms: int, **content: Any) -> None:
        self._writer.write_event(self._events.Event(wall_time=time_ms / 1000, step=step, **content))
        self._writer.flush()


class EventFiles:
    """The event files of one run: its own, and in directories below those of its stages."""

    def __init__(self, uri: str, folder: Path, name: str) -> None:
        import tensorboardX  # noqa: F401  the writer itself does without it

        self._place, self._folder = folder, _event_folder(uri, folder, name)
        self._files: dict[str, EventFile] = {}
        self._said: dict[tuple[str, str], float] = {}

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Write what a line says that TensorBoard can show."""
        kind = str(line["kind"])
        owner = "" if kind.startswith("run ") else stage
        if kind == "metrics" and line["step"] is not None:
            self._file(stage).add_step(line["values"], int(line["step"]), line["time"])
        elif kind in ("metrics", "run metrics"):
            values = {f"final/{name}" if owner else name: each for name, each in line["values"].items()}
            # The figures that decide are said again, and would then be points of a curve.
            new = {name: each for name, each in values.items() if self._said.get((owner, name)) != each}
            self._said |= {(owner, name): each for name, each in new.items()}
            self._file(owner).add(new, 0, line["time"])
        elif kind in ("params", "run params"):
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in line["values"].items())
            self._file(owner).add_text("settings", f"| key | value |\n|---|---|\n{rows}")
        elif kind == "files":
            for name in TEXTS:
                if file := line["values"].get(name):
                    text = (self._place / FILES / file).read_text(encoding="utf-8", errors="replace")
                    shown = text if name.endswith(".md") else f"```\n{text}\n```"
                    self._file("").add_text(name.partition(".")[0], shown)

    def close(self) -> None:
        """End the files."""
        for each in self._files.values():
            each.close()

    def _file(self, stage: str) -> EventFile:
        if stage not in self._files:
            self._files[stage] = EventFile(self._folder / stage)
        return self._files[stage]


class WandbRun:
    """The run of W&B. Steps that share a folder share it; offline, where no run can be resumed, each has one of its group.

    The client's own variables hold: WANDB_API_KEY, WANDB_BASE_URL, WANDB_MODE, WANDB_DIR.
    """

    def __init__(self, uri: str, folder: Path, stage: str, name: str, group: str) -> None:
        os.environ.update(LIMITS | os.environ)
        import wandb

        self._folder, self._place = folder, Path(os.environ.get("WANDB_DIR") or folder)
        logging.getLogger("wandb").setLevel(logging.ERROR)  # it tells of each of its steps
        server = wandb.setup().settings
        mode: Literal["offline"] | None = None
        if server.mode not in OFFLINE and not answers(server.base_url, PROBE_S):
            mode = "offline"
            if said_first(folder, reason := f"tracking: W&B: nothing answers at {masked(server.base_url)}"):
                log.warning(
                    "%s; its files stay in %s: send them by `wandb sync`", reason, self._place / "wandb"
                )
        is_offline = (mode or server.mode) in OFFLINE
        shared = noted(folder).get("id") or noted(folder, id=uuid4().hex[:16])["id"]
        entity, project = wandb_project(uri)
        self._run = wandb.init(
            entity=entity, project=project, name=name, mode=mode, job_type=stage, group=group or (shared if is_offline else None),
            id=None if is_offline else shared, resume=None if is_offline else "allow",
            settings=wandb.Settings(root_dir=str(self._place), **SETTINGS),
        )  # fmt: skip
        noted(folder, page=self._run.url or "", files=str(Path(self._run.dir).parent))
        self._curves: set[str] = set()
        self._failed = False

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Hand one line to the client."""
        kind = line["kind"]
        if kind == "metrics" and line["step"] is not None:
            self._curve(stage, line)
        elif kind in ("metrics", "run metrics"):
            self._run.summary.update(line["values"])
        elif kind in ("params", "run params"):
            self._settings(line["values"])
        elif kind in ("tags", "run tags"):
            if note := line["values"].get(NOTE_TAG):
                self._run.notes = note
            prefix = "" if kind == "run tags" else f"{stage}/"
            labels = {
                f"{prefix}{key}": each
                for key, each in line["values"].items()
                if not key.startswith("mlflow.")
            }
            self._settings(labels)
        elif kind == "inputs":
            self._settings({f"{stage}/data/{each['name']}": each for each in line["datasets"]})
        elif kind == "model":
            words = {name: line[name] for name in ("uri", "digest", "artifact")}
            self._settings({f"model/{line['name']}": words})
            self._run.summary.update(line["metrics"])
        elif kind == "files":
            self._files(line["values"])
        elif kind == "end":
            self._failed = line["status"] != "FINISHED"

    def close(self) -> None:
        """Wait for the uploads."""
        self._run.finish(exit_code=int(self._failed))

    def _curve(self, stage: str, line: Mapping[str, Any]) -> None:
        # Steps of stages are counted apart, and W&B's own step only grows: a stage that begins again goes back.
        axis, values = f"{stage}_step", {}
        for name, value in line["values"].items():
            # Curves of the machine and of validation have the same names in pre-training and in finetuning.
            is_own = stage == "pretrain" or name.partition("/")[0] not in ("system", "validation")
            key = name if is_own else f"{stage}/{name}"
            if key not in self._curves:
                self._run.define_metric(key, step_metric=axis)
                self._curves.add(key)
            values[key] = value
        self._run.log({**values, axis: line["step"], "_timestamp": line["time"] / 1000})

    def _settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def _files(self, files: Mapping[str, str]) -> None:
        from wandb import Html

        folder = self._folder / "wandb-files"
        for name, file in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._folder / FILES / file, path)
            self._run.save(str(path), base_path=str(folder), policy="now")
            if name == "report.html":
                self._run.log({"report": Html(str(path), inject=False)})


def noted(folder: Path, **words: str) -> dict[str, str]:
    """Note words that the steps of a run share, if there are any; return all of them."""
    path = folder / STATE
    state: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if words:
        state |= words
        write_atomic(path, json.dumps(state))
    return state


def said_first(folder: Path, reason: str) -> bool:
    """True if no step of the run has given this reason before; each is said once."""
    try:
        if noted(folder).get("said") == reason:
            return False
        noted(folder, said=reason)
    except (OSError, ValueError):  # it is a reason that the folder cannot be written
        pass
    return True


def _event_folder(uri: str, folder: Path, name: str) -> Path:
    """Directory of the run of a folder; a new one at its first step."""
    if known := noted(folder).get("events"):
        return Path(known)
    root = Path(tensorboard_folder(uri)).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)
    called, number = name.replace("/", "-").replace(":", "."), 1
    place = root / called
    # Two runs of one recipe may begin in the same minute.
    while place.exists():
        number += 1
        place = root / f"{called} ({number})"
    place.mkdir()
    noted(folder, events=str(place))
    return place
