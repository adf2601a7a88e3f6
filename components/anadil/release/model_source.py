"""Find a finished model by any name of it, as a directory of this machine that loads as it is."""

from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import model_config
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import MANIFEST, absolute, join
from anadil.artifacts.weight_files import weight_files
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError
from anadil.core.format import with_article
from anadil.release.registry.client import SCHEME, resolve

EXPECTED = "give a model, merged or adapter artifact, a Hugging Face model directory, or models:/NAME@ALIAS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model on this machine; every byte of an artifact was compared with its manifest."""

    uri: str
    """Absolute place of the artifact or directory, or of a registered model's version."""
    kind: str
    """Word of the artifact; `directory` is any other Hugging Face model directory."""
    directory: Path | None
    """Local Hugging Face directory that loads as it is: `merged/` of an adapter; None for a checkpoint."""
    manifest: Manifest | None

    @property
    def candidate(self) -> str | None:
        """Its name in the scores; None if it is never scored."""
        return BY_KIND[self.kind].name if self.kind in BY_KIND else None

    @property
    def answers(self) -> bool:
        """True if a run made it to answer."""
        return self.manifest is not None and answers(self.kind, self.manifest.figures)


def find_model(uri: str, *, tracking: str | None = None) -> ModelSource:
    """Find a model and bring it to this machine.

    Args:
        uri: A model, merged or adapter artifact, local or on S3; the `merged` directory of an adapter; a checkpoint of
            pretrain; any Hugging Face model directory; or `models:/NAME@ALIAS` and `models:/NAME/VERSION`.
        tracking: The registry's address; left out, MLFLOW_TRACKING_URI.
    """
    place, manifest = locate(uri, tracking)
    if manifest is None:
        return _from_directory(place)
    if manifest.kind == "checkpoint":
        return ModelSource(uri=place, kind="checkpoint", directory=None, manifest=manifest)
    if manifest.kind not in BY_KIND:
        raise DataError(f"{place}: holds {with_article(manifest.kind)}, not a model; {EXPECTED}")
    path, _ = fetch(place, manifest.kind)
    folder = path / BY_KIND[manifest.kind].folder
    return ModelSource(uri=place, kind=manifest.kind, directory=folder, manifest=manifest)


def locate(uri: str, tracking: str | None = None) -> tuple[str, Manifest | None]:
    """Find the artifact that a name stands for, and its manifest; fetch nothing.

    Returns:
        The absolute place and its manifest; None for a directory that is not an artifact.
    """
    if not uri.startswith(SCHEME):
        return _locate(uri)
    version = resolve(uri, tracking)
    place, manifest = _locate(version.uri)
    at = f"{uri}: version {version.version} lies at {version.uri}"
    # A version that somebody else registered has no digest, and may be a plain directory.
    if manifest is None and (version.digest or not Path(place).is_dir()):
        raise IntegrityError(f"{at}, where it no longer exists; promote a model that exists, or roll back")
    if manifest is not None and version.digest and manifest.digest != version.digest:
        raise IntegrityError(
            f"{at}, which holds other bytes than those that were promoted: digest {manifest.digest[:12]}, "
            f"{version.digest[:12]} expected; promote the model again, or roll back"
        )
    return place, manifest


def _locate(uri: str) -> tuple[str, Manifest | None]:
    # Before any request, and never with a secret.
    scheme, separator, rest = uri.partition("://")
    if not uri.strip():
        raise RecipeError(f"an empty URI; {EXPECTED}")
    if separator and ("@" in rest.partition("/")[0] or "?" in rest):
        raise RecipeError(
            f"{scheme}://...: a URI with a password or a token, which logs and files would repeat; "
            "take it out and use environment variables (AWS_PROFILE, HF_TOKEN)"
        )
    if separator and scheme == "hf":
        raise PreflightError(
            f"{uri}: download it first (hf download {rest}) and give its directory; {EXPECTED}"
        )
    place = absolute(uri)
    try:
        manifest = artifact.read_manifest(place)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{place[:200]}: cannot be read ({error.strerror}); {EXPECTED}") from None
    parent, _, name = place.rpartition("/")
    adapter = (
        artifact.read_manifest(parent) if manifest is None and name == BY_KIND["adapter"].folder else None
    )
    return (parent, adapter) if adapter and adapter.kind == "adapter" else (place, manifest)


def _from_directory(uri: str) -> ModelSource:
    """Take a Hugging Face model directory; no manifest proves that it is whole."""
    if "://" in uri:
        raise DataError(
            f"{uri}: no finished artifact there (no {MANIFEST}), and on S3 only artifacts are taken, whose "
            "bytes can be compared with a manifest; download the directory and give its path"
        )
    path = Path(uri)
    if not path.is_dir():
        what = "is a file, not a directory" if path.exists() else "no such directory"
        raise DataError(f"{uri}: {what}; {EXPECTED}")
    # Stages write to `NAME.partial` and rename at the end.
    if path.suffix == ".partial":
        raise DataError(
            f"{uri}: a stage has not finished it; run the same command again, and give what it makes"
        )
    if not (path / "config.json").is_file():
        if not (path / "adapter_config.json").is_file():
            raise DataError(f"{join(uri, 'config.json')}: no such file; {EXPECTED}")
        raise DataError(
            f"{uri}: is an adapter without its model; merge it first (peft: merge_and_unload), or give the adapter "
            "artifact of a run, which holds the merged model too"
        )
    model_config(path)
    weight_files(path)
    return ModelSource(uri=uri, kind="directory", directory=path, manifest=None)
