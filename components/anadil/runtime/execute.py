"""Find the artifact that a recipe and inputs lead to, and make it only if it is not there.

It is made in `<out>.partial`, sealed by its manifest, then moved to `<out>` in one step.
"""

import contextlib
import glob
import hashlib
import importlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anadil import __version__
from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.lock import is_held, locked
from anadil.artifacts.prefetch import preloaded
from anadil.artifacts.storage import AlreadyThereError
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError, RetryableError, Stopped
from anadil.core.format import human_figure, human_seconds
from anadil.core.stages import Stage
from anadil.recipe.sections import Recipe
from anadil.runtime.job import (
    Figures,
    Job,
    Run,
    Stop,
    code_digest,
    external_files,
    image_name,
    in_group,
    origin_of,
)
from anadil.runtime.mlflow_spool import SPOOL, has_unsent, run_settings, track_stage
from anadil.runtime.remake import refuse_remake

log = logging.getLogger(__name__)

UPLOAD_PATIENCE_S = 3_600.0
"""How long the other machines of a job wait for the first one's upload; 140 GB at 100 MB/s take 25 minutes."""
UPLOAD_POLL_S = 2.0
CHECKPOINTS = "checkpoints/**/step-*[0-9]/manifest.json"
"""Below a work directory; deeper where each process has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished artifact."""

    uri: str
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An artifact before it is made."""

    origin: dict[str, str]
    """Everything that decides it, by name."""
    target: str
    files: tuple[str, ...]
    """Outside files, expanded."""

    @property
    def work(self) -> Path:
        """Where its checkpoints lie until it is made."""
        return _work_directory(self.target)


def execute(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> Outcome:
    """Find or make the artifact of a stage; the arguments are those of `wanted_artifact`.

    Raises:
        AnadilError: Of every kind, each with its remedy.
    """
    stop = Stop()
    stop.listen()  # before the slow part: as process 1 of a container nobody else does
    wanted = wanted_artifact(stage, recipe, inputs, files, out)
    origin, target, outside, root = wanted.origin, wanted.target, wanted.files, recipe.storage.root
    found = reusable(wanted)
    if found:
        return found
    storage.refuse_occupied(target)
    siblings = storage.store(root).directories(storage.join(root, stage.writes)) if root else []
    log.info("%s", _why(siblings, origin))
    rank = int(os.environ.get("RANK", "0"))
    work = _work_directory(target)
    refuse_remake(stage, origin, None if out else root, work)
    if stage.name == "pretrain" and rank == 0 and (told := _left_behind(work, origin)):
        log.warning("%s", told)
    with locked(work) if rank == 0 else contextlib.nullcontext():
        # The process that we waited for may have made it.
        found = reusable(wanted) if rank == 0 else None
        if found and in_group():
            # The other processes of this group did not see it and would wait for this one.
            raise RetryableError(f"{target}: another run has just made it; run the same command again")
        if found:
            return found
        return _make(stage, recipe, inputs, outside, origin, target, work, rank, stop)


def wanted_artifact(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> Wanted:
    """What a recipe and inputs lead to, and where it belongs.

    Args:
        stage: Which stage.
        recipe: The whole recipe; its `storage.root` is used where `out` is left out.
        inputs: Artifact word -> URI.
        files: Outside files instead of the recipe's.
        out: Where to write.

    Raises:
        RecipeError: There is no place to write.
        DataError: An input or a file is not there.
    """
    manifests = {word: _required(uri, word) for word, uri in inputs.items()}
    outside = external_files(stage, recipe, files)
    origin = origin_of(stage, recipe, manifests, outside)
    root = recipe.storage.root
    if out is None and root is None:
        raise RecipeError("storage.root: not set; give --out, or a directory or s3:// URI for all artifacts")
    target = _place(out) if out else storage.join(str(root), stage.writes, artifact.key_of(origin))
    return Wanted(origin=origin, target=target, files=outside)


def _place(out: str) -> str:
    # `x/` and `.` would put what lies beside the artifact into it.
    return out.rstrip("/") if "://" in out else str(Path(out).absolute())


def _required(uri: str, word: str) -> Manifest:
    manifest = artifact.read_manifest(uri)
    if manifest is None:
        raise DataError(f"{uri}: no finished {word} there; run the stage that writes it first")
    return manifest


def reusable(wanted: Wanted) -> Outcome | None:
    """The artifact, if it is there already.

    Raises:
        RecipeError: Its place holds one that was made from something else.
        IntegrityError: It is damaged, as far as sizes and small files tell.
    """
    target, origin = wanted.target, wanted.origin
    manifest = artifact.read_manifest(target)
    if manifest is None:
        return None
    if manifest.key != artifact.key_of(origin):
        causes = "; ".join(artifact.differences(manifest.origin, origin)[:5])
        raise RecipeError(
            f"{target}: holds a {manifest.kind} made from something else ({causes}); "
            "artifacts are written once: give another --out or remove it"
        )
    artifact.glance(target, manifest)
    log.info("reused %s", target)
    _say_figures(manifest.figures)
    return Outcome(uri=target, manifest=manifest)


def _why(siblings: list[str], origin: dict[str, str]) -> str:
    """Why the artifact is made: compared with the latest of its kind."""
    latest = None
    with contextlib.suppress(IntegrityError):  # a damaged neighbour is no reason to stop
        latest = artifact.read_manifest(siblings[-1]) if siblings else None
    if latest is None:
        return "running: nothing to reuse yet"
    causes = artifact.differences(latest.origin, origin)
    shown = "; ".join(causes[:4])
    return f"running because {shown}{f' and {len(causes) - 4} more' if len(causes) > 4 else ''}"


def _work_directory(target: str) -> Path:
    """A local directory for what outlives a killed run, the same one for the same artifact."""
    if "://" not in target:
        return Path(f"{target}.work")
    root = Path(os.environ.get("ANADIL_WORK", Path(tempfile.gettempdir()) / "anadil-work"))
    return root / hashlib.sha256(target.encode()).hexdigest()[:16]


def _left_behind(work: Path, origin: dict[str, str]) -> str:
    """What is to be said of other runs' checkpoints beside a work directory that has none; else nothing."""
    root = work.parent
    # Path.glob ends with an error where a run that is at work removes a directory.
    names = glob.glob(f"*{work.suffix}/{CHECKPOINTS}", root_dir=root, recursive=True)  # noqa: PTH207
    found = [Path(name) for name in names]
    if any(path.parts[0] == work.name for path in found):
        return ""
    # A finished run keeps its directory for tracking that is not sent yet; one that is at work needs it.
    left = [
        path
        for path in found
        if not ((root / path.parts[0]).with_suffix("") / storage.MANIFEST).exists()
        and not is_held(root / path.parts[0])
    ]
    if not left:
        return ""
    newest = max(left, key=lambda path: (path.parent.name, path))
    folder, checkpoint = root / newest.parts[0], root / newest.parent
    causes: list[str] = []
    with contextlib.suppress(IntegrityError, DataError, OSError):  # a damaged neighbour is no reason to stop
        manifest = artifact.read_manifest(str(checkpoint))
        old = {name: text for name, text in (manifest.origin if manifest else {}).items() if name in origin}
        causes = artifact.differences(old, {name: origin[name] for name in old})
    why = "; ".join(causes[:4]) or "an input, the base model or the place is another"
    num_others = len({path.parts[0] for path in left}) - 1
    others = f" (and {num_others} more directories beside it have some)" if num_others else ""
    rename = (
        f"; if only the place is another: stop this run, remove {work}, rename {folder} to it, start again"
    )
    return (
        f"{folder}: an unfinished run has checkpoints here up to {checkpoint.name}{others}, which this run does not "
        f"use: {why}. To go on from them, start that run again with its own recipe and inputs"
        f"{'' if causes else rename}. If nobody needs them, remove {folder}"
    )


