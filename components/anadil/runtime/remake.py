"""Protection against repeating a training of days only because the program changed, without `--remake`.

A stage's `result_version` is part of its artifact's key, so a release that raises it has another place for the same
model. A cheap stage is silently made again. For training, the person decides.
"""

import functools
import glob
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below
from anadil.artifacts.lease import is_held
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import AnadilError, RecipeError
from anadil.core.stage import Stage
from anadil.runtime.cache_key import INPUT, RECIPE, RESULT_VERSION, origin_changes, split_shares
from anadil.runtime.planned_artifact import Neighbours, PlannedArtifact, place_of, work_of

VARIABLE = "ANADIL_REMAKE"
"""Environment variable that stands for `--remake`, also in the steps of a pipeline."""
CHECKPOINTS = {
    "pretrain": "checkpoints/**/step-*[0-9]/manifest.json",
    "finetune": "trainer/checkpoint-*[0-9]/manifest.json",
}
"""Stage -> manifests of its checkpoints below a work directory, deeper where each process has its own."""
BRANCH_POINT = "branch_point"
"""Count in the manifest of a checkpoint that outlives its run, so that others can begin with it."""
FINISHED = "finished"
"""File in a work directory whose run has made its artifact and left branch points."""
STATE = "state.json"
"""State of a run in a checkpoint of `pretrain`."""
BY_DIGEST = (f"{RECIPE}finetune.inputs", f"{RECIPE}finetune.preference")
"""Keys that an artifact's origin names and that of a checkpoint does not: it has digests of what they name."""


def allow_remake() -> None:
    """Set `--remake` for this process and those that it starts."""
    os.environ[VARIABLE] = "1"


