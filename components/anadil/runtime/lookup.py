"""Artifacts and checkpoints that storage and this machine hold: a planned one, its neighbours, unfinished runs.

A stage's `result_version` is part of its artifact's key, so a release that raises it has another place for the same
model. A cheap stage is silently made again. A training of days is not, without `--remake`: the person decides.
"""

import functools
import glob
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import artifacts_below
from anadil.artifacts.lease import is_held
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import MANIFEST
from anadil.core.aws import NoBucketError
from anadil.core.errors import AnadilError, PreflightError, RecipeError, Stopped
from anadil.core.format import human_figure, human_seconds, with_article
from anadil.core.stage import Stage
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, RECIPE, RESULT_VERSION, origin_changes, split_shares
from anadil.runtime.compared_champion import SKIPPED
from anadil.runtime.flow import Step
from anadil.runtime.job import Figures
from anadil.runtime.planned_artifact import CHAMPION, MadeArtifact, PlannedArtifact

log = logging.getLogger(__name__)

LOOKED_UP = "ANADIL_LOOKED_UP"
"""Variable with the key of an artifact that this process's launcher has looked for among all others."""
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
class Lookup:
    """Record of storage and of this machine about a planned artifact, each asked once. A finished one has no more fields."""

    planned: PlannedArtifact
    made: MadeArtifact | None = None
    champion: Path | None = None
    """Local directory of the champion."""
    neighbours: Sequence[tuple[str, Manifest]] = ()
    """URI and manifest of other artifacts of the same kind, the newest first."""
    below: Callable[[str], Sequence[tuple[str, Manifest]]] = field(default=lambda _: (), compare=False)
    """Those of any kind below `storage.root`, read when they are asked for, and once."""
    has_own: bool = False
    """True if the work directory has checkpoints."""
    unfinished: Sequence[tuple[Path, Manifest | None]] = ()
    """Manifests of checkpoints of unfinished runs beside it, by their place from its parent, the newest first. None: damaged."""

    @property
    def readable(self) -> list[tuple[Path, Manifest]]:
        """The checkpoints whose manifest is not damaged."""
        return [(path, manifest) for path, manifest in self.unfinished if manifest]


def kept_artifact(stage: Stage, recipe: Recipe, out: str | None) -> MadeArtifact | None:
    """Return the champion's artifact where `retrain.keeps` names it; None for one that the stage makes."""
    word = Step.of(stage, recipe).writes
    uri = recipe.retrain.kept(word) if recipe.retrain and not out else ""
    if not uri:
        return None
    manifest = artifact.finished_manifest(uri, stage.writes)
    artifact.check_sizes(uri, manifest)
    return _reused(uri, manifest)


def look_up(planned: PlannedArtifact) -> Lookup:
    """Look for the artifact, and for all else where it is not there."""
    if made := reusable(planned):
        return Lookup(planned=planned, made=made)
    has_own, unfinished = _earlier_runs(planned)
    below = functools.cache(lambda word: tuple(artifacts_below([planned.root], word)))
    neighbours: Sequence[tuple[str, Manifest]] = ()
    # The manifests of a thousand neighbours are read once for a node, not by each of its processes.
    if planned.root and os.environ.get(LOOKED_UP) != planned.key:
        # The newest one is named as the reason to run. A training is compared with all, and a source's step with its own;
        # a place that the user gave is looked up nowhere else.
        number = None if (planned.stage.costly or planned.stage.per_source) and not planned.out else 1
        neighbours = tuple(islice(artifacts_below([planned.root], planned.stage.writes), number))
    lookup = Lookup(
        planned=planned, neighbours=neighbours, below=below, has_own=has_own, unfinished=unfinished
    )
    return replace(lookup, planned=replace(planned, earlier_work=_earlier_work(lookup)))


def with_champion(lookup: Lookup) -> Lookup:
    """The same with the champion on this machine, every byte checked. Where that fails, of the artifact without it."""
    planned = lookup.planned
    if planned.champion is None or lookup.made:
        return lookup
    try:
        return replace(lookup, champion=fetch(planned.champion.uri, planned.champion.kind)[0])
    except Stopped:
        raise
    except (AnadilError, OSError) as error:
        log.warning(SKIPPED, error)
    origin = {name: text for name, text in planned.origin.items() if name != CHAMPION}
    return look_up(replace(planned, champion=None, origin=origin))


def _earlier_runs(planned: PlannedArtifact) -> tuple[bool, tuple[tuple[Path, Manifest | None], ...]]:
    """Look for checkpoints: `has_own` and `unfinished` of a `Lookup`. A cheap stage has none."""
    stage, work = planned.stage, planned.work
    if stage.name not in CHECKPOINTS or _checkpoints(stage, work.parent, glob.escape(work.name)):
        return stage.name in CHECKPOINTS, ()
    # A finished run keeps its directory for tracking that is not sent yet.
    left = [
        path
        for path in _checkpoints(stage, work.parent, f"*{work.suffix}")
        if not ((work.parent / path.parts[0]).with_suffix("") / MANIFEST).exists()
        and not (work.parent / path.parts[0] / FINISHED).exists()
    ]
    return False, tuple((path, _readable(work.parent / path.parent)) for path in reversed(left))


