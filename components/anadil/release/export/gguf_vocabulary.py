"""The vocabulary of a tokenizer without `gguf_refusal`, in the fields of GGUF."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import Tokenizer

from anadil.artifacts.base_kind import stored_template
from anadil.artifacts.document_tokens import END_OF_TURN, OTHER_ENDS_OF_TURNS
from anadil.core.errors import DataError
from anadil.release.export.gguf_cuts import gguf_name, gguf_note
from anadil.release.export.gguf_pieces import NUM_BYTES, adds_blank, byte_token, is_of_pieces, scores
from anadil.release.export.gguf_refusal import frame, read_tokenizer, special_ids

log = logging.getLogger(__name__)

PADDING = "[PAD{}]"
"""Text of a row of the embedding that no token has, by its id. Source: llama.cpp, convert_hf_to_gguf.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer in the fields of GGUF."""

    tokens: Sequence[str]
    """Byte symbols of ordinary tokens and the text of added ones, by id."""
    types: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    """Scores by id; only for SentencePiece's kind."""
    adds_blank: bool
    """A text gets a space in front; only for SentencePiece's kind."""
    pre_tokenizer: str
    adds_bos: bool
    adds_eos: bool
    special: Mapping[str, int]
    """`bos`, `eos`, `eot`, `pad` or `unk` -> id; `eot` ends a turn of a chat."""
    template: str | None


def read_vocabulary(directory: Path, rows: int) -> Vocabulary:
    """The vocabulary of a model's directory without `gguf_refusal`."""
    file = directory / "tokenizer.json"
    tokenizer = read_tokenizer(directory)
    if note := gguf_note(tokenizer):
        log.warning("%s: %s", file, note)
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    tokens, types = _tokens(file, tokenizer, content, rows)
    pieces = is_of_pieces(content)
    score = scores(content["model"]) if pieces else {}
    before, after = frame(tokenizer)
    special = special_ids(directory, tokenizer)
    turns = (tokenizer.token_to_id(text) for text in (END_OF_TURN, *OTHER_ENDS_OF_TURNS))
    special |= next(({"eot": index} for index in turns if index is not None), {})
    return Vocabulary(
        tokens=tokens,
        types=types,
        merges=[] if pieces else list(map(" ".join, content["model"]["merges"])),
        scores=[score.get(token, 0.0) for token in tokens] if pieces else [],
        adds_blank=pieces and adds_blank(content),
        pre_tokenizer=gguf_name(content),
        adds_bos=bool(before),
        adds_eos=bool(after),
        special=special,
        template=stored_template(directory),
    )


def _tokens(file: Path, tokenizer: Tokenizer, content: Any, rows: int) -> tuple[list[str], list[int]]:
    """Text and type of each row of the embedding."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = {each["content"]: each for each in content.get("added_tokens", ())}
    single = {byte_token(byte) for byte in range(NUM_BYTES)} if is_of_pieces(content) else set()
    names, types = [PADDING.format(index) for index in range(rows)], [int(TokenType.UNUSED)] * rows
    tokens = [f"[{name}]" if name in vocab else name for name in names]  # llama.cpp ends where two are equal
    for text, index in vocab.items():
        if index >= rows:
            raise DataError(
                f"{file}: {text!r} has id {index}, and the model's embedding has {rows} rows; give the tokenizer that "
                "the model was trained with"
            )
        tokens[index] = text
        kind = TokenType.BYTE if text in single else TokenType.NORMAL
        if text in added and text not in single:
            kind = TokenType.CONTROL if added[text]["special"] else TokenType.USER_DEFINED
        types[index] = int(kind)
    return tokens, types
