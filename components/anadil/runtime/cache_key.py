"""Origin of an artifact: everything that decides a stage's result. Its hash is the artifact's key.

It holds recipe keys that differ from their defaults, digests of the inputs, and the stage's result version. Source code
and program version are not part of it, so a release makes no artifact again.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY, is_local, refuse_gone, tiny_source
from anadil.artifacts.packaged_base import PACKAGED
from anadil.core.build import PACKAGE, digest_of
from anadil.core.format import KIB, MIB
from anadil.core.stage import Stage
from anadil.core.stages import PER_SOURCE, SHARED_ROOMS
from anadil.recipe.fields import NEUTRAL
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.job import by_source, earlier_place, kind_of, source_of, value_of, word_of
from anadil.text.language import is_pack_path
from anadil.text.parallel import TEMPLATE_DIGEST, both_languages, is_pair, languages_of

INPUT = "input "
"""Begins the names of digests of inputs in an origin."""
EARLIER = "earlier "
"""Begins the words of a champion's artifacts, behind `INPUT`."""
RECIPE = "recipe "
"""Begins the names of recipe keys in an origin."""
SET: dict[str, str] = {}
"""Value of an optional section of which keys are named, in an origin: that the recipe has it."""
RESULT_VERSION = "result version"
"""Name of the stage's result version in an origin."""
PACK = "pack "
"""Begins the value of `language` in an origin where the recipe names a pack; its digest follows."""
BASE_FILES = "base files"
"""Name of the digest of a base model's directory in an origin; a hub model has none."""
BASE_SUFFIXES = {".json", ".jinja", ".safetensors"}
"""Files of a base model that decide a result; a licence or a page about it decides nothing."""
PIECES, PIECE_BYTES = 64, 64 * KIB
"""Pieces of a large file of a base model that are read to tell it from another."""

PHASES = f"{RECIPE}pretrain.phases"
MIXES = ("mix", "anneal")
MAX_EPOCHS = re.compile(rf"{re.escape(RECIPE)}sources\.[^.]+\.max_epochs")


