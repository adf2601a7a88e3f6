"""`tokenizer.model`, SentencePiece's file, which llama.cpp's converter reads: held against `tokenizer.json`, and rewritten.

Source: google/sentencepiece, src/sentencepiece_model.proto.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anadil.core.errors import DataError
from anadil.text.pieces import has_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SENTENCE_PIECE = "tokenizer.model"
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""Types of pieces."""
PIECES = 1
"""Field of the model."""
TEXT, SCORE, TYPE = 1, 2, 3
"""Fields of a piece."""
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
"""Kinds of fields in a protocol buffer."""
SIZES = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
UNNAMED = "[PAD{}]"
"""Piece of an id that no token has, as in GGUF."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry, whose place is its id."""

    text: str
    score: float
    kind: int


def check_pieces(folder: Path, tokenizer: "Tokenizer") -> None:
    """Refuse a directory whose `tokenizer.model` is not the vocabulary of its `tokenizer.json`.

    Special tokens may differ: a model that was taught chats has often given unused ones another name.
    """
    path = folder / SENTENCE_PIECE
    if not path.is_file() or not has_pieces(tokenizer):
        return
    pieces, _ = read_pieces(path)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for index, piece in enumerate(pieces):
        token = tokenizer.id_to_token(index)
        if piece.kind in (NORMAL, BYTE) and token != piece.text and token not in added:
            raise DataError(
                f"{path}: id {index} is {piece.text!r}, and {token!r} in tokenizer.json. Which of both the model was trained "
                f"with is not known: fetch it again, or remove {SENTENCE_PIECE} if tokenizer.json is right"
            )


def read_pieces(path: Path) -> tuple[list[Piece], bytes]:
    """The pieces of a file, and its other fields as they are."""
    data = path.read_bytes()
    pieces: list[Piece] = []
    rest = b""
    try:
        for field, value, whole in _fields(data):
            if field == PIECES:
                entry = {number: each for number, each, _ in _fields(value)}
                (score,) = struct.unpack("<f", entry.get(SCORE, bytes(4)))
                kind = _varint(entry[TYPE], 0)[0] if TYPE in entry else NORMAL
                pieces.append(Piece(entry[TEXT].decode(), score, kind))
            else:
                rest += whole
    except (KeyError, IndexError, ValueError, struct.error) as error:
        raise DataError(
            f"{path}: is no file of SentencePiece ({error!r}). Fetch it again or remove it"
        ) from None
    return pieces, rest


def write_pieces(source: Path, tokenizer: "Tokenizer", target: Path) -> None:
    """Write a file for a tokenizer that was made of the source's: equal pieces stay, the others come last in merging."""
    pieces, rest = read_pieces(source)
    content = json.loads(tokenizer.to_str())
    special = {each["content"]: each["special"] for each in content["added_tokens"]}
    order = dict.fromkeys(left + right for left, right in content["model"]["merges"])
    rank = {token: number for number, token in enumerate(order)}
    lowest = min((piece.score for piece in pieces), default=0.0)
    by_id = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    made = []
    for index in range(max(by_id) + 1):
        token = by_id.get(index)
        old = pieces[index] if index < len(pieces) else None
        if old is not None and (token is None or token == old.text or token in special):
            made.append(old if token is None or token == old.text else Piece(token, old.score, old.kind))
        elif token is None:
            made.append(Piece(UNNAMED.format(index), 0.0, UNUSED))
        elif token in special:
            made.append(Piece(token, 0.0, CONTROL if special[token] else USER_DEFINED))
        else:
            made.append(Piece(token, lowest - 1 - rank.get(token, 0), NORMAL))
    target.write_bytes(b"".join(map(_written, made)) + rest)


def _fields(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, value, and the field as it is, of each one."""
    place = 0
    while place < len(data):
        start = place
        key, place = _varint(data, place)
        kind = key & 7
        if kind == VARINT:
            begin, place = place, _varint(data, place)[1]
        elif kind == LENGTH:
            size, begin = _varint(data, place)
            place = begin + size
        elif kind in SIZES:
            begin, place = place, place + SIZES[kind]
        else:
            raise ValueError(f"a field of kind {kind}")
        if place > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[begin:place], data[start:place]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, place


def _number(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _written(piece: Piece) -> bytes:
    text = piece.text.encode()
    score, kind = struct.pack("<f", piece.score), _number(piece.kind)
    fields = (
        _number(TEXT << 3 | LENGTH) + _number(len(text)) + text + _number(SCORE << 3 | FOUR_BYTES) + score
    )
    if piece.kind != NORMAL:
        fields += _number(TYPE << 3 | VARINT) + kind
    return _number(PIECES << 3 | LENGTH) + _number(len(fields)) + fields
