"""Where a finished model lies: from what a person names to a directory of this machine that loads as it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import model_config
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import MANIFEST, absolute, join
from anadil.artifacts.weight_files import weight_files
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError
from anadil.release.registry.client import resolve

Kind = Literal["model", "adapter", "checkpoint", "directory"]
Candidate = Literal["adapted", "finetuned"]

REGISTERED = "models:/"
"""Prefix of names in MLflow's registry."""
MERGED = "merged"
"""Of an adapter artifact: the directory with the whole model."""
CANDIDATES: Mapping[str, Candidate] = MappingProxyType({"model": "adapted", "adapter": "finetuned"})
WANTED = "give a model or adapter artifact, a Hugging Face model directory, or models:/NAME@ALIAS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that was found, every byte of an artifact compared with its manifest."""

    uri: str
    """Of the artifact or directory, absolute; of a name in the registry, where its version lies."""
    kind: Kind
    """Of an artifact its word; `directory` is any other Hugging Face model directory."""
    directory: Path | None
    """Local Hugging Face directory that loads as it is: `merged/` of an adapter; None of a checkpoint."""
    manifest: Manifest | None
    """None of a directory that is no artifact."""
    candidate: Candidate | None
    """What the scores call it; None of what they never are of."""


def find_model(uri: str, *, tracking: str | None = None) -> ModelSource:
    """Find a model and bring it to this machine.

    Args:
        uri: A model or adapter artifact, local or on S3; the `merged` directory of an adapter; a checkpoint of
            pretrain; any Hugging Face model directory; or `models:/NAME@ALIAS` and `models:/NAME/VERSION`.
        tracking: The registry's address; left out, as the registry's module finds it.

    Raises:
        DataError: Nothing lies there, or something else.
        IntegrityError: Bytes differ from their manifest or from the registry's digest, or would run code.
        PreflightError: The storage or the registry cannot be used.
        RecipeError: The URI holds a password or a token.
    """
    if uri.startswith(REGISTERED):
        return _registered(uri, tracking)
    check_address(uri)
    place = absolute(uri)
    try:
        manifest = artifact.read_manifest(place)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{place[:200]}: cannot be read ({error.strerror}); {WANTED}") from None
    if manifest is not None:
        return _from_artifact(place, manifest)
    parent, _, name = place.rpartition("/")
    above = artifact.read_manifest(parent) if name == MERGED else None
    if above is not None and above.kind == "adapter":
        return _from_artifact(parent, above)
    return _from_directory(place)


def _registered(uri: str, tracking: str | None) -> ModelSource:
    version = resolve(uri, tracking)
    at = f"{uri}: version {version.version} lies at {version.uri}"
    try:
        source = find_model(version.uri, tracking=tracking)
    except DataError as error:
        raise IntegrityError(
            f"{at}, where it no longer exists ({error}); promote a model that exists, or roll back"
        ) from None
    digest = source.manifest.digest if source.manifest else ""
    if digest != version.digest:
        raise IntegrityError(
            f"{at}, which holds other bytes than those that were promoted: digest {digest[:12] or 'none'}, "
            f"{version.digest[:12]} expected; promote the model again, or roll back"
        )
    return source


def check_address(uri: str) -> None:
    """Refuse what is no place of a model before anything is asked; a secret is not repeated."""
    scheme, separator, rest = uri.partition("://")
    if not uri.strip():
        raise RecipeError(f"an empty URI; {WANTED}")
    if not separator:
        return
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise RecipeError(
            f"{scheme}://...: a URI with a password or a token, which logs and files would repeat; "
            "take it out and use environment variables (AWS_PROFILE, HF_TOKEN)"
        )
    if scheme == "hf":
        raise PreflightError(
            f"{uri}: download it first (hf download {rest}) and give its directory; {WANTED}"
        )


def _from_artifact(uri: str, manifest: Manifest) -> ModelSource:
    if manifest.kind == "checkpoint":
        return ModelSource(uri=uri, kind="checkpoint", directory=None, manifest=manifest, candidate=None)
    if manifest.kind not in CANDIDATES:
        raise DataError(f"{uri}: holds a {manifest.kind}, not a model; {WANTED}")
    kind: Kind = "model" if manifest.kind == "model" else "adapter"
    path, _ = fetch(uri, kind)
    found = ModelSource(
        uri=uri, kind=kind, directory=path, manifest=manifest, candidate=CANDIDATES[manifest.kind]
    )
    return replace(found, directory=path / MERGED) if kind == "adapter" else found


def _from_directory(uri: str) -> ModelSource:
    """A Hugging Face model directory that is no artifact; nothing of it is known to be whole."""
    if "://" in uri:
        raise DataError(
            f"{uri}: no finished artifact there (no {MANIFEST}), and on S3 only artifacts are taken, whose "
            "bytes can be compared with a manifest; download the directory and give its path"
        )
    path = Path(uri)
    if not path.is_dir():
        what = "is a file, not a directory" if path.exists() else "no such directory"
        raise DataError(f"{uri}: {what}; {WANTED}")
    if path.suffix == ".partial":
        raise DataError(
            f"{uri}: a stage has not finished it; run the same command again, and give what it makes"
        )
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise DataError(
            f"{uri}: is an adapter without its model; merge it first (peft: merge_and_unload), or give the adapter "
            "artifact of a run, which holds the merged model too"
        )
    if not (path / "config.json").is_file():
        raise DataError(f"{join(uri, 'config.json')}: no such file; {WANTED}")
    model_config(path)
    weight_files(path)
    return ModelSource(uri=uri, kind="directory", directory=path, manifest=None, candidate=None)
