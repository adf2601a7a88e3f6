"""Tokenizer of an artifact as the encoder needs it, read without torch and transformers.

`model.load` reads the same by transformers. Training compares both: see `pretrain.data.tokens`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.artifacts.base_model import CHAT_TEMPLATE, read_settings, read_tokenizer, tokenizer_config
from anadil.artifacts.base_vocabulary import (
    END_OF_TEXT,
    SETTINGS,
    base_settings,
    begins_turns,
    ends_of,
    token_text,
)
from anadil.core.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Tokens round documents."""

    begin: int
    """Id before each document: BOS, or the end of text in its place."""
    end: int
    """Id after each document."""
    bos: int | None
    """Id before each later piece of a document, where the tokenizer itself sets BOS before every text."""


def document_tokenizer(folder: Path) -> "tuple[Tokenizer, Frame]":
    """The tokenizer of a directory, and the tokens that it puts round documents."""
    tokenizer = read_tokenizer(folder)
    settings = {key: value for name in SETTINGS for key, value in read_settings(folder / name).items()}
    bos, eos = (token_text(settings.get(f"{role}_token")) for role in ("bos", "eos"))
    if not bos and not eos:
        known = base_settings(folder, tokenizer)
        bos, eos = (token_text(known.get(f"{role}_token")) for role in ("bos", "eos"))
    if begins_turns(bos, _template(folder)):
        bos = ""
    ends = ends_of(tokenizer.get_vocab(), eos)
    if not ends:
        raise DataError(f"{folder}: tokenizer has neither {END_OF_TEXT} nor an eos_token; add one")
    begin = tokenizer.token_to_id(bos) if bos else None
    if begin is None:
        return tokenizer, Frame(begin=ends[0], end=ends[0], bos=None)
    sets_bos = settings.get("add_bos_token") or tokenizer.encode("a").ids[:1] == [begin]
    return tokenizer, Frame(begin=begin, end=ends[0], bos=begin if sets_bos else None)


def _template(folder: Path) -> str:
    path = folder / CHAT_TEMPLATE.name
    if path.is_file():
        return path.read_text(encoding="utf-8")
    return str(tokenizer_config(folder).get("chat_template"))
