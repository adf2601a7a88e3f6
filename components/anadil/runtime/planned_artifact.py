"""Artifact before it is made: its origin and its place."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute, join
from anadil.core.candidates import BY_KIND
from anadil.core.errors import IntegrityError, RecipeError
from anadil.core.files import work_folder
from anadil.core.stage import Stage
from anadil.core.stages import COMPARED, FLOW, PER_SOURCE, STAGES, WRITERS
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import INPUT, RECIPE, recipe_origin, stage_origin
from anadil.runtime.compared_champion import ComparedChampion, find_champion
from anadil.runtime.job import Job, external_files, external_side_files, kind_of, source_of, word_of
from anadil.text.language import is_pack_path, load_language
from anadil.text.language_data import UnknownLanguageError

log = logging.getLogger(__name__)

CHAMPION = "input champion"
"""Name of the champion's digest in an origin."""
MADE_FROM = tuple(
    (stage.writes, each.kind)
    for stage in FLOW
    for each in stage.reads
    if each.kind in BY_KIND or (stage.per_source and not stage.compares)
)
"""Artifact, and one whose content it speaks of: a model, or what one source's text was made from. Beside another of that kind its
figures would be wrong."""
DIGITS = 16
"""Shown of a digest in messages."""


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
    root: str = ""
    """`storage.root`; empty where the recipe names none."""
    out: str | None = None
    """Place that the user gave it; None: it lies below `root` by its key."""
    files: tuple[str, ...]
    """Outside files, expanded."""
    side_files: dict[str, tuple[str, ...]]
    """Recipe key -> further ones."""
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    """Artifact word -> manifest of an input, as it was planned with."""
    champion: ComparedChampion | None = None
    earlier_work: Path | None = None
    """Work directory of an unfinished run that differs by the shares of its sources, which a resume may change."""

    @property
    def key(self) -> str:
        """Hash of what decides it."""
        return artifact.origin_key(self.origin)

    @property
    def target(self) -> str:
        """URI of the artifact."""
        # Absolute, because `x/` and `.` would put what lies beside the artifact into it.
        return absolute(self.out) if self.out else place_of(self.stage, self.root, self.origin)

    @property
    def work(self) -> Path:
        """A local directory for what outlives a killed run, the same one for the same artifact."""
        return self.earlier_work or work_of(self.target)

    @property
    def partial(self) -> Path:
        """A local directory that is filled, sealed and then put in its place."""
        return self.work / "partial" if "://" in self.target else self.work.with_suffix(".partial")


def planned_artifact(
    stage: Stage, recipe: Recipe, inputs: dict[str, str], files: Sequence[str], out: str | None
) -> PlannedArtifact:
    """Return the artifact that a recipe and inputs (word -> URI) lead to, in `out` or else below `storage.root`.

    `files` are outside files instead of the recipe's.
    """
    manifests = {word: artifact.finished_manifest(uri, kind_of(word)) for word, uri in inputs.items()}
    refuse_strangers(manifests, inputs)
    refuse_other_sources(recipe, manifests, inputs)
    outside = external_files(stage, recipe, files)
    beside = external_side_files(stage, recipe)
    champion = find_champion(recipe, manifests) if stage.champion.model else None
    origin = stage_origin(stage, recipe, manifests, outside, beside)
    if champion:
        origin[CHAMPION] = champion.digest
    root = recipe.storage.root or ""
    if not out and not root:
        raise RecipeError("storage.root: not set; give --out, or a directory or s3:// URI for all artifacts")
    return PlannedArtifact(
        stage=stage, origin=origin, root=root, out=out, files=outside, side_files=beside, manifests=manifests,
        champion=champion,
    )  # fmt: skip


def refuse_strangers(manifests: Mapping[str, Manifest], uris: Mapping[str, str]) -> None:
    """Refuse an adapter beside a model that it was not trained on, and scores of another model."""
    for word, (kind, made_from) in product(manifests, MADE_FROM):
        other = word_of(made_from, source_of(word)) if made_from in PER_SOURCE else made_from
        if kind_of(word) == kind and other in manifests:
            expected = manifests[word].origin.get(f"input {made_from}")
            digest = manifests[other].digest
            if expected not in {None, digest}:
                raise IntegrityError(
                    f"{uris[word]}: is made from the {other} {str(expected)[:DIGITS]}, and {uris[other]} is the {other} "
                    f"{digest[:DIGITS]}; give the {other} that it was made from, or make the {word} again"
                )