def _earlier_work(lookup: Lookup) -> Path | None:
    """Return the work directory of an unfinished run whose sources had other shares, which a resume may change."""
    planned = lookup.planned
    if planned.out:
        return None
    rest, parent = split_shares(planned.origin)[0], planned.work.parent
    for path, manifest in lookup.readable:
        # A checkpoint names the keys of the recipe, and its state the shares. With them the run's key, and so the
        # directory's name, can be made again: no other run is taken for this one.
        origin = {name: text for name, text in manifest.origin.items() if name.startswith(RECIPE)}
        # Without sources, of another stage, or damaged, there are no shares.
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((parent / path.parent / STATE).read_text(encoding="utf-8"))
            origin |= dict(state["mixture"]["origin"])
        work = replace(planned, origin=rest | origin).work
        before, now = (split_shares(each)[0] for each in _comparable(manifest, planned))
        # A run that is at work with other shares is another run.
        if work.name == path.parts[0] and before == now and not is_held(work):
            return work
    return None


def reusable(planned: PlannedArtifact) -> MadeArtifact | None:
    """The artifact if it is in its place already."""
    target = planned.target
    try:
        manifest = artifact.read_manifest(target)
    except NoBucketError:
        raise PreflightError(
            f"{target}: its bucket does not exist; create it, or choose another --out or storage.root"
        ) from None
    if manifest is None:
        return None
    if manifest.key == planned.key:
        artifact.check_sizes(target, manifest)
        return _reused(target, manifest)
    causes = origin_changes(manifest.origin, planned.origin, planned.stage.keys)
    raise RecipeError(
        f"{target}: holds {with_article(manifest.kind)} made from something else ({'; '.join(causes[:5])}); "
        "artifacts are written once: give another --out or remove it"
    )


def _reused(uri: str, manifest: Manifest) -> MadeArtifact:
    log.info("reused %s", uri)
    log_figures(manifest.figures)
    return MadeArtifact(uri=uri, manifest=manifest)


def log_figures(figures: Figures) -> None:
    """Log a stage's line of figures."""
    numbers = {name: value for name, value in figures.items() if name != "seconds"}
    line = ", ".join(f"{name.replace('_', ' ')} {human_figure(value)}" for name, value in numbers.items())
    seconds = figures.get("seconds")
    took = f" ({human_seconds(float(seconds))})" if seconds is not None else ""
    log.info("%s%s", line, took, extra={"figures": figures})


def refuse_remake(lookup: Lookup) -> None:
    """Stop before a training that differs from an earlier one by the program alone.

    Only a costly stage is checked. A work directory with checkpoints resumes, since that was decided before. An artifact
    with a place of its own is not compared with its neighbours.
    """
    planned, stage = lookup.planned, lookup.planned.stage
    if not stage.costly or may_remake() or lookup.has_own or planned.earlier_work:
        return
    for uri, manifest in () if planned.out else lookup.neighbours:
        if _is_alike(manifest, planned.origin, lookup.below):
            raise RecipeError(
                f"{uri}: a finished {stage.writes} of the same recipe and inputs, {_made_by(manifest, planned)}. Making "
                f"it again costs a whole training: add --remake (or set {VARIABLE}=1) if that is wanted; to keep it, "
                f"give its URI to the next stage as --{stage.writes}, or another storage.root to this run"
            )
    for path, manifest in lookup.readable:
        before, now = _comparable(manifest, planned)
        if before.pop(RESULT_VERSION, "") != now.pop(RESULT_VERSION, "") and before == now:
            raise RecipeError(
                f"{planned.work.parent / path.parts[0]}: an unfinished run of the same recipe has checkpoints here, "
                f"{_made_by(manifest, planned)}. This program cannot resume from them: finish that run with the "
                f"program that began it, or add --remake (or set {VARIABLE}=1) to start over"
            )


def unused_checkpoints(lookup: Lookup) -> str:
    """Return a warning about checkpoints of unfinished runs beside a work directory without any; empty if there are none."""
    planned = lookup.planned
    if planned.stage.name != "pretrain" or planned.earlier_work:
        return ""
    root, begin = planned.work.parent, planned.origin.get(f"{INPUT}{planned.stage.extends.key}")
    # A run that begins with a checkpoint of another one does use it, and a run that is at work needs its own.
    used = {path.parts[0] for path, each in lookup.readable if begin and each.digest == begin}
    left = [
        (path, each)
        for path, each in lookup.unfinished
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
    old: Manifest, origin: Mapping[str, str], inputs: Callable[[str], Sequence[tuple[str, Manifest]]]
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
