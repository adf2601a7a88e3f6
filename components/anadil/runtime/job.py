"""Input of a stage.

A stage's code is imported only when its artifact has to be made, so that finding a finished artifact costs no import of
torch. A stage's `run.py` offers `run(job) -> figures`: it reads `job.inputs`, fills the directory `job.out`, and returns
the figures of its last line.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.line_reader import PLAIN_LINES
from anadil.core.errors import DataError, RecipeError
from anadil.core.stage import SideFiles, Stage
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor
from anadil.runtime.signals import Stop
from anadil.runtime.tracking_spool import Tracker

Figures = dict[str, float | int | str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A file of another artifact that becomes part of this one, copied within the storage."""

    uri: str
    entry: dict[str, str | int]
    """Entry of its manifest: bytes and SHA-256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An artifact that is read by pieces where it lies; the reader checks what it reads."""

    uri: str
    manifest: Manifest


StageRun = Callable[["Job"], Figures]
"""Function that a stage's `run.py` offers: it fills `job.out` and returns the figures of the last line."""
Engines = Mapping[str, Callable[["Job"], Executor]]
"""`clean.engine` -> maker of its executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Argument of a stage's `run`."""

    recipe: Recipe
    inputs: dict[str, Path]
    """Artifact word -> local directory, verified against its manifest; see `of_sources` for those of sources."""
    streams: dict[str, Stream] = field(default_factory=dict)
    """Artifact word -> one that is read where it lies; see `Input.how`."""
    uris: dict[str, str] = field(default_factory=dict)
    """Artifact word -> where it lies for good; `inputs` may be a copy that goes."""
    files: tuple[str, ...] = ()
    """URIs of the outside files, expanded."""
    side_files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Recipe key -> URIs of the files that it names; see `Stage.side_files`."""
    out: Path
    """Empty local directory to fill; it becomes the artifact when `run` returns."""
    target: str = ""
    """Where the artifact is put in the end; empty: it stays in `out`."""
    work: Path
    """Local directory that outlives a killed run: checkpoints."""
    base_cache: Path
    """Local directory where built-in base models are kept."""
    engines: Engines = field(default_factory=dict)
    """Engines beside the local ones, from the entry point."""
    tracker: Tracker = field(default_factory=lambda: Tracker(None))
    stop: Stop = field(default_factory=Stop)
    records: dict[str, int] = field(default_factory=dict)
    """Counts for the manifest; `run` may fill it."""
    varying: list[str] = field(default_factory=list)
    """Files of `out` beside its content (times, places, counts, samples); `run` fills it: see `Manifest.varying`."""
    copies: dict[str, Copy] = field(default_factory=dict)
    """Files of the artifact that are not in `out`; `run` may fill it where `target` is in the same storage."""
    contents: dict[str, str] = field(default_factory=dict)
    """Digests of what other stages read of a file; `run` fills it: see `Manifest.contents`."""
    entries: dict[str, dict[str, str | int]] = field(default_factory=dict)
    """Bytes and SHA-256 of files of `out` that whoever wrote them has computed; `run` may fill it."""

    def of_sources(self, word: str) -> dict[str, Path]:
        """Source -> local directory of its artifact, in the recipe's order; without sources, one under an empty name."""
        return by_source(word, self.inputs)


def kind_of(word: str) -> str:
    """Return the kind of the artifact that a word names: `corpus` of `corpus.web`."""
    return word.partition(".")[0]


def source_of(word: str) -> str:
    """Return the source of the artifact that a word names: `web` of `corpus.web`; empty without sources."""
    return word.partition(".")[2]


def word_of(word: str, source: str) -> str:
    """Word of an artifact of a source; without one, the word alone."""
    return f"{word}.{source}" if source else word


def by_source(word: str, values: Mapping[str, T]) -> dict[str, T]:
    """Source -> value of an artifact word, as in `corpus.web`; the word alone has an empty source."""
    pairs = ((each.partition("."), value) for each, value in values.items())
    return {source: value for (name, _, source), value in pairs if name == word}


def is_left_out(stage: Stage, recipe: Recipe) -> bool:
    """Return whether a run skips the stage: without chats it is continued pre-training only."""
    if stage.only_if and not value_of(recipe, stage.only_if):
        return True
    if stage.compares and len(recipe.sources) < 2:
        return True
    if not sources_of(stage, recipe):
        return True
    return stage.files.if_none == "skipped" and not named_files(stage, recipe)


def sources_of(stage: Stage, recipe: Recipe) -> tuple[str, ...]:
    """Return the sources that a stage has a step for; an empty name is the one step of a stage of all, or without sources."""
    if stage.per_source and (key := stage.per_source.key):
        return tuple(name for name, each in recipe.sources.items() if getattr(each, key))
    return tuple(recipe.sources) if stage.per_source and recipe.sources else ("",)


