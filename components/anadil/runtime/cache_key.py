"""What decides a stage's result: its hash is the key of the artifact.

Keys are made of the recipe's keys, the content of what the stage reads, and its result version.
Neither the source nor the program's version is among them, so that a release makes no artifact again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import TINY, is_local, refuse_gone, tiny_source
from anadil.core.format import KIB, MIB
from anadil.core.stages import NEW_KEYS, SHARED_ROOMS, Stage
from anadil.recipe.pretrain import NEUTRAL
from anadil.recipe.sections import CLEAN_NEUTRAL, EVALUATE_NEUTRAL, TOKENIZER_NEUTRAL, Recipe
from anadil.text.language import is_pack_path

PACKAGE = Path(__file__).parents[1]
SOURCE_SUFFIXES = {".py", ".jinja", ".j2", ".css", ".yaml", ".tsv"}
RESULT_VERSION = "result version"
"""Its name in an origin."""
BASE_FILES = "base files"
"""That of a base's directory in an origin; a hub model has none."""
BASE_SUFFIXES = {".json", ".jinja", ".safetensors"}
"""Of what is read of a base model's directory; a licence or a page about it decides nothing."""
PIECES, PIECE_BYTES = 64, 64 * KIB
"""Of a large file of a base model, that are read to tell it from another."""


def stage_origin(
    stage: Stage,
    recipe: Recipe,
    inputs: dict[str, Manifest],
    files: Sequence[str],
    side_files: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Everything that decides a stage's result, by name; its hash is the artifact's key.

    The number of processes is not part of it: the order of the data does not depend on it,
    so that a killed run can resume with more or fewer. Nor is the program, but for `result_version`.
    """
    origin = {"stage": stage.name, **result_version(stage), **recipe_origin(recipe, stage.sections)}
    for name, manifest in inputs.items():
        origin[f"input {name}"] = manifest.whole_digest if stage.reads_beside else manifest.digest
    if stage.extends:
        section, key = stage.extends.split(".")
        if earlier := getattr(getattr(recipe, section), key):
            origin[f"input {stage.extends}"] = artifact.finished_manifest(earlier, stage.writes).digest
    named = {f"file {uri}": uri for uri in files}
    named |= {f"file {uri} of {key}": uri for key, uris in (side_files or {}).items() for uri in uris}
    for name, uri in named.items():
        # A file name that is not UTF-8 arrives with lone surrogates, which no manifest could be written with.
        encoded = name.encode(errors="backslashreplace").decode()
        origin[encoded] = storage.store(uri).fingerprint(uri)
    if "base" in stage.sections:
        for name, manifest in inputs.items():
            base = manifest.recipe.get("base")
            same = isinstance(base, dict) and base.get("model") == recipe.base.model
            if same and BASE_FILES in manifest.origin:
                refuse_gone(recipe.base.model, f"the {name}")
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
        if section == "language" and is_pack_path(recipe.language):
            # The same pack in another place is the same language, and another one in this place is not.
            node = f"pack {hashlib.sha256(Path(recipe.language).expanduser().read_bytes()).hexdigest()}"
        origin.update(_flat(section, node))
    return origin


def code_digest(stage: Stage) -> str:
    """SHA-256 of the source that the stage runs: shared rooms, its own, `model/`.

    It stands in manifests, to say what made an artifact, and in no key.
    """
    rooms = [*SHARED_ROOMS, stage.name, *(["model"] if stage.uses_model else [])]
    digest = hashlib.sha256()
    for files in [PACKAGE.glob("*"), *((PACKAGE / room).rglob("*") for room in rooms)]:
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
    neutral = {
        "pretrain": NEUTRAL, "clean": CLEAN_NEUTRAL, "tokenizer": TOKENIZER_NEUTRAL, "evaluate": EVALUATE_NEUTRAL,
    }.get(name, ())  # fmt: skip
    return [key for key in type(node).model_fields if key not in neutral]


def base_files(model: str) -> dict[str, str]:
    """What tells a base model's directory from another: names, sizes and digests of its files.

    `tiny` is told by what it is made from, since its bytes follow from that on every machine. Of a file of 16 MiB or more, pieces all over it are read: other weights differ everywhere.
    """
    folder = Path(model).expanduser()
    if model == TINY:
        return {BASE_FILES: tiny_source()}
    if not is_local(model):
        return {}
    parts = []
    for file in sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in BASE_SUFFIXES):
        size = file.stat().st_size
        content = artifact.file_entry(file)["sha256"] if size < 16 * MIB else _sampled(file, size)
        parts.append(f"{file.name} {size} {content}")
    return {BASE_FILES: hashlib.sha256("\n".join(parts).encode()).hexdigest()}


def _sampled(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(PIECES):
            file.seek(size * number // PIECES)
            digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()
