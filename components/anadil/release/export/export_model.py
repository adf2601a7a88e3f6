"""A finished model in the files of those who serve it: a Hugging Face directory, or GGUF; whole or not at all."""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from anadil.artifacts import local_directory
from anadil.artifacts.base_model import COPIED_TOKENIZER_FILES
from anadil.artifacts.mlmodel import write_mlmodel
from anadil.artifacts.weight_files import INDEX, stored_tensors, weight_files
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.progress import progress
from anadil.release.export.disk_space import check_space
from anadil.release.model_source import ModelSource
from anadil.report.model_card import licence_files_of, model_card

log = logging.getLogger(__name__)

Format = Literal["hf", "gguf"]
FORMATS: tuple[Format, ...] = ("hf", "gguf")
DTYPES: Mapping[str, str] = MappingProxyType({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})
"""Our word for a precision -> torch's, which config.json has."""
QUANTIZATIONS = ("q8_0",)
COPIED = (
    "config.json",
    "generation_config.json",
    INDEX,
    *COPIED_TOKENIZER_FILES,
)
"""Files of a model's directory that are exported, beside weights and `TERMS`."""
TERMS = ("LICENSE*", "NOTICE*", "USE_POLICY*")
"""Files that the base's licence requires beside every copy."""
CARD = "README.md"
MODELFILE = "Modelfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export."""

    folder: Path
    names: tuple[str, ...]
    """Files in it that are of the model."""
    path: Path
    """The directory or GGUF file that was requested."""
    num_bytes: int


def export(
    source: ModelSource,
    out: Path,
    kind: Format,
    *,
    precision: str | None = None,
    scores: str | None = None,
    checkpoint: Callable[[Path], object] | None = None,
) -> Exported:
    """Write a model for those who serve it.

    Args:
        source: The model.
        out: Directory to write, or a file `NAME.gguf`, beside which its Modelfile, card and licence lie.
        kind: Format.
        precision: Of the weights: one of `DTYPES`, for GGUF also of `QUANTIZATIONS`; as stored if it is not given.
        scores: Artifact whose figures the model card shows.
        checkpoint: Writes the Hugging Face directory of a checkpoint, in the precision asked for.

    Raises:
        DataError: Something lies there already, or the model is not whole.
        PreflightError: The format does not hold such a model, or the disk is full.
        RecipeError: The place lies within the model's own directory.
    """
    _check_place(source, out)
    as_file = kind == "gguf" and out.suffix == ".gguf"
    with draft_of(out) as draft:
        local_directory.refuse_occupied(str(out))  # another export may have ended there meanwhile
        directory, written = source.directory, False
        if directory is None:
            assert checkpoint is not None, "only its caller knows the tokenizer of a checkpoint"
            directory = draft if kind == "hf" else draft / "checkpoint"
            checkpoint(directory)
            written = True
        if kind == "hf":
            _write_hf(source, directory, draft, None if written else precision, copies=not written)
        else:
            name = out.name if as_file else f"{_name(source, out)}.gguf"
            _write_gguf(directory, draft, name, _name(source, out), precision)
            for file in _files(directory, TERMS):
                shutil.copyfile(file, draft / file.name)
            shutil.rmtree(draft / "checkpoint", ignore_errors=True)
        _write_card(source, scores, draft)
        # Before the rename: after a power cut the name must not stand for torn files.
        local_directory.flush_directory(draft)
        names = tuple(
            sorted(each.relative_to(draft).as_posix() for each in draft.rglob("*") if each.is_file())
        )
        num_bytes = sum((draft / name).stat().st_size for name in names)
        if as_file:
            names = _place_files(draft, out, names)
        else:
            draft.rename(out)
    folder = out.parent if as_file else out
    return Exported(folder=folder, names=names, path=out, num_bytes=num_bytes)


def _check_place(source: ModelSource, out: Path) -> None:
    local_directory.refuse_occupied(str(out))
    own = Path(source.uri)
    if "://" not in source.uri and out.absolute().is_relative_to(own):
        raise RecipeError(
            f"--out {out}: lies within {own}, whose files are not to change; give another place"
        )