def is_kept(stage: Stage, recipe: Recipe) -> bool:
    """Return whether a retraining takes all that a stage makes from its champion."""
    retrain, sources = recipe.retrain, sources_of(stage, recipe)
    if retrain is None or not sources:
        return False
    return all(retrain.kept(word_of(stage.writes, source)) for source in sources)


def most_processes(stage: Stage, recipe: Recipe) -> int:
    """Processes that a stage can use."""
    key = stage.training.most_processes if stage.training else ""
    return int(value_of(recipe, key)) if key else sys.maxsize


def external_files(stage: Stage, recipe: Recipe, given: Sequence[str] = ()) -> tuple[str, ...]:
    """URIs of the files that no stage made: `given`, or those that the recipe names."""
    if not stage.files.key:
        return ()
    patterns, key = tuple(given) or named_files(stage, recipe), files_key(stage, recipe)
    if not patterns and stage.files.if_none != "runs" and not is_written(recipe):
        raise RecipeError(f"{key}: names no file; list the data to read")
    return tuple(storage.expand(patterns, key))


def is_written(recipe: Recipe) -> bool:
    """Return whether the text of a source's recipe is written by the base, so that it names no files."""
    return any(each.written_by for each in recipe.sources.values())


def external_side_files(stage: Stage, recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Recipe key -> URIs of the files that the stage reads beside its data."""
    kinds = {each.key: each for each in stage.side_files}
    return {
        key: tuple(dict.fromkeys(uri for pattern in patterns for uri in side_files(pattern, kinds[key])))
        for key, patterns in named_side_files(stage, recipe).items()
    }


def earlier_place(stage: Stage, recipe: Recipe) -> dict[str, str]:
    """Return the place of what the stage goes on from, by its recipe key; empty where the recipe names nothing."""
    place = str(value_of(recipe, stage.extends.key) or "") if stage.extends.key else ""
    return {stage.extends.key: place} if place else {}


def named_side_files(stage: Stage, recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Recipe key -> patterns by which the recipe names the files that the stage reads beside its data."""
    patterns: dict[str, tuple[str, ...]] = {}
    for part in recipes_of(stage, recipe):
        for each in stage.side_files:
            names = value_of(part, each.key) or ()
            if names and not (each.only_if and not value_of(part, each.only_if)):
                listed = (names,) if isinstance(names, str) else tuple(names)
                listed = tuple(name.rpartition(":")[0] for name in listed) if each.functions else listed
                if places := tuple(_built_in(name, each) for name in listed if is_place(name, each)):
                    patterns[each.key] = tuple(dict.fromkeys((*patterns.get(each.key, ()), *places)))
    return patterns


def is_place(name: str, kind: SideFiles) -> bool:
    """Return whether a value of the recipe names a file, not a thing with a name."""
    return not kind.or_names or "/" in _built_in(name, kind) or name.endswith((".yaml", *PLAIN_LINES))


def _built_in(name: str, kind: SideFiles) -> str:
    """The built-in text of a language that is named by its id; every other name is a place already."""
    uri = f"{storage.BUILT_IN}{name}/{kind.of_language}"
    return uri if kind.of_language and storage.built_in(uri).is_file() else name


def side_files(pattern: str, kind: SideFiles) -> list[str]:
    """The files that one pattern names; see `external_side_files`."""
    if kind.of_language and pattern.isalpha() and not Path(pattern).exists():
        raise DataError(
            f"{kind.key}: {pattern!r} is neither a file nor a language with built-in text (en); "
            "name a file of text in that language"
        )
    files = storage.expand((pattern,), kind.key)
    if not kind.names or files == [pattern]:
        return files
    known = [uri for uri in files if uri.rsplit("/", 1)[-1] in kind.names]
    if not known:
        raise DataError(
            f"{kind.key}: {pattern} is no file, and holds no {' or '.join(map(repr, kind.names))}; "
            "name a directory that does, or a file"
        )
    return known


def value_of(recipe: Recipe, key: str) -> Any:
    """Value of a recipe key (`section.key`); None where it is in a section that is left out."""
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name) if value is not None else None
    return value


def named_files(stage: Stage, recipe: Recipe) -> tuple[str, ...]:
    """Patterns by which the recipe names the outside files of a stage that reads some, those of all sources."""
    return tuple(
        pattern for part in recipes_of(stage, recipe) for pattern in value_of(part, stage.files.key) or ()
    )


def recipes_of(stage: Stage, recipe: Recipe) -> tuple[Recipe, ...]:
    """Return the recipes of a stage's steps: one of each source, or the recipe itself."""
    return tuple(recipe.of_source(name) if name else recipe for name in sources_of(stage, recipe))


def files_key(stage: Stage, recipe: Recipe) -> str:
    """Return the recipe key that names a stage's outside files, such as `sources.web.inputs`."""
    if stage.per_source and recipe.sources:
        return ", ".join(
            f"sources.{name}.{'written_by' if each.written_by else 'inputs'}"
            for name, each in recipe.sources.items()
        )
    return stage.files.key
