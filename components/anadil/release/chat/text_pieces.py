"""An answer as text while it is written."""

from collections.abc import Iterator
from typing import Any

from anadil.evaluate.decoding import text_of

NO_CHARACTER = "\ufffd"
"""Stands for bytes that are no text."""


def text_pieces(tokenizer: Any, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens in whole characters: a character of several tokens comes with its last one.

    The pieces together are `text_of` all tokens.
    """
    known: list[int] = []
    # Decoding starts at `begin`, a token before the new ones: some tokenizers drop a text's first blank.
    begin = read = shown = 0
    for token in tokens:
        known.append(token)
        text = text_of(tokenizer, known[begin:])
        # The bytes of an unfinished character are one such sign at the end; invalid bytes stay as they are.
        whole = len(text) - text.endswith(NO_CHARACTER)
        if whole > shown:
            yield text[shown:whole]
            shown = whole
        if whole == len(text):
            begin, read = read, len(known)
            shown = len(text_of(tokenizer, known[begin:]))
    text = text_of(tokenizer, known[begin:])
    if len(text) > shown:
        yield text[shown:]
