"""What took days is not made again because the program is another, unless `--remake` says so.

A stage's `result_version` is part of its artifact's key, so a release that raises it has another place
for the same model. A cheap stage is made again without a word. Training is not: the person decides.
Artifacts from before keys had a `result_version` are known by recipe and inputs, and are asked for too.
"""

import contextlib
import glob
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.lock import is_held
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import AnadilError, RecipeError
from anadil.core.stages import Stage
from anadil.runtime.cache_key import RESULT_VERSION

VARIABLE = "ANADIL_REMAKE"
"""Environment variable that stands for `--remake`, also in the steps of a pipeline."""
PROGRAM = {RESULT_VERSION, "version", "code"}
"""Names in an origin that stand for the program; the last two until 0.1.0."""
CHECKPOINTS = {
    "pretrain": "checkpoints/**/step-*[0-9]/manifest.json",
    "finetune": "trainer/checkpoint-*[0-9]/manifest.json",
}
"""Stage -> manifests of its checkpoints below a work directory, deeper where each process has its own."""

Find = Callable[[str, str], Manifest | None]


def allow_remake() -> None:
    """What `--remake` does: for this process and those that it starts."""
    os.environ[VARIABLE] = "1"


def may_remake() -> bool:
    """Whether a finished or unfinished training may be made again because the program is another."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def refuse_remake(stage: Stage, origin: Mapping[str, str], root: str | None, work: Path) -> None:
    """Stop before a training that differs from an earlier one by the program alone.

    Args:
        stage: Which stage; only a costly one is checked.
        origin: What decides the artifact that is not there.
        root: Where earlier artifacts lie; None where the artifact was given a place of its own.
        work: Its work directory; one with checkpoints resumes, since that was decided before.

    Raises:
        RecipeError: There is such a model, or checkpoints of one, and no `--remake`.
    """
    if not stage.costly or may_remake() or _checkpoints(stage, work.parent, glob.escape(work.name)):
        return
    if root is not None and (found := _finished(stage, origin, root)):
        uri, manifest = found
        raise RecipeError(
            f"{uri}: a finished {stage.writes} of the same recipe and inputs, {_made_by(manifest, origin)}. Making "
            f"it again costs a whole training: add --remake (or set {VARIABLE}=1) if that is wanted; to keep it, "
            f"give its URI to the next stage as --{stage.writes}, or another storage.root to this run"
        )
    if unfinished := _unfinished(stage, work, origin):
        folder, manifest = unfinished
        raise RecipeError(
            f"{folder}: an unfinished run of the same recipe has checkpoints here, {_made_by(manifest, origin)}. "
            f"This program cannot resume from them: finish that run with the program that began it, or add --remake "
            f"(or set {VARIABLE}=1) to start over"
        )


def unused_checkpoints(stage: Stage, origin: Mapping[str, str], work: Path) -> str:
    """A warning of unfinished runs' checkpoints beside a work directory that has none; empty where nothing is lost."""
    if stage.name != "pretrain" or _checkpoints(stage, work.parent, glob.escape(work.name)):
        return ""
    root = work.parent
    # A run that is at work needs its checkpoints.
    left = [path for path in _unfinished_checkpoints(stage, work) if not is_held(root / path.parts[0])]
    if not left:
        return ""
    folder, checkpoint = root / left[-1].parts[0], root / left[-1].parent
    manifest = _readable(str(checkpoint))
    old = {name: text for name, text in (manifest.origin if manifest else {}).items() if name in origin}
    causes = artifact.origin_differences(old, {name: origin[name] for name in old})
    why = "; ".join(causes[:4]) or "an input, the base model or the place is another"
    num_others = len({path.parts[0] for path in left}) - 1
    others = f" (and {num_others} more directories beside it have some)" if num_others else ""
    rename = (
        f"; if only the place is another: stop this run, remove {work}, rename {folder} to it, start again"
    )
    return (
        f"{folder}: an unfinished run has checkpoints here up to {checkpoint.name}{others}, which this run does not "
        f"use: {why}. To resume from them, start that run again with its own recipe and inputs"
        f"{'' if causes else rename}. If nobody needs them, remove {folder}"
    )


