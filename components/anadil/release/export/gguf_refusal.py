"""Models that cannot be written as GGUF; checked by export, and before training."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from anadil.artifacts.base_model import tokenizer_config
from anadil.core.errors import DataError, PreflightError
from anadil.model.architecture import read_config
from anadil.release.export.gguf_cuts import gguf_fault, gguf_name, gguf_note
from anadil.release.export.gguf_shape import shape_fault

INSTEAD = "export with --format hf, and serve it with vLLM, or convert that with llama.cpp's own converter"


def gguf_refusal(directory: Path) -> str:
    """Reason why a model cannot be written as GGUF, by its config.json and tokenizer; empty if it can."""
    if fault := shape_fault(read_config(directory)):
        return fault
    tokenizer = read_tokenizer(directory)
    fault = gguf_fault(tokenizer) or _frame_fault(directory, tokenizer)
    return f"llama.cpp cannot read its tokenizer: {fault}" if fault else ""


def read_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model's directory."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; give a whole Hugging Face model directory")
    return Tokenizer.from_file(str(file))


def check_gguf(directory: Path) -> None:
    """Refuse a model that cannot be written as GGUF."""
    if fault := gguf_refusal(directory):
        raise PreflightError(f"{directory}: {fault}; {INSTEAD}")


def gguf_words(directory: Path) -> str:
    """llama.cpp's name for the tokenizer of a model without `gguf_refusal`, and its differences."""
    tokenizer = read_tokenizer(directory)
    note = gguf_note(tokenizer)
    return gguf_name(json.loads(tokenizer.to_str())) + (f" ({note})" if note else "")


def special_ids(directory: Path, tokenizer: Tokenizer) -> dict[str, int]:
    """Role in GGUF -> id of each special token."""
    settings = tokenizer_config(directory)
    ids: dict[str, int] = {}
    for role in ("bos", "eos", "pad", "unk"):
        written = settings.get(f"{role}_token")
        text = written.get("content") if isinstance(written, dict) else written
        index = tokenizer.token_to_id(text) if text else None
        if index is not None:
            ids[role] = index
    # Without a setting, BOS and EOS are the tokens that the tokenizer puts round a text.
    for role, put in zip(("bos", "eos"), frame(tokenizer), strict=True):
        if len(put) == 1:
            ids.setdefault(role, put[0])
    return ids


def frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that a tokenizer puts before a text and behind it."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:at], whole[at + len(plain) :]


def _frame_fault(directory: Path, tokenizer: Tokenizer) -> str:
    special = special_ids(directory, tokenizer)
    before, after = frame(tokenizer)
    if before in ([], [special.get("bos")]) and after in ([], [special.get("eos")]):
        return ""
    return f"it puts {before} before a text and {after} behind it, and llama.cpp no other tokens than BOS and EOS"