def place_of(stage: Stage, root: str, origin: dict[str, str]) -> str:
    """URI of an artifact that lies below `storage.root` by its key."""
    return join(root, stage.writes, artifact.origin_key(origin))


def work_of(target: str) -> Path:
    """The work directory of an artifact that was given no other."""
    if "://" not in target:
        return Path(f"{target}.work")
    return work_folder() / hashlib.sha256(target.encode()).hexdigest()[:16]


def reusable_artifact(job: Job, name: str, recipe: Recipe) -> tuple[Path, Manifest] | None:
    """Return the artifact of a stage for another recipe and this job's inputs, fetched; None if there is none."""
    if job.recipe.storage.root is None:
        return None
    inputs: dict[str, Manifest] = {}
    for word, path in job.inputs.items():
        if (read := artifact.read_manifest(str(path))) is None:
            return None  # a key needs all of them
        inputs[word] = read
    stage = STAGES[name]
    origin = stage_origin(stage, recipe, inputs, (), job.side_files)
    uri = join(str(job.recipe.storage.root), stage.writes, artifact.origin_key(origin))
    try:
        manifest = artifact.read_manifest(uri)
        return None if manifest is None or manifest.origin != origin else fetch(uri, stage.writes)
    except IntegrityError as error:
        log.warning("%s; what it holds is made again", error)
        return None


TABLE = "sources"
"""The recipe's table, which tokens follow from."""


def refuse_other_sources(recipe: Recipe, manifests: Mapping[str, Manifest], uris: Mapping[str, str]) -> None:
    """Refuse inputs of another source than that by whose name they are given.

    A corpus is told by its language alone: two names of the same text have one corpus.
    """
    if not recipe.sources:
        return
    for word, manifest in manifests.items():
        source = source_of(word) or next(iter(recipe.sources))
        if source not in recipe.sources:  # another one, in the step of a source
            continue
        kind = kind_of(word)
        fault = ""
        if kind == "corpus":
            fault = _other_language(recipe, source, manifest)
        elif TABLE in WRITERS[kind].keys and kind in PER_SOURCE:
            fault = _other_settings(recipe, source, manifest)
        elif kind in COMPARED:
            fault = _other_corpus(source, manifest, manifests)
        if fault:
            raise IntegrityError(
                f"{uris[word]}: {fault}; give the {kind} of source {source}, or make it again"
            )


def _other_language(recipe: Recipe, source: str, manifest: Manifest) -> str:
    theirs, ours = manifest.recipe.get("language"), recipe.of_source(source).language
    # A pack may be gone since, and its path says nothing.
    if not isinstance(theirs, str) or theirs == ours or is_pack_path(theirs) or is_pack_path(ours):
        return ""
    with contextlib.suppress(UnknownLanguageError):
        if load_language(theirs).code != load_language(ours).code:
            return f"is a corpus of language {theirs}, and that of source {source} is {ours}"
    return ""


def _other_settings(recipe: Recipe, source: str, manifest: Manifest) -> str:
    """Say where tokens follow from other keys of `sources`: another name, or another `max_tokens`."""
    now = recipe_origin(recipe.of_source(source), (TABLE,))
    before = {key: text for key, text in manifest.origin.items() if key.startswith(f"{RECIPE}{TABLE}")}
    if before == now:
        return ""
    listed = ", ".join(json.loads(before.get(f"{RECIPE}{TABLE}", "[]"))) or "a recipe without sources"
    if listed != source:
        return f"are {manifest.kind} of {listed}, not of source {source}"
    name = next(name for name in (*now, *before) if now.get(name) != before.get(name))
    key = name.removeprefix(RECIPE)
    return f"are {manifest.kind} with {key} {before.get(name, 'unset')}, and the recipe's is {now.get(name, 'unset')}"


def _other_corpus(source: str, manifest: Manifest, manifests: Mapping[str, Manifest]) -> str:
    theirs = manifest.origin.get("source", source).partition(" ")[0]
    if theirs != source:
        return f"is the {manifest.kind} of source {theirs}, not of {source}"
    compared = manifest.origin.get(f"{INPUT}corpus.{source}")
    if "corpus" in manifests and compared not in {None, manifests["corpus"].digest}:
        return f"compares another corpus of source {source} than the one that is given"
    return ""
