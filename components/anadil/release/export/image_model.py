"""A model of text and images again: trained text weights in the place of its base's, all else as the base has it."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import BUILT_IN, COPIED_TOKENIZER_FILES, SIZES, TERMS, read_tokenizer
from anadil.artifacts.find import find_artifact, roots_of
from anadil.artifacts.hub_files import COMMIT
from anadil.artifacts.local_directory import check_space
from anadil.artifacts.text_part import name_in_wrapper, read_settings, text_name, with_text, wrapper_of
from anadil.artifacts.weight_files import StoredTensor, all_tensors, stored_tensors
from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import write_indented
from anadil.core.stages import forms_of
from anadil.model.architecture import read_config
from anadil.model.safetensors_files import DTYPES, TensorLayout, read_rows, write_weights
from anadil.model.tiny import base_model
from anadil.recipe.sections import Base
from anadil.release.model_source import ModelSource
from anadil.runtime.cache_key import BASE_FILES, base_files

log = logging.getLogger(__name__)

OF_BASE = ("*processor*.json", "chat_template.json", *TERMS)
OF_TEXT = ("generation_config.json", *COPIED_TOKENIZER_FILES, *TERMS)
"""Files that are copied. The text model's win."""
OTHER_IDS = re.compile(r"(?!bos_|eos_|pad_)\w+_token_(id|index)")
"""Keys of config.json for tokens that stand for images and other media."""
WITHOUT = "export without --with-images for the text model alone"


def image_base(source: ModelSource, cache: Path) -> Path:
    """Return the model of text and images that a model was trained from, as its run has read it."""
    manifest = source.manifest
    record = manifest.recipe.get("base") if manifest else None
    if manifest is None or source.directory is None or not isinstance(record, dict):
        raise DataError(
            f"{source.uri}: names no base, give a model, merged or adapter artifact, or {WITHOUT}"
        )
    base, known = Base.model_validate(record), _digest(source.uri, manifest)
    commit = bool(COMMIT.fullmatch(base.revision or ""))
    if not known and not commit:
        raise DataError(
            f"{source.uri}: nothing says which files of its base {base.model} were read (no digest, and base.revision is no "
            f"commit), {WITHOUT}"
        )
    folder = Path(base.model).expanduser()
    other = DataError(f"{source.uri}: its base {base.model} is no model of text and images, {WITHOUT}")
    if base.model in BUILT_IN:
        raise other
    if known and not folder.is_dir():
        raise DataError(
            f"{source.uri}: its base, the directory {base.model}, has gone, put it back, or {WITHOUT}"
        )
    current = base_files(base.model).get(BASE_FILES, "")
    if known and current != known:
        raise IntegrityError(
            f"{folder}: its files have changed since {source.uri} was trained from them ({current[:12]} now, {known[:12]} then), "
            f"put the old ones back, or {WITHOUT}"
        )
    if not known:
        folder = base_model(base, cache, more=OF_BASE)
    if not wrapper_of(folder):
        raise other
    return folder


def _digest(uri: str, manifest: Manifest) -> str:
    """Return the digest of the base's files by the artifact or its inputs, empty for a base of the hub."""
    roots = roots_of(uri, manifest)
    while BASE_FILES not in manifest.origin:
        inputs = {
            word: manifest.origin.get(f"input {word}") for word in (*reversed(forms_of("model")), "tokenizer")
        }
        places = (find_artifact(roots, word, digest) for word, digest in inputs.items() if digest)
        if not (place := next(filter(None, places), None)):
            return ""
        manifest = place[1]
    return manifest.origin[BASE_FILES]


def write_image_model(base: Path, text: Path, out: Path, precision: str | None) -> None:
    """Write the base with the weights, tokenizer and settings of a text model; `precision` is of the text's weights."""
    ours, theirs = read_config(text).to_dict(), read_config(base).to_dict()
    for key in ["model_type", *sorted(SIZES - {"vocab_size"})]:
        if ours.get(key) != theirs.get(key):
            raise DataError(
                f"{text}: {key} is {ours.get(key)!r}, and the text model of {base} has {theirs.get(key)!r}, {WITHOUT}"
            )
    stored = all_tensors(base)
    trained = {name_in_wrapper(name, stored): each for name, each in stored_tensors(text).items()}
    tensors = {name: each for name, each in stored.items() if not text_name(name)} | trained
    dtype = getattr(torch, precision) if precision else None
    layout = {
        name: TensorLayout(dtype if dtype and name in trained else DTYPES[each.dtype], each.shape)
        for name, each in tensors.items()
    }
    check_space(out, sum(each.num_bytes for each in layout.values()))
    settings = _settings(base, text)
    write_weights(out, layout, lambda name: [_rows(tensors[name], layout[name].dtype)])
    if precision:
        settings |= dict.fromkeys(("dtype", "torch_dtype"), precision)
        settings["text_config"] |= dict.fromkeys(("dtype", "torch_dtype"), precision)
    write_indented(out / "config.json", settings, 2)
    for folder, patterns in ((base, OF_BASE), (text, OF_TEXT)):
        for file in {each for pattern in patterns for each in folder.glob(pattern)}:
            shutil.copyfile(file, out / file.name)
    log.info(
        "%s: %d tensors of the text model are written into it, and %d others stay",
        base,
        len(trained),
        len(tensors) - len(trained),
    )


def _rows(tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    rows = read_rows(tensor)
    if rows.dtype != dtype and not bool(torch.isfinite(rows.to(dtype)).all()):
        raise DataError(
            f"{tensor.file}: {tensor.name} holds numbers that {dtype} cannot, export with --precision bf16"
        )
    return rows


def _settings(base: Path, text: Path) -> dict[str, Any]:
    """Return config.json of the whole model, with the ids that the text model's tokenizer gives to images."""
    tie = {"tie_word_embeddings": read_config(text).tie_word_embeddings}
    settings = with_text(read_settings(base / "config.json"), read_settings(text / "config.json") | tie)
    before, now = read_tokenizer(base), read_tokenizer(text)
    for key, index in settings.items():
        if not OTHER_IDS.fullmatch(key) or type(index) is not int:
            continue
        token = before.id_to_token(index)
        settings[key] = now.token_to_id(token) if token else index
        if token and settings[key] is None:
            raise DataError(f"{text}: its tokenizer lacks {token!r}, the {key} of {base}, {WITHOUT}")
        if not token and (other := now.id_to_token(index)):
            raise DataError(
                f"{text}: id {index} is its token {other!r}, and {base} has it as {key}, {WITHOUT}"
            )
    return settings
