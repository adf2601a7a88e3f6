"""Launch a training stage: find its artifact, or start the job that makes it."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, get_args

from anadil.artifacts import artifact
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError
from anadil.core.files import work_folder
from anadil.core.stages import LAUNCHABLE, STAGES
from anadil.launch.job import JOB_KINDS, JobBackend, TrainingJob, error_from_exit_code
from anadil.preflight.checks import refuse
from anadil.preflight.services import check_shared
from anadil.recipe.cluster import Backend as BackendName
from anadil.recipe.sections import Recipe
from anadil.runtime.check import LAUNCH, PlannedRun
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.flow import refuse_missing
from anadil.runtime.job import earlier_place
from anadil.runtime.lookup import kept_artifact, look_up, refuse_remake
from anadil.runtime.planned_artifact import MadeArtifact, PlannedArtifact, planned_artifact
from anadil.runtime.signals import handle_signals

log = logging.getLogger(__name__)

BACKENDS: tuple[str, ...] = get_args(BackendName)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A training stage to launch."""

    stage: str
    recipe: Recipe
    inputs: dict[str, str]
    files: Sequence[str] = ()
    out: str | None = None
    run: str = ""


def backend_of(name: str, namespace: str | None = None, region: str | None = None) -> JobBackend:
    """Return the backend of a name; a namespace or region left out is the launcher's own."""
    if name == "local":
        return LocalBackend()
    if name == "sagemaker":
        from anadil.launch.sagemaker import SageMakerBackend

        return SageMakerBackend(region=region)
    from anadil.launch.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(kind=name, namespace=namespace)


def backend_for(recipe: Recipe, name: str | None = None) -> JobBackend:
    """Return the backend that the command line, else the recipe, asks for."""
    cluster = recipe.cluster
    return backend_of(name or cluster.backend, cluster.namespace, cluster.sagemaker.region)


def launch_job(
    request: LaunchRequest, backend: str | None = None, *, detach: bool = False
) -> MadeArtifact | str:
    """Return the artifact, found or made by a job; the job's name if `detach`, once it is started."""
    chosen = backend or request.recipe.cluster.backend
    if made := kept_artifact(STAGES[request.stage], request.recipe, request.out):
        return made
    if chosen in JOB_KINDS:
        _check_claims(request)
    lookup = look_up(target_of(request))
    if lookup.made:
        return lookup.made
    refuse_remake(lookup)
    target = lookup.planned.target
    job = training_job(request, target)
    check_job(job, chosen)
    stage, here = STAGES[request.stage], chosen == "local"
    refuse(PlannedRun(by=LAUNCH, recipe=request.recipe, stages=(stage,), files=request.files, here=here))
    backend_for(request.recipe, backend).run(job, detach=detach)
    if detach:
        return job.name
    manifest = artifact.read_manifest(target)
    if manifest is None:
        raise DataError(f"{target}: job {job.name} succeeded, but there is no artifact; see its log")
    return MadeArtifact(uri=target, manifest=manifest)


def check_job(job: TrainingJob, backend: str) -> None:
    """Refuse what would fail only after it has started."""
    if job.stage not in LAUNCHABLE:
        raise RecipeError(f"launch: {job.stage} does not train; launch one of {', '.join(LAUNCHABLE)}")
    if backend == "local":  # sees the directories of this machine
        return
    given = {f"--{word}": uri for word, uri in job.inputs.items()}
    earlier = earlier_place(STAGES[job.stage], job.recipe)
    for option, uri in {"--out": job.target, **given, **earlier}.items():
        if "://" not in uri and not any(volume.holds(uri) for volume in job.recipe.cluster.volumes):
            raise PreflightError(
                f"{option} {uri}: a pod of the job would not see it; use s3://, or name the claim of that directory in "
                "cluster.volumes"
            )
    if job.stage in ("pretrain", "finetune"):
        check_shared(job.recipe, job.target, backend, job.stage, job.nodes)