def _make(
    stage: Stage,
    recipe: Recipe,
    inputs: dict[str, str],
    files: tuple[str, ...],
    origin: dict[str, str],
    target: str,
    work: Path,
    rank: int,
    stop: Stop,
) -> Outcome:
    partial = Path(f"{target}.partial") if "://" not in target else work / "partial"
    # Alone only: the other processes of a group would wait for this one.
    if not in_group() and (sealed := _sealed(partial, origin)):
        return _put(partial, target, work, sealed)
    # One copy for all processes of a machine, which would fetch as many.
    fetch = preloaded if stage.distributed else artifact.fetch
    fetched = {
        word: (fetch if "://" in uri else artifact.fetch)(uri, word)[0] for word, uri in inputs.items()
    }
    job = Job(
        recipe=recipe, inputs=fetched, uris=inputs, files=files, out=partial, work=work,
        base_cache=base_cache(recipe), stop=stop,
    )  # fmt: skip
    figures = _run(stage, job, origin, target, rank)
    if rank > 0:
        _await_first_machine(target)
        return Outcome(uri=target, manifest=_placeholder(stage, origin))
    manifest = _seal(stage, job, origin, figures)
    stop.check()  # of a signal that came late; what is sealed is put in its place by the next start
    return _put(partial, target, work, manifest)


