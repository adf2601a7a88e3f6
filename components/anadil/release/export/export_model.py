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
from typing import Any, Literal

from filelock import Timeout
from jinja2 import TemplateError

from anadil.artifacts import local_directory
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import COPIED_TOKENIZER_FILES
from anadil.artifacts.local_directory import check_space
from anadil.artifacts.mlmodel import write_mlmodel
from anadil.artifacts.weight_files import INDEX, stored_tensors, weight_files
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.files import file_lock
from anadil.core.progress import progress
from anadil.model.chat_ids import rendered
from anadil.model.load import end_ids, load_tokenizer
from anadil.release.model_source import ModelSource
from anadil.report.model_card import licence_files_of, model_card

log = logging.getLogger(__name__)

ROLES = ("system", "user", "assistant")
SAMPLES: Sequence[Sequence[tuple[str, str]]] = (
    (("user", "Salam!"),),
    (("system", "Qısa."), ("user", "1 + 1?"), ("assistant", "2."), ("user", "3?")),
    (("user", "Bir"), ("assistant", "iki"), ("user", "üç"), ("assistant", "dörd"), ("user", "beş")),
)
"""Chats for the check of the derived template."""
Chat = Sequence[tuple[str, str]]
Format = Literal["hf", "gguf"]
FORMATS: tuple[Format, ...] = ("hf", "gguf")
DTYPES: Mapping[str, str] = MappingProxyType({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})
"""Our word for a precision -> torch's, which config.json has."""
QUANTIZATIONS = ("q8_0",)
COPIED = ("config.json", "generation_config.json", INDEX, *COPIED_TOKENIZER_FILES)
"""Files of a model's directory that are exported, beside weights and `TERMS`."""
TERMS = ("LICENSE*", "NOTICE*", "USE_POLICY*")
"""Files that the base's licence requires beside every copy."""
CARD = "README.md"
MODELFILE = "Modelfile"


class UnusualTemplateError(Exception):
    """A chat template that is not a sequence of turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Text of a chat template around each turn."""

    begin: str
    """BOS, if the template writes it."""
    before: Mapping[str, str]
    after: Mapping[str, str]
    prompt: str

    def render(self, chat: Chat) -> str:
        """A chat and the beginning of its answer."""
        turns = (f"{self.before[role]}{content}{self.after[role]}" for role, content in chat)
        return f"{self.begin}{''.join(turns)}{self.prompt}"


def modelfile(model: str, directory: Path, *, adds_bos: bool) -> str:
    """The text of a Modelfile for a GGUF file beside it; with `adds_bos` the template writes no BOS."""
    tokenizer: Any = load_tokenizer(directory)
    lines = [f"FROM ./{model}"]
    try:
        turns = read_turns(tokenizer)
        lines.append(f'TEMPLATE """{go_template(turns, adds_bos=adds_bos)}"""')
    except (UnusualTemplateError, TemplateError) as error:
        log.warning("%s: no TEMPLATE in the Modelfile: %s; write one by hand", directory, error)
    stops = [tokenizer.convert_ids_to_tokens(index) for index in end_ids(tokenizer)]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    return "\n".join(lines) + "\n"


def read_turns(tokenizer: Any) -> Turns:
    """Read the text around each turn from the tokenizer's chat template."""
    if not tokenizer.chat_template:
        raise UnusualTemplateError("the model has no chat template")

    def render(chat: Chat, *, answer: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in chat]
        text: str = rendered(tokenizer, messages, tokenize=False, add_generation_prompt=answer)
        return text

    opened, closed = _parted(render([("user", "USER")]), "USER")
    bos = tokenizer.bos_token or ""
    begin = bos if bos and opened.startswith(bos) else ""
    both = render([("user", "USER"), ("assistant", "ANSWER")])
    between, end = _parted(_parted(both, "USER")[1], "ANSWER")
    first, rest = _parted(render([("system", "SYSTEM"), ("user", "USER")]), "SYSTEM")
    opened = opened.removeprefix(begin)
    turns = Turns(
        begin=begin,
        before={
            "system": first.removeprefix(begin),
            "user": opened,
            "assistant": between.removeprefix(closed),
        },
        after={"system": _parted(rest, "USER")[0].removesuffix(opened), "user": closed, "assistant": end},
        prompt=render([("user", "USER")], answer=True).removeprefix(f"{begin}{opened}USER{closed}"),
    )
    for chat in SAMPLES:
        if turns.render(chat) != render(chat, answer=True):
            raise UnusualTemplateError("its chats are not turns one after the other, each with its own words")
    return turns


def _parted(text: str, word: str) -> tuple[str, str]:
    before, separator, after = text.partition(word)
    if not separator:
        raise UnusualTemplateError(f"it leaves out the content of a turn ({word.lower()})")
    return before, after


def go_template(turns: Turns, *, adds_bos: bool) -> str:
    """The same chats in Go's text/template, which Ollama calls with `.Messages`."""
    cases = [
        f'if eq .Role "{role}" }}}}{_literal(turns.before[role])}{{{{ .Content }}}}{_literal(turns.after[role])}'
        for role in ROLES
    ]
    begin = "" if adds_bos else _literal(turns.begin)
    return f"{begin}{{{{ range .Messages }}}}{{{{ {'{{ else '.join(cases)}{{{{ end }}}}{{{{ end }}}}{_literal(turns.prompt)}"


def _literal(text: str) -> str:
    """Text as Go's template and the Modelfile's quotes give it back."""
    return text.replace("{{", '{{ "{{" }}').replace('"""', '{{ "\\"\\"\\"" }}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export."""

    folder: Path
    names: tuple[str, ...]
    """Files in it that are of the model."""
    path: Path
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
    """Write a model in a format of servers.

    Args:
        source: The model.
        out: Directory to write, or a file `NAME.gguf`, beside which its Modelfile, card and licence lie.
        kind: Format.
        precision: Of the weights: one of `DTYPES`, for GGUF also of `QUANTIZATIONS`; left out, as stored.
        scores: Artifact whose figures the model card shows.
        checkpoint: Writes the Hugging Face directory of a checkpoint, in the requested precision.
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
        _name_precision(draft, precision)


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
    """Update the precision in config.json and the size of all files in the index."""
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
    from anadil.release.export.export_model import modelfile
    from anadil.release.export.gguf_file import write_gguf

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