def _check_claims(request: LaunchRequest) -> None:
    """Refuse to launch where this machine does not see the claims that the job's artifacts lie on."""
    written = {"--out": request.out} if request.out else {"storage.root": request.recipe.storage.root}
    given = {f"--{word}": uri for word, uri in request.inputs.items()}
    for name, place in {**given, **written}.items():
        for volume in request.recipe.cluster.volumes:
            # An output need not exist yet, so the claim that will hold it has to.
            if not place or not volume.holds(place):
                continue
            if Path(volume.path if name in written else place).exists():
                continue
            raise PreflightError(
                f"{name} {place}: lies on the claim {volume.claim}, and is not on this machine; launching reads "
                "manifests there itself. Where the claim is not mounted here, such as on a laptop, launch from a pod: "
                "`launch` of the chart, or manifests/components/launch; or use s3://. Where it is mounted, run the "
                "stage that writes it first"
            )


def job_for_dry_run(request: LaunchRequest, backend: str | None = None) -> TrainingJob:
    """Return the job as `launch` would start it, as far as this machine can tell."""
    try:
        target = target_of(request).target
    except AnadilError as error:
        root = request.recipe.storage.root
        if request.out is None and root is None:
            raise
        # Looking at a manifest should not need access to the data.
        identity = {**request.inputs, "recipe": request.recipe.model_dump_json()}
        target = request.out or join(str(root), STAGES[request.stage].writes, artifact.origin_key(identity))
        log.warning("%s; so the artifact's place is a guess: %s", error, target)
    job = training_job(request, target)
    try:
        check_job(job, backend or request.recipe.cluster.backend)
    except AnadilError as error:
        log.warning("%s", error)
    return job


def training_job(request: LaunchRequest, target: str) -> TrainingJob:
    """Return the job that makes the artifact of a launch."""
    return TrainingJob(
        stage=request.stage, recipe=request.recipe, inputs=request.inputs, files=tuple(request.files),
        target=target, run=request.run,
    )  # fmt: skip


def target_of(request: LaunchRequest) -> PlannedArtifact:
    """Return the artifact that a launch leads to."""
    stage = STAGES[request.stage]
    refuse_missing(stage, request.recipe, request.inputs)
    return planned_artifact(stage, request.recipe, request.inputs, request.files, request.out)


class LocalBackend:
    """The backend `local`."""

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Return command line and environment of the stage, which takes one machine."""
        if job.nodes > 1:
            raise RecipeError(
                f"cluster.nodes: {job.nodes} machines, and the backend local has this one; set cluster.nodes=1, "
                "or cluster.backend to pytorchjob"
            )
        return {
            "command": [sys.executable, "-m", f"anadil.{job.stage}", *job.arguments],
            "environment": {"ANADIL_WORK": str(work_folder()), "ANADIL_RUN_ID": job.run or job.name},
        }

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Run the stage to its end; it cannot be detached."""
        if detach:
            raise RecipeError(
                "--detach: the backend local runs the stage in this command; use nohup, or cluster.backend=pytorchjob"
            )
        rendered = self.render(job)
        environment = os.environ | rendered["environment"] | {PARENT_VARIABLE: str(os.getpid())}
        if sys.stderr.isatty():
            environment.setdefault("ANADIL_LOG", "text")  # read by people
        # On stdout a stage prints the place of its artifact, which the command prints itself. A session of its own
        # keeps the terminal's Ctrl-C away: torchrun passes one signal on, and a second one ends it before it saves.
        with subprocess.Popen(
            rendered["command"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as child:
            received: list[int] = []

            def pass_on(number: int, _frame: FrameType | None) -> None:
                if not received:
                    child.terminate()
                received.append(number)

            with handle_signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT), pass_on)):
                code = child.wait()
        if signal.SIGINT in received:
            raise KeyboardInterrupt
        if code:
            code = code if code > 0 else 128 - code
            raise error_from_exit_code(code, f"{job.stage}: ended with exit code {code}; see its messages")

    def status(self, name: str, *, follow: bool = False) -> NoReturn:  # noqa: ARG002  of `logs`
        """Refuse: no job is kept, and nothing runs apart from its command."""
        raise DataError(
            f"{name}: the backend local keeps no jobs; its `anadil launch` shows the log, and Ctrl-C there saves and ends it"
        )

    logs = stop = status
