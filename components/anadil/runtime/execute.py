"""Reuse of the artifact that a recipe and inputs lead to, or its making.

It is made in `<out>.partial`, sealed by its manifest, then moved to `<out>` in one step.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anadil import __version__
from anadil.artifacts import artifact, local_directory, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.lease import clear, locked
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.publish import NO_COPIES
from anadil.artifacts.uri import AlreadyThereError
from anadil.core.errors import IntegrityError, PreflightError, RetryableError, Stopped
from anadil.core.files import cache_folder
from anadil.core.imports import load_module
from anadil.core.stage import Stage
from anadil.core.stages import files_of
from anadil.recipe.sections import Recipe
from anadil.runtime import evidence
from anadil.runtime.cache_key import code_digest, origin_changes
from anadil.runtime.environment import image_name, in_group
from anadil.runtime.flow import Step
from anadil.runtime.job import Engines, Job, StageRun, Stream, kind_of, source_of, word_of
from anadil.runtime.lookup import (
    FINISHED,
    LOOKED_UP,
    Lookup,
    branch_points,
    kept_artifact,
    log_figures,
    look_up,
    refuse_remake,
    reusable,
    unused_checkpoints,
    with_champion,
)
from anadil.runtime.planned_artifact import MadeArtifact, PlannedArtifact, planned_artifact
from anadil.runtime.signals import Stop
from anadil.runtime.termination import writing
from anadil.runtime.tracking_spool import SPOOL, has_unsent, track_stage

log = logging.getLogger(__name__)

UPLOAD_PATIENCE_S = 3_600.0
"""How long the other nodes of a job wait for the first one's upload; 140 GB at 100 MB/s take 25 minutes."""
UPLOAD_POLL_S = 2.0


def execute(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None,
    engines: Engines | None = None,
) -> MadeArtifact:  # fmt: skip
    """Find or make the artifact of a stage; the arguments are those of `planned_artifact`, and `Job.engines`."""
    stop = Stop()
    stop.listen()  # before the slow part: as process 1 of a container nobody else does
    lookup = _look_up(stage, recipe, inputs, files, out)
    if isinstance(lookup, MadeArtifact):
        return lookup
    planned, rank = lookup.planned, int(os.environ.get("RANK", "0"))
    if rank == 0 and (warning := unused_checkpoints(lookup)):
        log.warning("%s", warning)
    with locked(planned.work) if rank == 0 else contextlib.nullcontext():
        # Another process may have made it before this one had the lock.
        made = reusable(planned) if rank == 0 else None
        if made and in_group():
            # The other processes of this group did not see it and would wait for this one.
            raise RetryableError(
                f"{planned.target}: another run has just made it; run the same command again"
            )
        return made or _make(lookup, recipe, inputs, rank, stop, engines)


