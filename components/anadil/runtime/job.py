"""What a stage gets, and what decides its result.

A stage's code is imported only when its artifact has to be made, so that finding an
artifact that is there already costs no import of torch.

A stage's `run.py` offers `run(job) -> figures`: it reads `job.inputs`, fills the directory
`job.out`, and returns the figures of its last line.
"""

import hashlib
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from pydantic import BaseModel

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY, tiny_source
from anadil.core.errors import DataError, RecipeError, Stopped
from anadil.core.format import KIB, MIB
from anadil.core.stages import NEW_KEYS, Stage
from anadil.recipe.pretrain import NEUTRAL
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.mlflow_spool import Tracker

log = logging.getLogger(__name__)

Figures = dict[str, float | int | str]
PACKAGE = Path(__file__).parents[1]
SOURCE_SUFFIXES = {".py", ".jinja", ".j2", ".css"}
RESULT_VERSION = "result version"
"""Its name in an origin."""
BASE_SUFFIXES = {".json", ".jinja", ".safetensors"}
"""Of what is read of a base model's directory; a licence or a page about it decides nothing."""
PIECES, PIECE_BYTES = 64, 64 * KIB
"""Of a large file of a base model, that are read to tell it from another."""


class Run(Protocol):
    """What a stage's `run.py` offers."""

    def __call__(self, job: "Job") -> Figures:
        """Fill `job.out` and return the figures of the last line."""
        ...


class Stop:
    """SIGTERM and Ctrl-C: at once by default, at a safe point inside `deferred`.

    At once is an exception, which a library's `except Exception` may swallow; so the signal is
    remembered, and `check` and the next `deferred` raise it again.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.unsaved = True
        """Whether there is something to save inside `deferred`; where there is not, a signal does not wait."""
        self._deferred = False

    def listen(self) -> None:
        """Take over both signals; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._receive)

    @contextmanager
    def deferred(self) -> Iterator["Stop"]:
        """Inside, a signal only sets `signal`; the block polls it, saves and calls `leave`."""
        self.check()
        self._deferred = True
        self.unsaved = True
        try:
            yield self
        finally:
            self._deferred = False

    def check(self) -> None:
        """Raise the error of a signal that has come, if any: of one that was swallowed, or came late."""
        if self.signal is not None:
            self.leave()

    def leave(self) -> None:
        """Raise the error that belongs to the signal."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped("stopped by SIGTERM; run the same command again to go on")

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        second = self.signal is not None
        self.signal = number
        if second or not (self._deferred and self.unsaved):
            self.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a stage's `run` gets."""

    recipe: Recipe
    inputs: dict[str, Path]
    """Artifact word -> local directory, verified against its manifest."""
    uris: dict[str, str] = field(default_factory=dict)
    """Artifact word -> where it lies for good; `inputs` may be a copy that goes."""
    files: tuple[str, ...] = ()
    """URIs of the outside files, expanded."""
    out: Path
    """Empty local directory to fill; it becomes the artifact when `run` returns."""
    work: Path
    """Local directory that outlives a killed run: checkpoints."""
    base_cache: Path
    """Local directory where the base model `tiny` is kept."""
    tracker: Tracker = field(default_factory=lambda: Tracker(None))
    stop: Stop = field(default_factory=Stop)
    records: dict[str, int] = field(default_factory=dict)
    """Counts for the manifest; `run` may fill it."""
    varying: list[str] = field(default_factory=list)
    """Files of `out` beside its content (times, places, counts, samples); `run` fills it: see `Manifest.varying`."""
    contents: dict[str, str] = field(default_factory=dict)
    """Digests of what other stages read of a file; `run` fills it: see `Manifest.contents`."""


def is_left_out(stage: Stage, recipe: Recipe) -> bool:
    """Whether a run goes without the stage: without chats it is one of continued pre-training only."""
    return stage.without_files == "skipped" and not named_files(stage, recipe)


def external_files(stage: Stage, recipe: Recipe, given: Sequence[str] = ()) -> tuple[str, ...]:
    """URIs of the files that no stage made: `given`, or those that the recipe names.

    Raises:
        RecipeError: The stage cannot do without and none are named.
        DataError: A name matches nothing.
    """
    if not stage.files:
        return ()
    patterns = tuple(given) or named_files(stage, recipe)
    if not patterns and stage.without_files != "runs":
        raise RecipeError(f"{stage.files}: names no file; list the data to read")
    return tuple(storage.expand(patterns, stage.files))


def named_files(stage: Stage, recipe: Recipe) -> tuple[str, ...]:
    """Patterns by which the recipe names the outside files of a stage that reads some."""
    section, key = stage.files.split(".")
    return tuple(getattr(getattr(recipe, section), key))


