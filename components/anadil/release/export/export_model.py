"""Export a finished model as a Hugging Face directory or GGUF, atomically."""

import contextlib
import itertools
import json
import logging
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from filelock import Timeout

from anadil.artifacts import local_directory
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import COPIED_TOKENIZER_FILES, TERMS
from anadil.artifacts.local_directory import check_space
from anadil.artifacts.mlmodel import write_mlmodel
from anadil.artifacts.weight_files import INDEX, all_tensors, weight_files
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.files import file_lock
from anadil.core.json_text import read_json
from anadil.core.progress import progress
from anadil.release.model_source import ModelSource
from anadil.report.model_card import licence_files_of, model_card

log = logging.getLogger(__name__)

QUANTIZATIONS = ("q8_0",)
Format = Literal["hf", "gguf"]
FORMATS: tuple[Format, ...] = ("hf", "gguf")
DTYPES: Mapping[str, str] = MappingProxyType({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})
"""Our word for a precision -> torch's, which config.json has."""
COPIED = ("config.json", "generation_config.json", INDEX, *COPIED_TOKENIZER_FILES)
"""Files of a model's directory that are exported, beside weights and `TERMS`."""
CARD = "README.md"
MODELFILE = "Modelfile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export."""

    folder: Path
    names: tuple[str, ...]
    """Files in it that are of the model."""
    path: Path
    num_bytes: int


def export(
    source: ModelSource, out: Path, kind: Format, *, precision: str | None = None, scores: str | None = None,
    checkpoint: Callable[[Path], object] | None = None, image_base: Path | None = None,
) -> Exported:  # fmt: skip
    """Write a model in a format of servers.

    Args:
        out: Directory to write, or a file `NAME.gguf`, beside which its Modelfile, card and licence lie.
        precision: Of the weights: one of `DTYPES`, for GGUF also of `QUANTIZATIONS`; left out, as stored.
        scores: Artifact whose figures the model card shows.
        checkpoint: Writes the Hugging Face directory of a checkpoint, in the requested precision.
        image_base: Model of text and images that the weights are written back into. Left out, they stay a text model.
    """
    local_directory.refuse_occupied(str(out))
    if "://" not in source.uri and out.absolute().is_relative_to(source.uri):
        raise RecipeError(
            f"--out {out}: lies within {source.uri}, whose files are not to change; give another place"
        )
    as_file = kind == "gguf" and out.suffix == ".gguf"
    with draft_of(out) as draft:
        local_directory.refuse_occupied(str(out))  # another export may have ended there meanwhile
        directory = source.directory
        if directory is None:
            assert checkpoint is not None, "only its caller knows the tokenizer of a checkpoint"
            directory = draft if kind == "hf" else draft / "checkpoint"
            checkpoint(directory)
        if kind == "hf":
            if image_base:
                from anadil.release.export.image_model import write_image_model

                write_image_model(image_base, directory, draft, DTYPES[precision] if precision else None)
            else:
                if directory != draft:
                    _copy_model(source, directory, draft, precision)
                write_mlmodel(draft, chats=source.answers or source.kind == "directory")
        else:
            name = out.stem if out.suffix == ".gguf" else out.name or Path(source.uri).name
            _write_gguf(directory, draft, out.name if as_file else f"{name}.gguf", name, precision)
        if source.candidate and source.manifest:
            _write_card(source.uri, source.manifest, scores, draft)
        # Before the rename: after a power cut the name must not stand for torn files.
        local_directory.flush_directory(draft)
        files = [each for each in draft.rglob("*") if each.is_file()]
        names = tuple(sorted(each.relative_to(draft).as_posix() for each in files))
        num_bytes = sum(each.stat().st_size for each in files)
        if as_file:
            names = _place_files(draft, out, names)
        else:
            draft.rename(out)
    return Exported(folder=out.parent if as_file else out, names=names, path=out, num_bytes=num_bytes)


@contextlib.contextmanager
def draft_of(out: Path) -> Iterator[Path]:
    """An empty directory beside a place for one export at a time, removed at the end unless it was renamed."""
    draft, place = out.with_name(f"{out.name}.partial"), out.with_name(f".{out.name}.lock")
    draft.mkdir(
        parents=True, exist_ok=True
    )  # first, since of a place that takes no files filelock says only "taken"
    lock = file_lock(place, 0)
    try:
        lock.acquire()
    except Timeout:
        raise PreflightError(f"{out}: another export is writing there; wait for it") from None
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of a killed export
        draft.mkdir()
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        place.unlink(missing_ok=True)
        lock.release()


def _copy_model(source: ModelSource, directory: Path, draft: Path, precision: str | None) -> None:
    files = [*weight_files(directory), *_files(directory, (*COPIED, *TERMS))]
    if source.kind == "directory" and (directory / CARD).is_file():
        files.append(directory / CARD)
    check_space(draft, sum(file.stat().st_size for file in files))
    with progress("exporting", len(files)) as bar:
        for file in files:
            _copy(file, draft / file.name, precision)
            bar.advance()
    if precision:
        file = draft / "config.json"
        config = read_json(file) | dict.fromkeys(("dtype", "torch_dtype"), DTYPES[precision])
        text = json.dumps(config, ensure_ascii=False, indent=2, sort_keys=True)
        file.write_text(text + "\n", encoding="utf-8")
        if (index := draft / INDEX).is_file():
            content = read_json(index)
            sizes = (each.end - each.begin for each in all_tensors(draft).values())
            content["metadata"]["total_size"] = sum(sizes)
            index.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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


def _write_gguf(directory: Path, draft: Path, file: str, name: str, precision: str | None) -> None:
    from anadil.release.export.gguf_file import write_gguf
    from anadil.release.export.ollama import modelfile

    adds_bos = write_gguf(directory, draft / file, name=name, precision=precision)
    (draft / MODELFILE).write_text(modelfile(file, directory, adds_bos=adds_bos), encoding="utf-8")
    for terms in _files(directory, TERMS):
        shutil.copyfile(terms, draft / terms.name)
    if directory.parent == draft:  # that of a checkpoint
        shutil.rmtree(directory)


def _write_card(uri: str, manifest: Manifest, scores: str | None, draft: Path) -> None:
    (draft / CARD).write_text(model_card(uri, scores), encoding="utf-8")
    for name, content in licence_files_of(manifest).items():
        (draft / name).write_bytes(content)


def _place_files(draft: Path, out: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Move the GGUF file to its place last, and its companions to free names beside it, such as `NAME.README.md`."""
    targets = {name: out if name == out.name else _free_name(out, name) for name in names}
    for name, target in sorted(targets.items(), key=lambda each: each[1] == out):
        (draft / name).replace(target)
    modelfile = targets[MODELFILE]
    log.info("for Ollama: ollama create %s -f %s", shlex.quote(out.stem), shlex.quote(str(modelfile)))
    return tuple(sorted(target.name for target in targets.values()))


def _free_name(out: Path, name: str) -> Path:
    """A free name beside a file for a companion; the Modelfile keeps its own if that is free."""
    numbers = (f".{number}" for number in itertools.count(2))
    ours = (f"{out.stem}{number}.{name}" for number in itertools.chain([""], numbers))
    names = itertools.chain([MODELFILE] if name == MODELFILE else [], ours)
    return next(place for each in names if not (place := out.with_name(each)).exists())