@contextlib.contextmanager
def draft_of(out: Path) -> Iterator[Path]:
    """An empty directory beside a place, removed at the end unless it was renamed; one export at a time has it.

    Raises:
        PreflightError: Another export writes there.
    """
    draft = out.with_name(f"{out.name}.partial")
    draft.mkdir(parents=True, exist_ok=True)
    descriptor = _lock(draft)
    if descriptor is None:
        raise PreflightError(f"{out}: another export is writing there; wait for it")
    try:
        for left in draft.iterdir():  # by a killed export
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(draft: Path) -> int | None:
    """A descriptor that holds the lock of a draft; None where another export has it, or has just ended."""
    try:
        descriptor = os.open(draft, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that has just ended gave the directory another name.
        if os.path.samestat(os.fstat(descriptor), draft.stat()):
            return descriptor
    os.close(descriptor)
    return None


def _name(source: ModelSource, out: Path) -> str:
    """Display name of the model."""
    return out.stem if out.suffix == ".gguf" else out.name or Path(source.uri).name


def _write_hf(
    source: ModelSource, directory: Path, draft: Path, precision: str | None, *, copies: bool
) -> None:
    """The directory of a model that lies elsewhere, in its precision or another, and what servers want beside it."""
    if copies:
        files = [*weight_files(directory), *_files(directory, (*COPIED, *TERMS))]
        if source.kind == "directory" and (directory / CARD).is_file():
            files.append(directory / CARD)
        check_space(draft, sum(file.stat().st_size for file in files))
        with progress("exporting", len(files)) as bar:
            for file in files:
                _copy(file, draft / file.name, precision)
                bar.advance()
        if precision:
            _name_precision(draft, precision)
    write_mlmodel(draft, chats=source.kind in ("adapter", "directory"))


def _files(directory: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in directory.glob(pattern) if file.is_file()})


def _copy(file: Path, target: Path, precision: str | None) -> None:
    if precision is None or file.suffix != ".safetensors":
        shutil.copyfile(file, target)
        return
    import torch
    from safetensors.torch import load_file, save_file

    dtype = getattr(torch, DTYPES[precision])
    # A file at a time, of 5 GB at most as this program writes them.
    tensors = {
        name: each.to(dtype) if each.is_floating_point() else each for name, each in load_file(file).items()
    }
    worst = next((name for name, each in tensors.items() if not bool(torch.isfinite(each).all())), None)
    if worst:
        raise DataError(
            f"{file}: {worst} holds numbers that {precision} cannot; export with --precision bf16"
        )
    save_file(tensors, target, metadata={"format": "pt"})
    target.chmod(0o644)  # safetensors writes 0600, which a server under another user cannot read


def _name_precision(draft: Path, precision: str) -> None:
    """Say the precision in both spellings, and the size of all files."""
    file = draft / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= dict.fromkeys(("dtype", "torch_dtype"), DTYPES[precision])
    file.write_text(json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    index = draft / INDEX
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["metadata"]["total_size"] = sum(
            each.end - each.begin for each in stored_tensors(draft).values()
        )
        index.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_gguf(directory: Path, draft: Path, file: str, name: str, precision: str | None) -> None:
    from anadil.release.export.gguf_file import write_gguf
    from anadil.release.export.ollama import modelfile

    held = write_gguf(directory, draft / file, name=name, precision=precision)
    text = modelfile(file, directory, adds_bos=bool(held["adds_bos"]))
    (draft / MODELFILE).write_text(text, encoding="utf-8")


def _write_card(source: ModelSource, scores: str | None, draft: Path) -> None:
    """README.md of an artifact, whose lineage is known, and the files that the licence of its base asks for."""
    if source.kind in ("model", "adapter") and source.manifest:
        (draft / CARD).write_text(model_card(source.uri, scores), encoding="utf-8")
        for name, content in licence_files_of(source.manifest).items():
            (draft / name).write_bytes(content)


def _place_files(draft: Path, out: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Give the GGUF file its name at last, and what belongs to it one beside it that is free, such as `NAME.README.md`."""
    targets = {name: out if name == out.name else _free_name(out, name) for name in names}
    for name, target in sorted(targets.items(), key=lambda each: each[1] == out):
        (draft / name).replace(target)
    modelfile = targets[MODELFILE]
    log.info("for Ollama: ollama create %s -f %s", shlex.quote(out.stem), shlex.quote(str(modelfile)))
    return tuple(sorted(target.name for target in targets.values()))


def _free_name(out: Path, name: str) -> Path:
    """A name beside a file for what belongs to it; the Modelfile has its own where that is free."""
    numbers = (f".{number}" for number in itertools.count(2))
    ours = (f"{out.stem}{number}.{name}" for number in itertools.chain([""], numbers))
    names = itertools.chain([MODELFILE] if name == MODELFILE else [], ours)
    return next(place for each in names if not (place := out.with_name(each)).exists())