def check_base(base: Base) -> None:
    """Look at a base model's directory before anything runs for hours.

    Raises:
        DataError: A local directory is not there or lacks config, tokenizer or safetensors.
    """
    folder = Path(base.model).expanduser()
    looks_local = folder.is_absolute() or base.model.startswith((".", "~"))
    if base.model == TINY or not (looks_local or folder.is_dir()):
        return
    if not folder.is_dir():
        raise DataError(f"base.model: {base.model}: no such directory; give a Hugging Face model directory")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise DataError(
            f"base.model: {base.model} has no {' and no '.join(missing)}; give a Hugging Face model directory"
        )


def origin_of(
    stage: Stage, recipe: Recipe, inputs: dict[str, Manifest], files: Sequence[str]
) -> dict[str, str]:
    """Everything that decides a stage's result, by name; its hash is the artifact's key.

    The number of processes is not part of it: the order of the data does not depend on it,
    so that a killed run can go on with more or fewer. Nor is the program, but for `result_version`.
    """
    origin = {"stage": stage.name, **result_version(stage), **recipe_origin(recipe, stage.sections)}
    for name, manifest in inputs.items():
        origin[f"input {name}"] = manifest.whole_digest if stage.reads_beside else manifest.digest
    for uri in files:
        # A file name that is not UTF-8 arrives with lone surrogates, which no manifest could be written with.
        name = uri.encode(errors="backslashreplace").decode()
        origin[f"file {name}"] = storage.store(uri).fingerprint(uri)
    if "base" in stage.sections:
        origin.update(base_files(recipe.base.model))
    return origin


def result_version(stage: Stage) -> dict[str, str]:
    """What stands for the program in an origin, also in that of a checkpoint."""
    return {RESULT_VERSION: str(stage.result_version)}


def recipe_origin(recipe: Recipe, sections: Sequence[str]) -> dict[str, str]:
    """The keys of some sections, such as `clean` or `pretrain.sequence_length`, as JSON."""
    origin: dict[str, str] = {}
    for section in sections:
        node: object = recipe
        for part in section.split("."):
            node = getattr(node, part)
        origin.update(_flat(section, node))
    return origin


def code_digest(stage: Stage) -> str:
    """SHA-256 of the source that the stage runs: shared modules, its own folder, `model/`.

    It stands in manifests, to say what made an artifact, and in no key.
    """
    folders = [PACKAGE / "languages", PACKAGE / stage.name]
    if stage.uses_model:
        folders.append(PACKAGE / "model")
    digest = hashlib.sha256()
    for files in [PACKAGE.glob("*"), *(folder.rglob("*") for folder in folders)]:
        for file in sorted(files):
            if file.suffix in SOURCE_SUFFIXES:
                digest.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _flat(name: str, node: object) -> dict[str, str]:
    if isinstance(node, BaseModel):
        fields = {key: getattr(node, key) for key in _own_keys(name, node)}
        return {
            path: text
            for key, value in fields.items()
            for path, text in _flat(f"{name}.{key}", value).items()
        }
    text = _json(name, node)
    return {} if NEW_KEYS.get(name) == text else {f"recipe {name}": text}


def _json(name: str, node: object) -> str:
    def plain(item: object) -> object:
        assert isinstance(item, BaseModel)
        fields = {key: getattr(item, key) for key in _own_keys(name, item)}
        return {
            key: value for key, value in fields.items() if NEW_KEYS.get(f"{name}.{key}") != _json(name, value)
        }

    return json.dumps(node, ensure_ascii=False, default=plain)


def _own_keys(name: str, node: BaseModel) -> list[str]:
    return [key for key in type(node).model_fields if name != "pretrain" or key not in NEUTRAL]


def base_files(model: str) -> dict[str, str]:
    """What tells a base model's directory from another: names, sizes and digests of its files.

    `tiny` is told by what it is made from, since its bytes follow from that on every machine. Of a file of 16 MiB or more, pieces all over it are read: other weights differ everywhere.
    """
    folder = Path(model).expanduser()
    if model == TINY:
        return {"base files": tiny_source()}
    if not folder.is_dir():
        return {}
    parts = []
    for file in sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in BASE_SUFFIXES):
        size = file.stat().st_size
        content = artifact.describe(file)["sha256"] if size < 16 * MIB else _sampled(file, size)
        parts.append(f"{file.name} {size} {content}")
    return {"base files": hashlib.sha256("\n".join(parts).encode()).hexdigest()}


def _sampled(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek(size * number // PIECES)
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()


def image_name() -> str:
    """The image that this process runs in, as its environment says; empty outside a container."""
    return os.environ.get("ANADIL_IMAGE", "")


def in_group() -> bool:
    """Whether torchrun has started this process.

    Not told by RANK alone: the training operator sets that to the number of the machine in a
    job with a master.
    """
    return "LOCAL_RANK" in os.environ or ("RANK" in os.environ and "PET_NNODES" not in os.environ)
