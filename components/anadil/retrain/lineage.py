"""Lineage of a champion: the artifacts behind it and the files that it has learnt, also through earlier retrainings.

Manifests alone are read: each stage of the retraining verifies what it reads.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest, verify
from anadil.artifacts.find import artifacts_below, read_table, roots_of
from anadil.core.errors import AnadilError, DataError, IntegrityError, RecipeError
from anadil.core.log import masked
from anadil.core.stages import COMPARED, FLOW, PIECES, STAGES, WRITERS, forms_of, last_form
from anadil.page.values import list_of, table_of
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.start_point import POINTS
from anadil.recipe.sections import Recipe
from anadil.release.registry.client import SCHEME, check_name, open_registry, registry_errors
from anadil.runtime.cache_key import EARLIER, INPUT
from anadil.runtime.compared_champion import ALIAS
from anadil.runtime.job import kind_of, source_of, word_of
from anadil.runtime.tracking_spool import tracking_uri

log = logging.getLogger(__name__)

RESTORE = "restore it, or go back to the version before by `anadil rollback`"
FILE = "file "
OF_KEY = " of "
EXTENDED = {stage.extends.key: stage.writes for stage in FLOW if stage.extends.key}
"""Recipe key of what a stage goes on from -> what it writes."""
PREFERENCE = "finetune.preference.inputs"
"""Recipe key of the pairs, which finetuning learns beside the chats."""
DIGITS = 16
ANEW = ", or train anew: --from-base"
"""End of an error where something of the champion is gone. A run from the base needs another remedy."""
Made = tuple[str, Manifest]
"""URI and manifest of an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedModel:
    """The champion, found and verified."""

    name: str
    """Registered model."""
    version: str
    uri: str
    manifest: Manifest


def champion_name(recipe: Recipe) -> tuple[str, str]:
    """Return registered model and alias of the champion, as `evaluate.champion` or the language says."""
    named = recipe.evaluate.champion
    if named is None:
        return f"anadil-{recipe.language_code}", ALIAS
    name, sign, alias = named.removeprefix(SCHEME).rpartition("@")
    if not sign or "/" in name:
        raise RecipeError(
            f"evaluate.champion: {named}: a retraining begins with a model of the registry; write NAME@ALIAS, or leave it "
            f"out for anadil-{recipe.language_code}@{ALIAS}"
        )
    check_name(name, "evaluate.champion")
    return name, alias


def find_released(recipe: Recipe, recipe_argument: str) -> ReleasedModel:
    """Ask the registry for the champion, and verify its artifact: every byte of a local one, sizes on S3.

    `recipe_argument` is the recipe with its options as the user gave them, for the remedy.
    """
    name, alias = champion_name(recipe)
    tracking = tracking_uri(recipe)
    first = f"make the first one: anadil run {recipe_argument}, then anadil promote MODEL"
    try:
        registry = open_registry(tracking, makes=False)
    except DataError as error:
        raise DataError(f"{error}; {first}") from None
    with registry_errors(registry.uri):
        version = registry.by_alias(name, alias)
    if version is None:
        known = registry.known(name).partition(";")[0]
        raise DataError(
            f"{name}@{alias}: no champion in the registry at {masked(registry.uri)} ({known}); {first}"
        )
    where = f"{version.uri} ({name} version {version.version}, @{alias})"
    if not version.digest:
        raise IntegrityError(
            f"{where}: another program registered it, so what it was trained on is not known; promote a model of `anadil run`"
        )
    manifest = artifact.read_manifest(version.uri)
    if manifest is None:
        raise IntegrityError(f"{where}: the artifact was deleted, or is not visible on this host; {RESTORE}")
    if manifest.digest != version.digest:
        raise IntegrityError(f"{where}: its bytes differ from those that were promoted; {RESTORE}")
    # Evaluation skips a champion that it cannot read. A retraining must not come so far.
    try:
        verify(version.uri, manifest)
    except IntegrityError as error:
        # It was promoted, so that what follows for an artifact of a run would be the wrong advice.
        fault = str(error).partition(";")[0]
        raise IntegrityError(f"{where}: {fault}; {RESTORE}") from None
    return ReleasedModel(name=name, version=version.version, uri=version.uri, manifest=manifest)


