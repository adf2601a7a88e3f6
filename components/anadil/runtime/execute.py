"""Find the artifact that a recipe and inputs lead to, and make it only if it is not there.

It is made in `<out>.partial`, sealed by its manifest, then moved to `<out>` in one step.
"""

import contextlib
import hashlib
import importlib
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anadil import __version__
from anadil.artifacts import artifact, local_directory, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.lock import clear, locked
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.publish import NO_COPIES
from anadil.artifacts.uri import AlreadyThereError, absolute, join
from anadil.core.aws import NoBucketError
from anadil.core.errors import IntegrityError, PreflightError, RecipeError, RetryableError, Stopped
from anadil.core.format import human_figure, human_seconds
from anadil.core.own_folder import cache_folder, work_folder
from anadil.core.stages import Stage
from anadil.recipe.sections import Recipe
from anadil.runtime import evidence
from anadil.runtime.cache_key import code_digest, stage_origin
from anadil.runtime.champion import Champion, fetched, find_champion
from anadil.runtime.environment import image_name, in_group
from anadil.runtime.job import Figures, Job, StageRun, external_files, external_side_files
from anadil.runtime.lineage import refuse_strangers
from anadil.runtime.mlflow_spool import SPOOL, Tracker, has_unsent, run_settings, track_stage
from anadil.runtime.remake import refuse_remake, unused_checkpoints
from anadil.runtime.signals import Stop
from anadil.runtime.termination import writing

log = logging.getLogger(__name__)

UPLOAD_PATIENCE_S = 3_600.0
"""How long the other nodes of a job wait for the first one's upload; 140 GB at 100 MB/s take 25 minutes."""
UPLOAD_POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeArtifact:
    """A finished artifact."""

    uri: str
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArtifact:
    """An artifact before it is made."""

    stage: Stage
    origin: dict[str, str]
    """Everything that decides it, by name."""
    target: str
    files: tuple[str, ...]
    """Outside files, expanded."""
    side_files: dict[str, tuple[str, ...]]
    """Recipe key -> further ones."""
    champion: Champion | None = None

    @property
    def key(self) -> str:
        """Hash of what decides it."""
        return artifact.origin_key(self.origin)

    @property
    def work(self) -> Path:
        """A local directory for what outlives a killed run, the same one for the same artifact."""
        if "://" not in self.target:
            return Path(f"{self.target}.work")
        return work_folder() / hashlib.sha256(self.target.encode()).hexdigest()[:16]

    @property
    def partial(self) -> Path:
        """A local directory that is filled, sealed and then put in its place."""
        return self.work / "partial" if "://" in self.target else Path(f"{self.target}.partial")