def stage_origin(
    stage: Stage, recipe: Recipe, inputs: dict[str, Manifest], files: Sequence[str],
    side_files: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:  # fmt: skip
    """Return everything that decides a stage's result, by name; its hash is the artifact's key."""
    # The number of processes decides nothing: the order of the data does not depend on it, so that a killed run can resume
    # with more or fewer. Nor does the program, but for `result_version`.
    reads = {each.kind: each for each in stage.reads}
    earlier = extended(stage, recipe)
    models = value_of(recipe, stage.models) or () if stage.models else ()
    origin = {
        "stage": stage.name,
        **result_version(stage),
        **recipe_origin(recipe, result_keys(stage, recipe)),
    }
    for name, manifest in inputs.items():
        each = reads[kind_of(name)]
        if each.how == "waits":
            continue
        if each.how == "pieces":
            # Tokens decide nothing: the same model comes of the corpus that they were made of.
            origin |= _made_of(name, manifest, inputs)
        else:
            origin[f"input {name}"] = manifest.whole_digest if each.beside else manifest.digest
    if stage.compares:
        # The earlier source keeps documents that are alike in two: their order decides.
        origin["source"] = (
            f"{next(iter(recipe.sources), '')} of {', '.join(by_source(stage.words[0], inputs))}"
        )
    origin |= earlier | _of_champion(stage, recipe, inputs)
    named = {f"file {uri}": uri for uri in files}
    functions = {each.key for each in stage.side_files if each.functions}
    for key, uris in (side_files or {}).items():
        if key in functions:
            for place, (uri, _, name) in enumerate(each.rpartition(":") for each in value_of(recipe, key)):
                named[f"{key} {place} {name}"] = uri
        else:
            named |= {f"file {uri} of {key}": uri for uri in uris}
    for name, uri in named.items():
        # A file name that is not UTF-8 arrives with lone surrogates, which no manifest could be written with.
        encoded = name.encode(errors="backslashreplace").decode()
        origin[encoded] = storage.input_store(uri).fingerprint(uri)
    if "base" in stage.keys:
        for name, manifest in inputs.items():
            base = manifest.recipe.get("base")
            same = isinstance(base, dict) and base.get("model") == recipe.base.model
            if same and BASE_FILES in manifest.origin:
                refuse_gone(recipe.base.model, f"the {name}")
        origin.update(base_files(recipe.base.model))
    for model in models:
        origin |= {f"{name} of {model}": digest for name, digest in base_files(model).items()}
    return origin


def extended(stage: Stage, recipe: Recipe) -> dict[str, str]:
    """Return the origin entry of what the stage goes on from, by its content; empty where the recipe names nothing."""
    places, kinds = earlier_place(stage, recipe), stage.extends.kinds or (stage.writes,)
    return {
        f"{INPUT}{key}": artifact.finished_manifest(place, *kinds).digest for key, place in places.items()
    }


def _of_champion(stage: Stage, recipe: Recipe, inputs: Mapping[str, Manifest]) -> dict[str, str]:
    """Digests of the champion's artifacts that the stage goes on from; those of sources whose corpora it reads."""
    champion = recipe.retrain.champion if recipe.retrain else None
    if champion is None or not stage.champion.artifacts:
        return {}
    # The step of a source knows its own corpus without the name.
    alone = next(iter(recipe.sources), "")
    words = {
        word_of(kind, source): word_of(kind, source or alone) if kind in PER_SOURCE else kind
        for kind in stage.champion.artifacts
        for source in (by_source("corpus", inputs) if kind in PER_SOURCE else ("",))
    }
    manifests = {
        word: artifact.read_manifest(champion.artifacts[of_run])
        for word, of_run in words.items()
        if of_run in champion.artifacts
    }
    return {f"{INPUT}{EARLIER}{word}": manifest.digest for word, manifest in manifests.items() if manifest}


def _made_of(word: str, manifest: Manifest, inputs: Mapping[str, Manifest]) -> dict[str, str]:
    """Digests of what an input was made of, as far as it is no input itself."""
    words = {
        kind: word_of(kind, source_of(word)) if kind.removeprefix(EARLIER) in PER_SOURCE else kind
        for kind in manifest.inputs
    }
    digests = manifest.inputs.items()
    return {f"{INPUT}{words[kind]}": digest for kind, digest in digests if words[kind] not in inputs}


def result_version(stage: Stage) -> dict[str, str]:
    """Entry for the program in an origin, also in that of a checkpoint."""
    return {RESULT_VERSION: str(stage.result_version)}


def result_keys(stage: Stage, recipe: Recipe) -> tuple[str, ...]:
    """Recipe keys and sections that decide a stage's result under this recipe."""
    read = (each.keys for each in stage.side_files if not each.only_if or value_of(recipe, each.only_if))
    return (*stage.keys, *(key for keys in read for key in keys))


def recipe_origin(recipe: Recipe, sections: Sequence[str]) -> dict[str, str]:
    """Return the recipe part of an origin: the keys of some sections that differ from their defaults."""
    # A release that adds a key so changes no origin. One that changes a default raises `result_version`, or what the old
    # default made would be taken for the new one's.
    keys = recipe_keys(recipe, sections, exclude_defaults=True)
    return {f"{RECIPE}{path}": text for path, text in keys.items()}


def recipe_keys(recipe: Recipe, sections: Sequence[str], *, exclude_defaults: bool = False) -> dict[str, str]:
    """Return the recipe keys of some sections or single keys, by path, as JSON.

    `exclude_defaults` skips keys that have their default, also in the items of lists.
    """
    keys: dict[str, str] = {}
    for section in sections:
        parent, _, name = section.rpartition(".")
        node: BaseModel | Mapping[str, BaseModel] | None = recipe
        for part in filter(None, parent.split(".")):
            node = getattr(node, part) if node is not None else None
        if node is None:  # an optional section that is left out
            continue
        # A run from the base is the same with the section and without it.
        if parent == "retrain" and not recipe.continues_champion:
            continue
        if type(recipe).model_fields[section.partition(".")[0]].default is None and parent:
            # Its keys with their defaults are another recipe than none.
            keys[parent] = json.dumps(SET)
        # A key of named tables, such as `sources.tokens`, is one of each.
        tables = (
            {f"{parent}.{called}.": each for called, each in node.items()}
            if isinstance(node, Mapping)
            else {section.removesuffix(name): node}
        )
        for path, table in tables.items():
            keys |= _keys_of(table, name, f"{path}{name}", exclude_defaults=exclude_defaults)
        if section == "language" and section in keys:
            keys[section] = json.dumps(_language_key(recipe.language), ensure_ascii=False)
    return keys


def _language_key(language: str) -> str:
    """Return the id of a language, the digest of its pack, or both languages of pairs with their template."""
    if is_pair(language):
        sides = both_languages([_language_key(side) for side in languages_of(language)])
        return f"{sides} in template {TEMPLATE_DIGEST}"
    if not is_pack_path(language):
        return language
    # The same pack in another place is the same language, and another one in this place is not.
    return f"{PACK}{hashlib.sha256(Path(language).expanduser().read_bytes()).hexdigest()}"


def origin_changes(old: Mapping[str, str], new: Mapping[str, str], sections: Sequence[str]) -> list[str]:
    """Causes why `new` gives another result than `old`, a phrase each."""
    defaults = {f"{RECIPE}{path}": text for path, text in recipe_keys(Recipe(), sections).items()}
    return origin_differences({**defaults, **old}, {**defaults, **new})


def origin_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return why `new` gives another artifact than `old`, a phrase for each cause."""
    causes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before is None or after is None:
            causes.append(f"{name} {'added' if before is None else 'removed'}")
        elif len(before) + len(after) <= 80 and not name.startswith(
            ("input ", "file ", "code", "base files")
        ):
            causes.append(f"{name} {before} -> {after}")
        else:
            causes.append(f"{name} changed")
    return causes


def nested_keys(origin: Mapping[str, str]) -> dict[str, Any]:
    """Return the recipe keys of an origin as tables of a recipe: those that differ from their defaults."""
    data: dict[str, Any] = {}
    for name, text in origin.items():
        if name.startswith(RECIPE):
            *parents, key = name.removeprefix(RECIPE).split(".")
            node = data
            for parent in parents:
                # One entry lists the names of tables such as `sources`; their keys have entries of their own.
                if not isinstance(node.get(parent), dict):
                    node[parent] = {}
                node = node[parent]
            if key not in node:
                node[key] = json.loads(text)
    return data


# Cached: what a process has loaded is of one moment, and reading 600 files anew for each artifact takes as long as a small stage.
@functools.cache
def code_digest(stage: Stage) -> str:
    """SHA-256 of the source that the stage runs: shared rooms, its own, those of its image.

    It stands in manifests, to say what made an artifact, and in no key.
    """
    rooms = dict.fromkeys(
        (*SHARED_ROOMS, stage.name, *stage.pod.rooms, *(["model"] if stage.pod.uses_model else []))
    )
    return digest_of(PACKAGE, PACKAGE.glob("*"), *((PACKAGE / room).rglob("*") for room in rooms))


def _keys_of(parent: BaseModel, name: str, path: str, *, exclude_defaults: bool) -> dict[str, str]:
    value = getattr(parent, name)
    field = type(parent).model_fields[name]
    # `get_default` copies a section, which takes ten times as long as all else here.
    default = field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]  # no factory here takes data
    if exclude_defaults and value == default:
        return {}
    if isinstance(value, Mapping) and any(isinstance(each, BaseModel) for each in value.values()):
        # Named tables, such as `sources`: a key in one of them has a path of its own.
        return {
            below: text
            for called, table in value.items()
            for below, text in _table_keys(
                table, f"{path}.{called}", exclude_defaults=exclude_defaults
            ).items()
        } | {path: json.dumps(sorted(value))}
    if not isinstance(value, BaseModel):

        def plain(item: BaseModel) -> object:
            return item.model_dump(mode="json", exclude_defaults=exclude_defaults)

        return {path: json.dumps(value, ensure_ascii=False, default=plain)}
    return _table_keys(value, path, exclude_defaults=exclude_defaults)


def _table_keys(table: BaseModel, path: str, *, exclude_defaults: bool) -> dict[str, str]:
    return {
        below: text
        for key, field in type(table).model_fields.items()
        if NEUTRAL not in field.metadata
        for below, text in _keys_of(table, key, f"{path}.{key}", exclude_defaults=exclude_defaults).items()
    }


def base_files(model: str) -> dict[str, str]:
    """Return the origin entry of a base model's directory: names, sizes and digests of its files."""
    folder = Path(model).expanduser()
    if model == TINY:
        # Its bytes follow on every machine from what it is made from.
        return {BASE_FILES: tiny_source()}
    if model in PACKAGED:
        return {BASE_FILES: PACKAGED[model].identity}
    if not is_local(model):
        return {}
    parts = []
    for file in sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in BASE_SUFFIXES):
        size = file.stat().st_size
        # Other weights differ everywhere, so pieces of a large file tell it from another.
        content = artifact.file_entry(file)["sha256"] if size < 16 * MIB else _sampled(file, size)
        parts.append(f"{file.name} {size} {content}")
    return {BASE_FILES: hashlib.sha256("\n".join(parts).encode()).hexdigest()}


def base_identity(base: Base) -> str:
    """Return name and revision of a base model, and the digest of its files where they are here."""
    return " ".join([base.model, *filter(None, [base.revision]), *base_files(base.model).values()])


def _sampled(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek(size * number // PIECES)
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()


def split_shares(origin: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part an origin into what a resume must not change, and entries that it may.

    An entry that holds both, the phases, stands in both: without its mixes, and as it is.
    """
    rest, shares = {}, {}
    for name, text in origin.items():
        if MAX_EPOCHS.fullmatch(name):
            shares[name] = text
            continue
        rest[name] = _without_mixes(text) if name == PHASES else text
        if rest[name] != text:
            shares[name] = text
    return rest, shares


def _without_mixes(phases: str) -> str:
    plain = [{key: value for key, value in phase.items() if key not in MIXES} for phase in json.loads(phases)]
    return json.dumps(plain, ensure_ascii=False)
