"""The compiled DAG on this machine, by `kfp.local`: steps as processes or as containers.

`kfp.local` runs no container component as a process, and reports a container that failed
fast as a success (kubeflow/pipelines#13332). Both are replaced here: `ProcessHandler` starts the
step's own command, and `run_container` waits for the exit code before the container goes.
"""

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from kfp import local
from kfp.local import docker_task_handler, subprocess_task_handler
from kfp.local.status import Status

from anadil.artifacts.base_model import TINY, is_local
from anadil.core.errors import PreflightError
from anadil.core.log import RUN_LOG, run_log
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.runtime.alerts import CHANNELS
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.job import earlier_place, named_files, named_side_files, word_of
from anadil.runtime.lookup import VARIABLE, may_remake
from anadil.runtime.run_record import LOG, recorded_run
from anadil.runtime.signals import handle_signals
from anadil.runtime.threads import ASLEEP
from anadil.runtime.tracking_spool import (
    RUN,
    SPOOL_VARIABLE,
    SQLITE,
    Tracker,
    run_name,
    run_sender,
    tracker_address,
    tracking_uri,
)
from anadil_pipelines.adapt import NAME, adapt

log = logging.getLogger(__name__)


NO_FILES: Mapping[str, str] = MappingProxyType({})
RELEASE = f"anadil.{FLOW[-1].name}"  # Module of the step that tells people of its outcome.
SCRATCH = "/tmp"  # noqa: S108  the container's own, gone with it


@dataclass(slots=True)
class StepResults:
    """Results of the steps of the run in progress."""

    uris: dict[str, str] = field(default_factory=dict)
    """Artifact word, `corpus.web` for one of a source -> URI."""
    exit_code: int = 0  # Exit code of the step that failed.
    spool: Path | None = None  # Where what goes to MLflow is kept.
    run: str = ""  # Id of the run.


class ProcessHandler(subprocess_task_handler.SubprocessTaskHandler):
    """Runs a step's command as a process of this machine, with this Python."""

    steps = StepResults()

    # Every image is fine, for its command runs here, and container components are what we run.
    validate_image = validate_not_container_component = validate_not_containerized_python_component = staticmethod(
        lambda *_: None
    )  # fmt: skip

    def run(self) -> Any:
        """Start the command, pass signals on to it, and record its exit code and outputs."""
        command = [sys.executable, *_with_run(self.steps.run, self.full_command)[1:]]
        environment = {"ANADIL_LOG": "text"} | os.environ | self.env_vars
        environment[PARENT_VARIABLE] = str(os.getpid())
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.__stderr__)
        # The step saves and ends; then the run ends by its exit code. Ctrl-C reaches it by the terminal already.
        with handle_signals({signal.SIGTERM: lambda *_: process.terminate(), signal.SIGINT: signal.SIG_IGN}):
            code = process.wait()
        return _record_result(self.steps, self.full_command, code)


def _with_run(run: str, command: list[str]) -> list[str]:
    """Set the id of our run in a command: kfp has one of its own, by which nobody would find what the step left."""
    given = json.loads(command[-1])
    given["inputs"]["parameterValues"]["run"] = run
    return [*command[:-1], json.dumps(given)]


def _record_result(steps: StepResults, command: list[str], code: int) -> Any:
    """Record the result of a step; the executor input is the last argument of every step."""
    steps.exit_code = code if code >= 0 else 128 - code
    if code:
        return Status.FAILURE
    given = json.loads(command[-1])
    if not given["outputs"].get("parameters"):  # the exit handler gives nothing
        return Status.SUCCESS
    output = json.loads(Path(given["outputs"]["outputFile"]).read_text(encoding="utf-8"))
    source = given["inputs"]["parameterValues"].get("source", "")
    steps.uris |= {word_of(word, source): uri for word, uri in output["parameterValues"].items()}
    return Status.SUCCESS


class Containers(docker_task_handler.DockerTaskHandler):
    """Runs a step in its image, with the work directory and the recipe's local files mounted."""

    steps = StepResults()
    mounts: ClassVar[dict[str, str]] = {}  # Path -> `rw` or `ro`; mounted under the same path.
    network: ClassVar[bool] = False  # True if the recipe names anything that is not on this machine.

    def run(self) -> Any:
        """Run the container to its end, stream its log, and record its exit code and outputs."""
        import docker
        from docker.errors import DockerException, ImageNotFound

        try:
            client = docker.from_env()
        except DockerException as error:
            raise PreflightError(
                f"--runner docker: no docker service answers ({error}); start it, or take --runner process"
            ) from None
        try:
            code = run_container(
                client, self.image, _with_run(self.steps.run, self.full_command), self.mounts, self.env_vars,
                network=self.network, alerts=RELEASE in self.full_command,
            )  # fmt: skip
        except ImageNotFound:
            raise PreflightError(
                f"{self.image}: this machine has no such image; build or pull it, or set cluster.image"
            ) from None
        finally:
            client.close()
        return _record_result(self.steps, self.full_command, code)