def _made_by(manifest: Manifest, origin: Mapping[str, str]) -> str:
    version = manifest.program.get("version") or manifest.origin.get("version", "?").strip('"')
    before, now = manifest.origin.get(RESULT_VERSION), origin[RESULT_VERSION]
    if before is None:
        return f"made by anadil {version}, before results had a version"
    return f"made by anadil {version} with result version {before}; this program has {now}"


def _finished(stage: Stage, origin: Mapping[str, str], root: str) -> tuple[str, Manifest] | None:
    known: dict[str, list[tuple[str, Manifest]]] = {}

    def all_of(word: str) -> list[tuple[str, Manifest]]:
        if word not in known:
            uris = storage.store(root).directories(join(root, word))
            known[word] = [(uri, manifest) for uri in uris if (manifest := _readable(uri))]
        return known[word]

    def find(word: str, digest: str) -> Manifest | None:
        return next((manifest for _, manifest in all_of(word) if manifest.digest == digest), None)

    alike = [each for each in all_of(stage.writes) if _is_alike(each[1].origin, origin, find)]
    return alike[-1] if alike else None


def _is_alike(old: Mapping[str, str], new: Mapping[str, str], find: Find) -> bool:
    """Whether two origins differ by the program alone; inputs too, if theirs do."""
    if old.get("stage") != new.get("stage"):
        return False
    if RESULT_VERSION not in old:
        # Keys of the recipe that came or went since then were not decided by the person.
        new = {name: value for name, value in new.items() if name in old}
        old = {
            name: value for name, value in old.items() if name in new or name.startswith(("input ", "file "))
        }
    for name in old.keys() | new.keys():
        before, after = old.get(name), new.get(name)
        if before == after or name in PROGRAM:
            continue
        kind, _, word = name.partition(" ")
        if kind != "input" or before is None or after is None:
            return False
        earlier, later = find(word, before), find(word, after)
        if earlier is None or later is None or not _is_alike(earlier.origin, later.origin, find):
            return False
    return True


def _unfinished(stage: Stage, work: Path, origin: Mapping[str, str]) -> tuple[Path, Manifest] | None:
    for path in reversed(_unfinished_checkpoints(stage, work)):
        manifest = _readable(str(work.parent / path.parent))
        if manifest and _is_of_the_same_run(manifest.origin, origin):
            return work.parent / path.parts[0], manifest
    return None


def _is_of_the_same_run(checkpoint: Mapping[str, str], origin: Mapping[str, str]) -> bool:
    """Whether a checkpoint differs by the program alone, as far as its own origin tells."""
    if checkpoint.get(RESULT_VERSION) == origin[RESULT_VERSION]:
        return False
    if RESULT_VERSION in checkpoint:
        common = checkpoint
    else:
        # Sections were one JSON each, and digests of inputs another.
        common = {name: text for old, value in checkpoint.items() for name, text in _flat(old, value)}
    return all(
        origin[name] == text
        for name, text in common.items()
        if name in origin
        and name not in PROGRAM
        and (RESULT_VERSION in checkpoint or name.startswith("recipe "))
    )


def _flat(name: str, text: str) -> list[tuple[str, str]]:
    section = json.loads(text) if name.startswith("recipe ") else None
    if not isinstance(section, dict):
        return [(name, text)]
    return [(f"{name}.{key}", json.dumps(value, ensure_ascii=False)) for key, value in section.items()]


def _checkpoints(stage: Stage, folder: Path, name: str) -> list[Path]:
    """Manifests of a stage's checkpoints in work directories of a folder, relative to it, the oldest first."""
    # Path.glob ends with an error where a run that is at work removes a directory.
    found = glob.glob(f"{name}/{CHECKPOINTS[stage.name]}", root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(map(Path, found), key=lambda path: (path.parent.name, path))


def _unfinished_checkpoints(stage: Stage, work: Path) -> list[Path]:
    """Those in directories beside a work directory, or in it, whose run has not finished."""
    # A finished run keeps its directory for tracking that is not sent yet.
    return [
        path
        for path in _checkpoints(stage, work.parent, f"*{work.suffix}")
        if not ((work.parent / path.parts[0]).with_suffix("") / MANIFEST).exists()
    ]


def _readable(uri: str) -> Manifest | None:
    with contextlib.suppress(AnadilError, OSError):  # a damaged neighbour is no reason to stop
        return artifact.read_manifest(uri)
    return None
