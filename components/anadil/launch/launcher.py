"""From a stage's command line to a job: find its artifact, or launch what makes it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from anadil.artifacts import artifact, storage
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError
from anadil.core.stages import STAGES
from anadil.launch.backend import Backend
from anadil.launch.job import TrainingJob, check_job
from anadil.launch.kubernetes.kinds import KINDS
from anadil.plan.preflight import check_finetune, check_fits
from anadil.preflight.inputs import look_at_base, look_at_files
from anadil.recipe.cluster import Backend as BackendName
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import Outcome, Wanted, reusable, wanted_artifact
from anadil.runtime.remake import refuse_remake

log = logging.getLogger(__name__)

BACKENDS: tuple[str, ...] = get_args(BackendName)
CHECKS = {"pretrain": check_fits, "finetune": check_finetune}
"""Stage -> whether its memory fits; that of pretrain looks at what comes after it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training stage to launch."""

    stage: str
    recipe: Recipe
    inputs: dict[str, str]
    files: Sequence[str] = ()
    out: str | None = None
    run: str = ""


def backend_of(name: str, namespace: str | None = None, region: str | None = None) -> Backend:
    """One way to run a job, by its name in the recipe.

    Args:
        name: `local`, `pytorchjob`, `trainjob` or `sagemaker`.
        namespace: Of Kubernetes jobs; left out, the launcher's own.
        region: Of SageMaker jobs; left out, that of the environment.
    """
    if name == "local":
        from anadil.launch.local import Local

        return Local()
    if name == "sagemaker":
        from anadil.launch.sagemaker.backend import SageMakerBackend

        return SageMakerBackend(region=region)
    from anadil.launch.kubernetes.backend import Kubernetes

    return Kubernetes(kind=name, namespace=namespace)


def backend_for(recipe: Recipe, name: str | None = None) -> Backend:
    """The backend that a recipe, or the command line over it, asks for."""
    cluster = recipe.cluster
    return backend_of(name or cluster.backend, cluster.namespace, cluster.sagemaker.region)


def launch(asked: Launch, backend: str | None = None, *, detach: bool = False) -> Outcome | str:
    """The artifact, found or made by a job; the job's name where it is not waited for.

    Args:
        asked: What to launch.
        backend: How; left out, as the recipe says.
        detach: Return once the job is started.

    Raises:
        AnadilError: Of every kind, each with its remedy.
    """
    chosen = backend or asked.recipe.cluster.backend
    if chosen in KINDS:
        _check_claims(asked)
    wanted = wanted_of(asked)
    if found := reusable(wanted):
        return found
    root = None if asked.out else asked.recipe.storage.root
    refuse_remake(STAGES[asked.stage], wanted.origin, root, wanted.work)
    job = job_for(asked, wanted.target)
    check_job(job, chosen)
    _look(asked, here=chosen == "local")
    if asked.recipe.cluster.instance and (check := CHECKS.get(asked.stage)):
        log.info("%s", check(asked.recipe, here=chosen == "local"))
    backend_for(asked.recipe, backend).run(job, detach=detach)
    if detach:
        return job.name
    manifest = artifact.read_manifest(wanted.target)
    if manifest is None:
        raise DataError(f"{wanted.target}: job {job.name} ended well, yet there is no artifact; see its log")
    return Outcome(uri=wanted.target, manifest=manifest)


def _look(asked: Launch, *, here: bool) -> None:
    """Look at what the stage will read beside artifacts, which are verified where they are read."""
    stage = STAGES[asked.stage]
    if stage.files:
        look_at_files(stage, asked.recipe, asked.files, here=here).say()
    if "base" in stage.sections:
        look_at_base(asked.recipe, here=here).say()


def _check_claims(asked: Launch) -> None:
    """Refuse to launch where this machine does not see the claims that the job's artifacts lie on.

    Raises:
        PreflightError: It does not.
    """
    places = {f"--{word}": uri for word, uri in asked.inputs.items()}
    written = {"--out": asked.out} if asked.out else {"storage.root": asked.recipe.storage.root}
    for name, place in {**places, **written}.items():
        for volume in asked.recipe.cluster.volumes:
            if not place or not (place == volume.path or place.startswith(f"{volume.path}/")):
                continue
            if Path(volume.path if name in written else place).exists():
                continue
            raise PreflightError(
                f"{name} {place}: lies on the claim {volume.claim}, and is not on this machine; launching reads "
                "manifests there itself. Where the claim is not mounted here, such as on a laptop, launch from a pod: "
                "`launch` of the chart, or manifests/components/launch; or use s3://. Where it is mounted, run the "
                "stage that writes it first"
            )


def job_to_show(asked: Launch, backend: str | None = None) -> TrainingJob:
    """The job as `launch` would start it, as far as that can be told from here."""
    try:
        target = wanted_of(asked).target
    except AnadilError as error:
        root = asked.recipe.storage.root
        if asked.out is None and root is None:
            raise
        # Looking at a manifest should not need access to the data.
        stage = STAGES[asked.stage]
        identity = {**asked.inputs, "recipe": asked.recipe.model_dump_json()}
        target = asked.out or storage.join(str(root), stage.writes, artifact.key_of(identity))
        log.warning("%s; so the artifact's place is a guess: %s", error, target)
    job = job_for(asked, target)
    try:
        check_job(job, backend or asked.recipe.cluster.backend)
    except AnadilError as error:
        log.warning("%s", error)
    return job


def job_for(asked: Launch, target: str) -> TrainingJob:
    """The job that makes the artifact of a launch."""
    return TrainingJob(
        stage=asked.stage,
        recipe=asked.recipe,
        inputs=asked.inputs,
        files=tuple(asked.files),
        target=target,
        run=asked.run,
    )


def wanted_of(asked: Launch) -> Wanted:
    """The artifact that a launch leads to.

    Raises:
        AnadilError: An input is missing or cannot be read.
    """
    stage = STAGES[asked.stage]
    missing = [f"--{word}" for word in stage.reads if word not in asked.inputs and word not in stage.optional]
    if missing:
        raise RecipeError(f"{stage.name}: {' '.join(missing)} missing; give the URI of each artifact to read")
    return wanted_artifact(stage, asked.recipe, asked.inputs, asked.files, asked.out)