def champion_version(recipe: Recipe) -> str:
    """Return the version that is champion now; empty where none is."""
    name, alias = champion_name(recipe)
    registry = open_registry(tracking_uri(recipe), makes=False)
    with registry_errors(registry.uri):
        version = registry.by_alias(name, alias)
    return version.version if version else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Everything behind a champion."""

    champion: ReleasedModel
    made: Mapping[str, Made]
    """Artifact word, such as `model` or `corpus.web` -> the artifact."""
    files: Mapping[str, Mapping[str, str]]
    """Source, empty without sources -> URI -> digest of each file of text that its corpora were made of."""
    earlier: Mapping[str, Sequence[Made]]
    """Source -> its corpora, the last first, each of which was added to the next."""
    adapters: Sequence[Made] = ()
    """The adapter that the champion is, or else the first that was made of it, and those that it began with, the last first."""
    is_released: bool = False
    """An artifact `release` was made of the scores."""
    plateau: str = ""
    """Checkpoint before the decay of the last training, with moments; empty where none can be seen from here."""

    @property
    def model(self) -> Manifest:
        """Manifest of the model before merging and finetuning."""
        return self.made["model"][1]

    @property
    def chats(self) -> dict[str, str]:
        """URI -> digest of each file of chats or pairs that was learnt."""
        return {uri: digest for each in reversed(self.adapters) for uri, digest in chats_of(each[1]).items()}

    @property
    def corpora(self) -> dict[str, Made]:
        """Source -> its corpus."""
        return {source: chain[0] for source, chain in self.earlier.items()}

    @property
    def places(self) -> dict[str, str]:
        """Artifact word -> URI."""
        return {word: uri for word, (uri, _) in self.made.items()}


def chats_of(adapter: Manifest) -> dict[str, str]:
    """Return URI -> digest of each file of chats or pairs that the training of an adapter has read."""
    keys = {each.key for each in STAGES["finetune"].side_files}
    files = {}
    for name, digest in adapter.origin.items():
        uri, _, key = name.removeprefix(FILE).rpartition(OF_KEY)
        if name.startswith(FILE) and (key not in keys or key == PREFERENCE):
            files[uri if key in keys else name.removeprefix(FILE)] = digest
    return files


def lineage_of(champion: ReleasedModel, roots: Iterable[str] = ()) -> Lineage:
    """Follow a champion to its files, in its own storage root, that of its recipe, and further roots."""
    return _Walk(champion, roots).lineage()


@dataclass(slots=True)
class _Walk:
    """Search for artifacts by digest; each manifest below the roots is read once."""

    champion: ReleasedModel
    roots: Iterable[str]
    _known: dict[str, dict[str, list[Made]]] = field(default_factory=dict)

    def lineage(self) -> Lineage:
        """Return the whole lineage."""
        made = {self.champion.manifest.kind: (self.champion.uri, self.champion.manifest)}
        # An adapter was trained on a model or on a merged one, and that was merged from a model.
        for word in reversed(forms_of("model")):
            holder = next(reversed(made.values()))[1]
            if word not in made and f"{INPUT}{word}" in holder.origin:
                made[word] = self._input(holder, word)
        model = made["model"][1]
        for name in model.inputs:
            if kind_of(name) in (*forms_of("tokenizer"), "corpus"):
                made[name] = self._input(model, name)
            # Two sources without a document in common have lists of one digest.
            elif kind_of(name) in COMPARED and (compared := self._compared(name, model)):
                made[name] = compared
        if scores := self._scores():
            made["scores"] = scores
        chains = {
            source_of(word): self._chain(each, STAGES["clean"].extends.key)
            for word, each in made.items()
            if kind_of(word) == "corpus"
        }
        for source, chain in chains.items():
            corpus = chain[0][1]
            for kind in STAGES["clean"].words:
                if f"{INPUT}{kind}" in corpus.origin:
                    made[word_of(kind, source)] = self._input(corpus, kind)
            if PIECES and (tokens := self._tokens(corpus, model, source)):
                made[word_of(PIECES, source)] = tokens
        files = {source: _files_of(chain) for source, chain in chains.items()}
        return Lineage(
            champion=self.champion, made=made, files=files, earlier=chains,
            adapters=self._adapters(made), is_released=self._is_released(made), plateau=_plateau(*made["model"]),
        )  # fmt: skip

    def _adapters(self, made: Mapping[str, Made]) -> list[Made]:
        """Return the champion's adapter and those that it began with, the last first."""
        word = last_form("model", made)
        # Where the champion is no adapter: the first of its own run, which the gate did not release.
        of_model = (
            () if "adapter" in made else self._made_of("adapter", {f"{INPUT}{word}": made[word][1].digest})
        )
        if (adapter := made.get("adapter") or next(reversed(of_model), None)) is None:
            return []
        try:
            return self._chain(adapter, STAGES["finetune"].extends.key)
        except IntegrityError as error:
            log.warning("%s. Until then its chats count as new", str(error).removesuffix(ANEW))
            return [adapter]

    def _chain(self, last: Made, key: str) -> list[Made]:
        """Return an artifact and those that it goes on from by a recipe key, one after another."""
        chain = [last]
        # Never round in a circle, whatever the clocks of the storage say of the order.
        while chain[-1][1].origin.get(f"{INPUT}{key}") not in {None, *(each.digest for _, each in chain)}:
            chain.append(self._input(chain[-1][1], key))
        return chain

    def _input(self, reader: Manifest, name: str) -> Made:
        digest = reader.origin[f"{INPUT}{name}"]
        word = EXTENDED.get(name, kind_of(name))
        if places := self._below(word).get(digest):
            # A week of which nothing was kept has made a later corpus of the same digest, which was added to this one.
            return places[-1]
        raise IntegrityError(
            f"{self.champion.uri}: its {reader.kind} was made from the {word} {digest[:DIGITS]}, and none with that digest "
            f"lies in {', '.join(self._roots)}; restore it or name its root as storage.root{ANEW}"
        )

    def _compared(self, name: str, model: Manifest) -> Made | None:
        """Return what a source's comparison with others has made; None where it is gone, and can be made again."""
        source = source_of(name)
        corpus = f"{INPUT}{word_of('corpus', source)}"
        for each in self._made_of(kind_of(name), {corpus: model.origin.get(corpus)}):
            is_same = each[1].digest == model.origin[f"{INPUT}{name}"]
            if is_same and each[1].origin.get("source", "").startswith(f"{source} of "):
                return each
        return None

    def _scores(self) -> Made | None:
        """Return the newest scores of the champion; None where they are gone, and both models are measured again."""
        champion = self.champion.manifest
        return next(iter(self._made_of("scores", {f"{INPUT}{champion.kind}": champion.digest})), None)

    def _is_released(self, made: Mapping[str, Made]) -> bool:
        digest = made["scores"][1].digest if "scores" in made else None
        return bool(self._made_of("release", {f"{INPUT}scores": digest}))

    def _tokens(self, corpus: Manifest, model: Manifest, source: str) -> Made | None:
        """Return the token shards that the model was trained on: made of its corpus by its tokenizer; the newest.

        Gone, they are made again.
        """
        inputs = {f"{INPUT}{word}": model.origin.get(f"{INPUT}{word}") for word in forms_of("tokenizer")} | {
            f"{INPUT}corpus": corpus.digest
        }
        # Tokens of another list or of another champion have other blocks, in which a checkpoint's place means other text.
        inputs |= {
            f"{INPUT}{kind}": model.origin.get(f"{INPUT}{word_of(kind, source)}")
            for kind in (*COMPARED, *(f"{EARLIER}{each}" for each in WRITERS[PIECES].champion.artifacts))
        }
        length = "recipe pretrain.sequence_length"
        return next(iter(self._made_of(PIECES, {**inputs, length: model.origin.get(length)})), None)

    def _made_of(self, kind: str, origin: Mapping[str, str | None]) -> list[Made]:
        """Return the artifacts of a kind whose origin has all these entries."""
        made = (each for same in self._below(kind).values() for each in same)
        return [
            each for each in made if all(each[1].origin.get(name) == text for name, text in origin.items())
        ]

    @property
    def _roots(self) -> list[str]:
        return roots_of(self.champion.uri, self.champion.manifest, self.roots)

    def _below(self, word: str) -> dict[str, list[Made]]:
        """Artifacts of a kind by digest, the newest first."""
        if word not in self._known:
            by_digest: dict[str, list[Made]] = {}
            for uri, manifest in artifacts_below(self._roots, word):
                by_digest.setdefault(manifest.digest, []).append((uri, manifest))
            self._known[word] = by_digest
        return self._known[word]