def run_container(
    client: Any, image: str, command: list[str], mounts: dict[str, str], environment: dict[str, str],
    *, network: bool = False, alerts: bool = False,
) -> int:  # fmt: skip
    """Run `command` in a container, its log passed on to stderr; return the exit code.

    The first argument replaces the image's entrypoint. It gets MLflow's variables, for a registry may be a file of this
    machine; with `network` those of AWS and Hugging Face too. With `alerts` it gets the addresses of those who are told,
    where this process has some, and the network with them.
    """
    addresses = {each.variable: each.address() for each in CHANNELS if alerts and each.address()}
    network = network or bool(addresses)
    prefixes = ("MLFLOW_", "AWS_", "HF_") if network else ("MLFLOW_",)
    variables = {key: value for key, value in os.environ.items() if key.startswith(prefixes)}
    container = client.containers.run(
        image, command[1:], entrypoint=command[:1], detach=True,
        environment={"HOME": SCRATCH} | ASLEEP | variables | addresses | environment,
        volumes={path: {"bind": path, "mode": mode} for path, mode in mounts.items()},
        user=f"{os.getuid()}:{os.getgid()}", read_only=True, tmpfs={SCRATCH: ""},
        network_mode="bridge" if network else "none",
        cap_drop=["ALL"], security_opt=["no-new-privileges"],
    )  # fmt: skip

    def forward_signal(number: int, _frame: object) -> None:
        # In a thread: this one may be in the midst of another call of the same client.
        threading.Thread(target=container.kill, args=(signal.Signals(number).name,), daemon=True).start()

    try:
        with handle_signals({signal.SIGTERM: forward_signal, signal.SIGINT: forward_signal}):
            for line in container.logs(stream=True, follow=True):
                sys.stderr.write(line.decode(errors="replace"))
            return int(container.wait()["StatusCode"])
    finally:
        container.remove(force=True)


def run_here(
    recipe: Recipe, work: Path, runner: str, until: str, name: str = NAME, files: Mapping[str, str] = NO_FILES
) -> StepResults:
    """Run the DAG up to a stage on this machine; return its URIs, and the exit code of a step that failed.

    The recipe's `storage.root` is set. `work` holds the runs' small files, log, tracking and (unless the recipe says otherwise)
    artifacts. The `files` are texts by name that lie beside them, and that MLflow stores with the run.
    """
    started = datetime.now(UTC)
    run_id = f"{started:%Y%m%d-%H%M%S}-{os.getpid()}"
    runs = work / "runs" / run_id
    runs.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (runs / file).write_text(text, encoding="utf-8")
    steps = StepResults(run=run_id)
    if runner != "docker":
        ProcessHandler.steps = steps
        subprocess_task_handler.SubprocessTaskHandler = ProcessHandler
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(runs))
    spool = work / "tracking" / run_id
    uri = tracker_address(recipe, default=f"sqlite:///{work}/mlflow.db")
    called = run_name(name or NAME, started)
    tracking = run_sender(spool, uri, recipe.tracking.experiment, called) if uri else contextlib.nullcontext()
    os.environ[SPOOL_VARIABLE] = str(spool) if uri else ""
    if uri:
        steps.spool = spool
        spool.mkdir(parents=True, exist_ok=True)
        tracker = Tracker(spool / f"{RUN}.jsonl")
        tracker.texts("run tags", {"anadil.run": run_id})
        tracker.files(files)
    if runner == "docker":
        _use_containers(recipe, work, steps)
        variables = {SPOOL_VARIABLE: os.environ[SPOOL_VARIABLE], VARIABLE: str(int(may_remake()))}
        variables[RUN_LOG] = str(runs / LOG)
        local.init(local.DockerRunner(environment=variables), pipeline_root=str(runs))
    with (
        recorded_run(recipe, work, run_id, name, until) as codes,
        run_log(str(runs / LOG)),
        tracking,
        (runs / "kfp.log").open("w", encoding="utf-8") as kfp_log,
        contextlib.redirect_stdout(kfp_log),
    ):
        try:
            adapt(recipe, until, here=True)()
        except RuntimeError:
            # kfp raises this for every step that fails; the step has said why.
            if not steps.exit_code:
                raise
        codes.append(steps.exit_code)
    return steps


def _use_containers(recipe: Recipe, work: Path, steps: StepResults) -> None:
    Containers.steps = steps
    Containers.mounts = {str(work): "rw"}
    # Artifacts may lie beside the work directory, and the registry that the last step of a retraining writes to.
    registry = tracking_uri(recipe) or ""
    database = registry.removeprefix(SQLITE) if registry.startswith(SQLITE) else ""
    for folder in (Path(recipe.storage.root or work), Path(database).parent):
        if folder.is_absolute() and not folder.is_relative_to(work):
            folder.mkdir(parents=True, exist_ok=True)
            Containers.mounts[str(folder)] = "rw"
    inputs = [pattern for stage in FLOW if stage.files.key for pattern in named_files(stage, recipe)]
    beside = [named_side_files(stage, recipe).values() for stage in FLOW]
    inputs += [pattern for patterns in itertools.chain(*beside) for pattern in patterns]
    inputs += [place for stage in FLOW for place in earlier_place(stage, recipe).values()]
    # Another run's artifacts, which may lie in another root than this run's.
    champion = recipe.retrain.champion if recipe.retrain else None
    places = [champion.uri, *champion.artifacts.values()] if champion else []
    inputs += [place for place in places if not Path(place).is_relative_to(work)]
    for pattern in (*inputs, recipe.base.model):
        folder = Path(pattern) if Path(pattern).is_dir() else Path(pattern.split("*")[0] + "x").parent
        if folder.is_absolute() and folder.is_dir():
            Containers.mounts.setdefault(str(folder), "ro")
    on_the_hub = recipe.base.model != TINY and not is_local(recipe.base.model)
    remote = any("://" in uri for uri in (*inputs, recipe.storage.root or "")) or (registry and not database)
    Containers.network = bool(remote or on_the_hub)
    docker_task_handler.DockerTaskHandler = Containers