def execute(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> MadeArtifact:
    """Find or make the artifact of a stage; the arguments are those of `planned_artifact`.

    Raises:
        AnadilError: Of every kind, each with its remedy.
    """
    stop = Stop()
    stop.listen()  # before the slow part: as process 1 of a container nobody else does
    planned = planned_artifact(stage, recipe, inputs, files, out)
    found = reusable(planned)
    if planned.champion and not found and not fetched(planned.champion):
        planned = planned_artifact(stage, recipe, inputs, files, out, compares=False)
        found = reusable(planned)
    if found:
        return found
    local_directory.refuse_occupied(planned.target)
    root = recipe.storage.root
    siblings = storage.store(root).directories(join(root, stage.writes)) if root else []
    log.info("%s", _why(siblings, planned.origin))
    refuse_remake(stage, planned.origin, None if out else root, planned.work)
    rank = int(os.environ.get("RANK", "0"))
    if rank > 0:
        return _make(planned, recipe, inputs, rank, stop)
    if warning := unused_checkpoints(stage, planned.origin, planned.work):
        log.warning("%s", warning)
    with locked(planned.work):
        # The process that we waited for may have made it.
        found = reusable(planned)
        if found and in_group():
            # The other processes of this group did not see it and would wait for this one.
            raise RetryableError(
                f"{planned.target}: another run has just made it; run the same command again"
            )
        return found or _make(planned, recipe, inputs, rank, stop)


def planned_artifact(
    stage: Stage,
    recipe: Recipe,
    inputs: dict[str, str],
    files: Sequence[str],
    out: str | None,
    *,
    compares: bool = True,
) -> PlannedArtifact:
    """What a recipe and inputs lead to, and where it belongs.

    Args:
        stage: Which stage.
        recipe: The whole recipe; its `storage.root` is used where `out` is left out.
        inputs: Artifact word -> URI.
        files: Outside files instead of the recipe's.
        out: Where to write.
        compares: Whether the champion is looked for, where the stage reads it.

    Raises:
        RecipeError: There is no place to write.
        DataError: An input or a file is not there.
        IntegrityError: An adapter was trained on another model, or scores are of another.
    """
    manifests = {word: artifact.finished_manifest(uri, word) for word, uri in inputs.items()}
    refuse_strangers(manifests, inputs)
    outside = external_files(stage, recipe, files)
    beside = external_side_files(stage, recipe)
    champion = find_champion(recipe, manifests) if stage.reads_champion and compares else None
    origin = stage_origin(stage, recipe, manifests, outside, beside)
    if champion:
        origin["input champion"] = champion.digest
    root = recipe.storage.root
    if out is None and root is None:
        raise RecipeError("storage.root: not set; give --out, or a directory or s3:// URI for all artifacts")
    # Absolute, because `x/` and `.` would put what lies beside the artifact into it.
    target = absolute(out) if out else join(str(root), stage.writes, artifact.origin_key(origin))
    return PlannedArtifact(
        stage=stage, origin=origin, target=target, files=outside, side_files=beside, champion=champion
    )


def reusable(planned: PlannedArtifact) -> MadeArtifact | None:
    """The artifact, if it is there already.

    Raises:
        RecipeError: Its place holds one that was made from something else.
        IntegrityError: It is damaged, as far as sizes and small files tell.
        PreflightError: It lies in a bucket that does not exist.
    """
    target = planned.target
    try:
        manifest = artifact.read_manifest(target)
    except NoBucketError:
        raise PreflightError(
            f"{target}: its bucket does not exist; create it, or choose another --out or storage.root"
        ) from None
    if manifest is None:
        return None
    if manifest.key != planned.key:
        causes = "; ".join(artifact.origin_differences(manifest.origin, planned.origin)[:5])
        raise RecipeError(
            f"{target}: holds a {manifest.kind} made from something else ({causes}); "
            "artifacts are written once: give another --out or remove it"
        )
    artifact.glance(target, manifest)
    log.info("reused %s", target)
    _say_figures(manifest.figures)
    return MadeArtifact(uri=target, manifest=manifest)


def _why(siblings: list[str], origin: dict[str, str]) -> str:
    """Why the artifact is made: compared with the latest of its kind."""
    latest = None
    with contextlib.suppress(IntegrityError):  # a damaged neighbour is no reason to stop
        latest = artifact.read_manifest(siblings[-1]) if siblings else None
    if latest is None:
        return "running: nothing to reuse yet"
    causes = artifact.origin_differences(latest.origin, origin)
    first = "; ".join(causes[:4])
    return f"running because {first}{f' and {len(causes) - 4} more' if len(causes) > 4 else ''}"


def _make(
    planned: PlannedArtifact, recipe: Recipe, inputs: dict[str, str], rank: int, stop: Stop
) -> MadeArtifact:
    # Alone only: the other processes of a group would wait for this one.
    if not in_group() and (sealed := _sealed(planned)):
        return _put(planned, sealed)
    fetched_inputs = {word: fetch(uri, word) for word, uri in inputs.items()}
    folders = {word: folder for word, (folder, _) in fetched_inputs.items()}
    if planned.champion and (folder := fetched(planned.champion)):
        folders["champion"] = folder
    job = Job(
        recipe=recipe, inputs=folders, uris=inputs,
        files=planned.files, side_files=planned.side_files, out=planned.partial, target=planned.target, work=planned.work, base_cache=base_cache(recipe), stop=stop,
    )  # fmt: skip
    with writing(planned.partial):
        manifest = _run(
            planned, job, rank, {word: manifest for word, (_, manifest) in fetched_inputs.items()}
        )
    if rank > 0:  # writes nothing
        _await_first_node(planned.target)
        return MadeArtifact(uri=planned.target, manifest=manifest)
    stop.check()  # of a signal that came late; what is sealed is put in its place by the next start
    return _put(planned, manifest, {name: each.uri for name, each in job.copies.items()})


def _seal(planned: PlannedArtifact, job: Job, figures: Figures) -> Manifest:
    """Seal what was made; a disk that fails leaves nothing that the next start would take for whole."""
    try:
        return artifact.seal(
            job.out, kind=planned.stage.writes, origin=planned.origin, records=job.records, varying=job.varying,
            copies={name: each.entry for name, each in job.copies.items()}, contents=job.contents, figures=figures, recipe=job.recipe.model_dump(mode="json"),
            program={"version": __version__, "image": image_name(), "source": code_digest(planned.stage)},
        )  # fmt: skip
    except OSError:
        shutil.rmtree(job.out, ignore_errors=True)
        raise


def _await_first_node(target: str) -> None:
    """Stay until the first node has put the artifact in its place.

    The training operator calls an elastic job a success as soon as one of its pods ends well,
    and may then remove the pod that still uploads.

    Raises:
        RetryableError: It takes too long.
    """
    num_nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if num_nodes == 1 or os.environ.get("LOCAL_RANK") != "0":
        return
    deadline = time.monotonic() + UPLOAD_PATIENCE_S
    while artifact.read_manifest(target) is None:
        if time.monotonic() > deadline:
            raise RetryableError(f"{target}: the first node has not written it; see its log and run again")
        time.sleep(UPLOAD_POLL_S)


def _run(planned: PlannedArtifact, job: Job, rank: int, manifests: Mapping[str, Manifest]) -> Manifest:
    """Run the stage's code, tracked, and seal what it made; a failure leaves nothing of `job.out`."""
    started = time.monotonic()
    run: StageRun = importlib.import_module(f"anadil.{planned.stage.name}.run").run
    if rank == 0:
        _clear(job.out)
    with track_stage(planned.stage.name, job.recipe, job.work) as tracker:
        if rank == 0:
            _tell_start(tracker, planned, job, manifests)
        try:
            if rank == 0:
                job.out.mkdir(parents=True)
            figures = run(replace(job, tracker=tracker))
        except BaseException as error:
            tracker.end("KILLED" if isinstance(error, Stopped | KeyboardInterrupt) else "FAILED")
            if rank == 0:
                shutil.rmtree(job.out, ignore_errors=True)
            raise
        if rank > 0:
            return Manifest(kind=planned.stage.writes, key=planned.key, origin=planned.origin, files={})
        figures["seconds"] = round(time.monotonic() - started, 1)
        manifest = _seal(planned, job, figures)
        evidence.tell_result(
            tracker, planned.stage, manifest, planned.target, job.out, manifests, job.uris, job.inputs
        )
        tracker.metrics({name: value for name, value in figures.items() if isinstance(value, int | float)})
        tracker.end("FINISHED")
    return manifest


def _tell_start(
    tracker: Tracker, planned: PlannedArtifact, job: Job, manifests: Mapping[str, Manifest]
) -> None:
    """What is known of a stage before it runs: its settings, where its artifact will lie, what it reads."""
    prefix = "recipe "
    tracker.params(
        {name.removeprefix(prefix): text for name, text in planned.origin.items() if name.startswith(prefix)}
    )
    tracker.run_params(run_settings(job.recipe))
    tracker.run_tags(evidence.run_tags(job.recipe, planned.stage))
    tracker.tags(
        {"anadil.artifact": planned.target, "anadil.key": planned.key} | evidence.stage_tags(planned.stage)
    )
    tracker.files({"recipe.yaml": evidence.recipe_text(job.recipe)})
    evidence.tell_inputs(tracker, planned.stage, manifests, job.uris, planned.origin)


def _clear(partial: Path) -> None:
    """Remove what a killed run has left.

    Raises:
        PreflightError: It cannot be removed.
    """
    shutil.rmtree(partial, ignore_errors=True)
    if partial.exists():
        raise PreflightError(
            f"{partial}: what an earlier run has left there cannot be removed: it belongs to user "
            f"{partial.stat().st_uid}; remove it, or run as that user"
        )


def _sealed(planned: PlannedArtifact) -> Manifest | None:
    """The manifest of what was made whole but not moved, because an upload failed."""
    partial = planned.partial
    with contextlib.suppress(IntegrityError):
        manifest = artifact.read_manifest(str(partial))
        if manifest and manifest.key == planned.key:
            artifact.verify_files(partial, manifest, str(partial))
            return manifest
    return None


def _put(planned: PlannedArtifact, manifest: Manifest, copies: Mapping[str, str] = NO_COPIES) -> MadeArtifact:
    """Move what was made to its place, or take what another run has put there meanwhile."""
    try:
        storage.store(planned.target).put_directory(planned.partial, planned.target, copies)
    except AlreadyThereError as error:
        found = reusable(planned)
        if found is None:  # removed again since
            raise RetryableError(f"{error} and removed it; run the same command again") from None
        log.warning("%s; what this run has made is thrown away", error)
        shutil.rmtree(planned.partial, ignore_errors=True)
        manifest = found.manifest
    if not has_unsent(planned.work / SPOOL):
        clear(planned.work)
    _say_figures(manifest.figures)
    return MadeArtifact(uri=planned.target, manifest=manifest)


def base_cache(recipe: Recipe) -> Path:
    """Local directory where the base model `tiny` is kept."""
    root = recipe.storage.root
    if root and "://" not in root:
        return Path(root) / "base"
    own = os.environ.get("ANADIL_CACHE")
    return (Path(own) if own else cache_folder()) / "base"


def _say_figures(figures: Figures) -> None:
    numbers = {name: value for name, value in figures.items() if name != "seconds"}
    line = ", ".join(f"{name.replace('_', ' ')} {human_figure(value)}" for name, value in numbers.items())
    seconds = figures.get("seconds")
    took = f" ({human_seconds(float(seconds))})" if seconds is not None else ""
    log.info("%s%s", line, took, extra={"figures": figures})