def _files_of(chain: Sequence[Made]) -> dict[str, str]:
    """Return URI -> digest of the texts of some corpora; of a file that came twice the last."""
    files: dict[str, str] = {}
    keys = {each.key for each in STAGES["clean"].side_files}
    for _, corpus in reversed(chain):
        for name, digest in corpus.origin.items():
            # Lists and other files of a key stand there as `file URI of clean.url_lists`.
            if name.startswith(FILE) and name.rpartition(OF_KEY)[2] not in keys:
                files[name.removeprefix(FILE)] = digest
    return files


def _plateau(uri: str, model: Manifest) -> str:
    """Return the last checkpoint before the last phase's decay that is there; a pod's own disk is not seen from elsewhere."""
    training = read_table(uri, model, "training.json")
    steps = [int(str(table_of(each).get("steps", 0))) for each in list_of(training.get("phases"))]
    # A checkpoint of an earlier phase was trained with other weights frozen.
    for point in map(table_of, reversed(list_of(training.get(POINTS)))):
        place = str(point.get("place", ""))
        if int(str(point.get("step", 0))) > sum(steps[:-1]) and _is_checkpoint(place):
            return place
    return ""


def _is_checkpoint(place: str) -> bool:
    try:
        manifest = artifact.read_manifest(place)
    except (AnadilError, OSError):
        return False
    return manifest is not None and manifest.kind == directory.KIND