def _seal(stage: Stage, job: Job, origin: dict[str, str], figures: Figures) -> Manifest:
    """Seal what was made; a disk that fails leaves nothing that the next start would take for whole."""
    try:
        return artifact.seal(
            job.out, kind=stage.writes, origin=origin, records=job.records, varying=job.varying,
            contents=job.contents, figures=figures, recipe=job.recipe.model_dump(mode="json"),
            program={"version": __version__, "image": image_name(), "source": code_digest(stage)},
        )  # fmt: skip
    except OSError:
        shutil.rmtree(job.out, ignore_errors=True)
        raise


def _await_first_machine(target: str) -> None:
    """Stay until the first machine has put the artifact in its place.

    The training operator calls an elastic job a success as soon as one of its pods ends well,
    and may then remove the pod that still uploads.

    Raises:
        RetryableError: It takes too long.
    """
    machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if machines == 1 or os.environ.get("LOCAL_RANK") != "0":
        return
    deadline = time.monotonic() + UPLOAD_PATIENCE_S
    while artifact.read_manifest(target) is None:
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{target}: the first machine has not put it there; see its log and run again"
            )
        time.sleep(UPLOAD_POLL_S)


def _run(stage: Stage, job: Job, origin: dict[str, str], target: str, rank: int) -> Figures:
    """Run the stage's code, tracked; a failure leaves nothing of `job.out`."""
    started = time.monotonic()
    run: Run = importlib.import_module(f"anadil.{stage.name}.run").run
    settings = {name.removeprefix("recipe "): v for name, v in origin.items() if name.startswith("recipe ")}
    key = artifact.key_of(origin)
    if rank == 0:
        _clear(job.out)
    with track_stage(stage.name, job.recipe, job.work) as tracker:
        tracker.params(settings)
        tracker.run_params(run_settings(job.recipe))
        tracker.tags({"anadil.version": __version__, "anadil.artifact": target, "anadil.key": key})
        try:
            if rank == 0:
                job.out.mkdir(parents=True)
            figures = run(replace(job, tracker=tracker))
        except BaseException as error:
            tracker.end("KILLED" if isinstance(error, Stopped | KeyboardInterrupt) else "FAILED")
            if rank == 0:
                shutil.rmtree(job.out, ignore_errors=True)
            raise
        figures["seconds"] = round(time.monotonic() - started, 1)
        tracker.metrics({name: value for name, value in figures.items() if isinstance(value, int | float)})
        tracker.end("FINISHED")
    return figures


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


def _sealed(partial: Path, origin: dict[str, str]) -> Manifest | None:
    """The manifest of what was made whole but not moved, because an upload failed."""
    with contextlib.suppress(IntegrityError):
        manifest = artifact.read_manifest(str(partial))
        if manifest and manifest.key == artifact.key_of(origin):
            artifact.verify(partial, manifest, str(partial))
            return manifest
    return None


def _put(partial: Path, target: str, work: Path, manifest: Manifest) -> Outcome:
    """Move what was made to its place, or take what another run has put there meanwhile."""
    try:
        storage.store(target).put_directory(partial, target)
    except AlreadyThereError as error:
        found = reusable(Wanted(origin=manifest.origin, target=target, files=()))
        if found is None:  # removed again since
            raise RetryableError(f"{error} and removed it; run the same command again") from None
        log.warning("%s; what this run has made is thrown away", error)
        shutil.rmtree(partial, ignore_errors=True)
        manifest = found.manifest
    if not has_unsent(work / SPOOL):
        shutil.rmtree(work, ignore_errors=True)
    _say_figures(manifest.figures)
    return Outcome(uri=target, manifest=manifest)


def _placeholder(stage: Stage, origin: dict[str, str]) -> Manifest:
    """What ranks other than 0 return: they write nothing."""
    return Manifest(kind=stage.writes, key=artifact.key_of(origin), origin=origin, files={})


def base_cache(recipe: Recipe) -> Path:
    """Local directory where the base model `tiny` is kept."""
    root = recipe.storage.root
    if root and "://" not in root:
        return Path(root) / "base"
    return Path(os.environ.get("ANADIL_CACHE", Path.home() / ".cache" / "anadil")) / "base"


def _say_figures(figures: Figures) -> None:
    shown = {name: value for name, value in figures.items() if name != "seconds"}
    line = ", ".join(f"{name.replace('_', ' ')} {human_figure(value)}" for name, value in shown.items())
    seconds = figures.get("seconds")
    took = f" ({human_seconds(float(seconds))})" if seconds is not None else ""
    log.info("%s%s", line, took, extra={"figures": figures})