def find_for_group(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> MadeArtifact | None:
    """Look for an artifact before the processes of a node are started, which then look at its own place only."""
    lookup = _look_up(stage, recipe, inputs, files, out)
    if isinstance(lookup, MadeArtifact):
        return lookup
    os.environ[LOOKED_UP] = lookup.planned.key
    return None


def _look_up(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> MadeArtifact | Lookup:
    """Return the artifact, or what a run of the stage begins with, and say why it runs."""
    if made := kept_artifact(stage, recipe, out):
        return made
    planned = planned_artifact(stage, recipe, inputs, files, out)
    lookup = with_champion(look_up(planned))
    if lookup.made:
        return lookup.made
    local_directory.refuse_occupied(lookup.planned.target)
    if os.environ.get(LOOKED_UP) != lookup.planned.key:
        log.info("%s", _why(lookup, recipe))
    refuse_remake(lookup)
    return lookup


def _why(lookup: Lookup, recipe: Recipe) -> str:
    planned = lookup.planned
    named = ((each, each.recipe.get("sources")) for _, each in lookup.neighbours)
    # The corpus of another source differs in everything, which is no reason.
    alike = (
        each
        for each, sources in named
        if not planned.stage.per_source
        or [*(sources if isinstance(sources, dict) else ())] == [*recipe.sources]
    )
    latest = next(alike, None)
    if latest is None:
        return "running: nothing to reuse yet"
    causes = origin_changes(latest.origin, planned.origin, planned.stage.keys)
    first = "; ".join(causes[:4])
    return f"running because {first}{f' and {len(causes) - 4} more' if len(causes) > 4 else ''}"


def _make(
    lookup: Lookup, recipe: Recipe, inputs: dict[str, str], rank: int, stop: Stop, engines: Engines | None
) -> MadeArtifact:
    planned = lookup.planned
    copies: Mapping[str, str] = NO_COPIES
    # Alone only: the other processes of a group would wait for this one.
    manifest = None if in_group() else _sealed(planned)
    if manifest is None:
        reads = {each.kind: each for each in planned.stage.reads}
        # With the manifest that was planned with: it may be large, and another one would be another artifact.
        streams = {
            word: Stream(uri=uri, manifest=planned.manifests[word])
            for word, uri in inputs.items()
            if reads[kind_of(word)].how == "pieces"
        }
        unread = {word for word in inputs if reads[kind_of(word)].how != "files"}
        unread |= {word_of(reads[kind_of(word)].instead_of, source_of(word)) for word in streams}
        read = {
            word: fetch(uri, kind_of(word), files_of(reads[kind_of(word)]))
            for word, uri in inputs.items()
            if word not in unread
        }
        folders = {word: folder for word, (folder, _) in read.items()}
        if lookup.champion:
            folders["champion"] = lookup.champion
        job = Job(
            recipe=recipe, inputs=folders, streams=streams, uris=inputs,
            files=planned.files, side_files=planned.side_files, out=planned.partial, target=planned.target, work=planned.work, base_cache=base_cache(recipe), stop=stop, engines=engines or {},
        )  # fmt: skip
        manifests = {**planned.manifests, **{word: each for word, (_, each) in read.items()}}
        manifest = _run(planned, job, rank, manifests)
        if rank > 0:  # writes nothing
            _await_first_node(planned.target)
            return MadeArtifact(uri=planned.target, manifest=manifest)
        stop.check()  # of a signal that came late; what is sealed is put in its place by the next start
        copies = {name: each.uri for name, each in job.copies.items()}
    return _put(planned, manifest, copies)


def _await_first_node(target: str) -> None:
    """Wait until the first node has put the artifact in its place."""
    # The training operator calls an elastic job a success as soon as one of its pods ends well, and may then remove the
    # pod that still uploads.
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
    run: StageRun = load_module(f"anadil.{planned.stage.name}.run").run
    if rank == 0:
        _clear(job.out)
        (job.work / FINISHED).unlink(missing_ok=True)
    step = Step.of(planned.stage, job.recipe).name
    with writing(job.out), track_stage(step, job.recipe, job.work) as tracker:
        if rank == 0:
            evidence.tell_start(tracker, planned, job, manifests)
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
        try:
            manifest = artifact.seal(
                job.out, kind=planned.stage.writes, origin=planned.origin, records=job.records, varying=job.varying,
                copies={name: each.entry for name, each in job.copies.items()}, entries=job.entries, contents=job.contents, figures=figures, recipe=job.recipe.model_dump(mode="json"),
                program={"version": __version__, "image": image_name(), "source": code_digest(planned.stage)},
            )  # fmt: skip
        except OSError:
            shutil.rmtree(job.out, ignore_errors=True)
            raise
        evidence.tell_result(
            tracker, planned.stage, manifest, planned.target, job.out, manifests, job.uris, job.inputs
        )
        tracker.metrics({name: value for name, value in figures.items() if isinstance(value, int | float)})
        tracker.end("FINISHED")
    return manifest


def _clear(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    if partial.exists():
        raise PreflightError(
            f"{partial}: what an earlier run has left there cannot be removed: it belongs to user "
            f"{partial.stat().st_uid}; remove it, or run as that user"
        )


def _sealed(planned: PlannedArtifact) -> Manifest | None:
    """Return the manifest of an artifact that was sealed but not moved, because an upload failed."""
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
        made = reusable(planned)
        if made is None:  # removed again since
            raise RetryableError(f"{error} and removed it; run the same command again") from None
        log.warning("%s; what this run has made is thrown away", error)
        shutil.rmtree(planned.partial, ignore_errors=True)
        manifest = made.manifest
    log_figures(manifest.figures)
    points = branch_points(planned)
    if not has_unsent(planned.work / SPOOL):
        clear(planned.work, points)
    if points:
        (planned.work / FINISHED).write_text(planned.target, encoding="utf-8")
    return MadeArtifact(uri=planned.target, manifest=manifest)


def base_cache(recipe: Recipe) -> Path:
    """Local directory where built-in base models are kept."""
    root = recipe.storage.root
    if root and "://" not in root:
        return Path(root) / "base"
    return Path(os.environ.get("ANADIL_CACHE") or cache_folder()) / "base"