def may_remake() -> bool:
    """Return whether a training may be made again although only the program differs."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """Checkpoints in and beside the work directory of a costly stage, read once."""

    has_own: bool
    unfinished: list[tuple[Path, Manifest | None]]
    """Manifests of those of unfinished runs, by their place from the parent of the work directory, the newest first."""

    @property
    def readable(self) -> list[tuple[Path, Manifest]]:
        """The checkpoints whose manifest is not damaged."""
        return [(path, manifest) for path, manifest in self.unfinished if manifest]


def earlier_runs(planned: PlannedArtifact) -> EarlierRuns:
    """Look for checkpoints; there are none of a stage that is cheap."""
    stage, work = planned.stage, planned.work
    if stage.name not in CHECKPOINTS or _checkpoints(stage, work.parent, glob.escape(work.name)):
        return EarlierRuns(has_own=stage.name in CHECKPOINTS, unfinished=[])
    # A finished run keeps its directory for tracking that is not sent yet.
    left = [
        path
        for path in _checkpoints(stage, work.parent, f"*{work.suffix}")
        if not ((work.parent / path.parts[0]).with_suffix("") / MANIFEST).exists()
        and not (work.parent / path.parts[0] / FINISHED).exists()
    ]
    read = [(path, _readable(work.parent / path.parent)) for path in reversed(left)]
    return EarlierRuns(has_own=False, unfinished=read)


def refuse_remake(planned: PlannedArtifact, neighbours: Neighbours, runs: EarlierRuns) -> None:
    """Stop before a training that differs from an earlier one by the program alone.

    Only a costly stage is checked. A work directory with checkpoints resumes, since that was decided before. An artifact
    with a place of its own is not compared with its neighbours.
    """
    stage, work = planned.stage, planned.work
    if not stage.costly or may_remake() or runs.has_own or planned.earlier_work:
        return
    inputs = functools.cache(lambda word: list(artifacts_below([planned.root], word)))
    for uri, manifest in () if planned.out else neighbours:
        if _is_alike(manifest, planned.origin, inputs):
            raise RecipeError(
                f"{uri}: a finished {stage.writes} of the same recipe and inputs, {_made_by(manifest, planned)}. Making "
                f"it again costs a whole training: add --remake (or set {VARIABLE}=1) if that is wanted; to keep it, "
                f"give its URI to the next stage as --{stage.writes}, or another storage.root to this run"
            )
    for path, manifest in runs.readable:
        before, now = _comparable(manifest, planned)
        if before.pop(RESULT_VERSION, "") != now.pop(RESULT_VERSION, "") and before == now:
            raise RecipeError(
                f"{work.parent / path.parts[0]}: an unfinished run of the same recipe has checkpoints here, "
                f"{_made_by(manifest, planned)}. This program cannot resume from them: finish that run with the "
                f"program that began it, or add --remake (or set {VARIABLE}=1) to start over"
            )


def earlier_work(planned: PlannedArtifact, runs: EarlierRuns) -> Path | None:
    """Return the work directory of an unfinished run whose sources had other shares, which a resume may change."""
    if planned.out:
        return None
    rest, parent = split_shares(planned.origin)[0], planned.work.parent
    for path, manifest in runs.readable:
        # A checkpoint names the keys of the recipe, and its state the shares. With them the run's key, and so the
        # directory's name, can be made again: no other run is taken for this one.
        origin = {name: text for name, text in manifest.origin.items() if name.startswith(RECIPE)}
        # Without sources, of another stage, or damaged, there are no shares.
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((parent / path.parent / STATE).read_text(encoding="utf-8"))
            origin |= dict(state["mixture"]["origin"])
        work = work_of(place_of(planned.stage, planned.root, rest | origin))
        before, now = (split_shares(each)[0] for each in _comparable(manifest, planned))
        # A run that is at work with other shares is another run.
        if work.name == path.parts[0] and before == now and not is_held(work):
            return work
    return None


def unused_checkpoints(planned: PlannedArtifact, runs: EarlierRuns) -> str:
    """Return a warning about checkpoints of unfinished runs beside a work directory without any; empty if there are none."""
    if planned.stage.name != "pretrain" or planned.earlier_work:
        return ""
    root, begin = planned.work.parent, planned.origin.get(f"{INPUT}{planned.stage.extends.key}")
    # A run that begins with a checkpoint of another one does use it, and a run that is at work needs its own.
    used = {path.parts[0] for path, each in runs.readable if begin and each.digest == begin}
    left = [
        (path, each)
        for path, each in runs.unfinished
        if path.parts[0] not in used and not is_held(root / path.parts[0])
    ]
    if not left:
        return ""
    path, manifest = left[0]
    folder, checkpoint = root / path.parts[0], root / path.parent
    causes = origin_changes(*_comparable(manifest, planned), planned.stage.keys) if manifest else []
    why = "; ".join(causes[:4]) or "an input, the base model or the place is another"
    num_others = len({path.parts[0] for path, _ in left}) - 1
    others = f" (and {num_others} more directories beside it have some)" if num_others else ""
    rename = f"; if only the place is another: stop this run, remove {planned.work}, rename {folder} to it, start again"
    return (
        f"{folder}: an unfinished run has checkpoints here up to {checkpoint.name}{others}, which this run does not "
        f"use: {why}. To resume from them, start that run again with its own recipe and inputs"
        f"{'' if causes else rename}. If nobody needs them, remove {folder}"
    )


def branch_points(planned: PlannedArtifact) -> list[Path]:
    """Checkpoints in a work directory that outlive its run."""
    if planned.stage.name not in CHECKPOINTS:
        return []
    parent = planned.work.parent
    paths = _checkpoints(planned.stage, parent, glob.escape(planned.work.name))
    manifests = ((parent / path.parent, _readable(parent / path.parent)) for path in paths)
    return [path for path, manifest in manifests if manifest and BRANCH_POINT in manifest.records]


def _made_by(manifest: Manifest, planned: PlannedArtifact) -> str:
    before, now = manifest.origin.get(RESULT_VERSION), planned.origin[RESULT_VERSION]
    version = manifest.program.get("version", "?")
    return f"made by anadil {version} with result version {before}; this program has {now}"


def _is_alike(
    old: Manifest,
    origin: Mapping[str, str],
    inputs: "functools._lru_cache_wrapper[list[tuple[str, Manifest]]]",
) -> bool:
    """Return whether an artifact differs from a planned one by the program alone. Its inputs may differ so too."""
    before = old.origin
    for name in before.keys() | origin.keys():
        digests = before.get(name), origin.get(name)
        kind, _, word = name.partition(" ")
        if digests[0] == digests[1] or name == RESULT_VERSION:
            continue
        if kind != "input" or None in digests:
            return False
        earlier, later = (
            next((each for _, each in inputs(word) if each.digest == digest), None) for digest in digests
        )
        if earlier is None or later is None or not _is_alike(earlier, later.origin, inputs):
            return False
    return True


def _comparable(checkpoint: Manifest, planned: PlannedArtifact) -> tuple[dict[str, str], dict[str, str]]:
    """Entries of a checkpoint's origin and of the planned one that both can name."""
    before, now = checkpoint.origin, planned.origin
    names = {
        name
        for name in before.keys() | now.keys()
        if (name.startswith(RECIPE) and not name.startswith(BY_DIGEST)) or (name in before and name in now)
    }
    return (
        {name: before[name] for name in names & before.keys()},
        {name: now[name] for name in names & now.keys()},
    )


def _checkpoints(stage: Stage, folder: Path, name: str) -> list[Path]:
    """Manifests of a stage's checkpoints in work directories of a folder, relative to it, the oldest first."""
    # Path.glob ends with an error where a run that is at work removes a directory.
    names = glob.glob(f"{name}/{CHECKPOINTS[stage.name]}", root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(map(Path, names), key=lambda path: (path.parent.name, path))


def _readable(folder: Path) -> Manifest | None:
    try:
        return artifact.read_manifest(str(folder))
    except (AnadilError, OSError):  # a damaged neighbour is no reason to stop
        return None
