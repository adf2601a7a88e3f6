"""A tokenizer in the words of GGUF: llama.cpp cuts texts into the same tokens, or the tokenizer is refused."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import Tokenizer

from anadil.artifacts.base_model import tokenizer_config
from anadil.core.errors import DataError, PreflightError
from anadil.model.load import END_OF_TURN, OTHER_ENDS_OF_TURNS
from anadil.release.gguf_cuts import gguf_fault, gguf_name, gguf_note

log = logging.getLogger(__name__)

PADDING = "[PAD{}]"
"""Text of a row of the embedding that no token has, by its id. Source: llama.cpp, convert_hf_to_gguf.py."""
INSTEAD = "export with --format hf, which every tokenizer can, or serve the model with vLLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    tokens: Sequence[str]
    """By id: byte symbols of ordinary tokens, the text of added ones."""
    types: Sequence[int]
    merges: Sequence[str]
    pre_tokenizer: str
    """llama.cpp's name."""
    adds_bos: bool
    """Whether the tokenizer itself puts BOS before a text."""
    adds_eos: bool
    special: Mapping[str, int]
    """`bos`, `eos`, `eot`, `pad`, as far as there are such -> id; `eot` ends a turn of a chat."""
    template: str | None
    """Jinja of the chats."""


def read_vocabulary(directory: Path, rows: int) -> Vocabulary:
    """The vocabulary of a model's directory.

    Args:
        directory: With `tokenizer.json` and what belongs to it.
        rows: Of the model's embedding; ids without a token are filled up.

    Raises:
        DataError: The tokenizer does not fit to the model.
        PreflightError: llama.cpp has no tokenizer that cuts texts so.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; give a whole Hugging Face model directory")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(file))
    if fault := gguf_fault(tokenizer):
        raise PreflightError(f"{file}: llama.cpp cannot read this tokenizer: {fault}; {INSTEAD}")
    if note := gguf_note(tokenizer):
        log.warning("%s: %s", file, note)
    added = {each["content"]: each for each in content.get("added_tokens", ())}
    tokens = [PADDING.format(index) for index in range(rows)]
    types = [int(TokenType.UNUSED)] * rows
    for text, index in tokenizer.get_vocab(with_added_tokens=True).items():
        if index >= rows:
            raise DataError(
                f"{file}: {text!r} has id {index}, and the model's embedding has {rows} rows; give the tokenizer that "
                "the model was trained with"
            )
        tokens[index] = text
        types[index] = int(_type(added.get(text)))
    adds_bos, adds_eos, special = _special(directory, tokenizer)
    return Vocabulary(
        tokens=tokens,
        types=types,
        merges=[each if isinstance(each, str) else " ".join(each) for each in content["model"]["merges"]],
        pre_tokenizer=gguf_name(content),
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        special=special,
        template=chat_template(directory),
    )


def chat_template(directory: Path) -> str | None:
    """The Jinja template beside a model, or None."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    written = tokenizer_config(directory).get("chat_template")
    if isinstance(written, list):  # several by name, as transformers 4 wrote them
        written = {each["name"]: each["template"] for each in written}.get("default")
    return written


def _type(added: Mapping[str, Any] | None) -> TokenType:
    if added is None:
        return TokenType.NORMAL
    return TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED


def _special(directory: Path, tokenizer: Tokenizer) -> tuple[bool, bool, dict[str, int]]:
    """Whether BOS and EOS are put round a text, and the ids of special tokens by their roles."""
    settings = tokenizer_config(directory)
    special: dict[str, int] = {}
    for role in ("bos", "eos", "pad"):
        written = settings.get(f"{role}_token")
        text = written.get("content") if isinstance(written, dict) else written
        index = tokenizer.token_to_id(text) if text else None
        if index is not None:
            special[role] = index
    turns = (tokenizer.token_to_id(text) for text in (END_OF_TURN, *OTHER_ENDS_OF_TURNS))
    special |= next(({"eot": index} for index in turns if index is not None), {})
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a").ids
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    before, after = whole[:at], whole[at + len(plain) :]
    if before not in ([], [special.get("bos")]) or after not in ([], [special.get("eos")]):
        raise PreflightError(
            f"{directory}/tokenizer.json: puts {before} before a text and {after} behind it, and llama.cpp no other "
            f"tokens than BOS and EOS; {INSTEAD}"
        )
    return bool(before), bool(after), special
