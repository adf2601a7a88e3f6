"""Words that a page of a kind nobody wants is full of: the share of its letters that are in them.

Source: Swallow Corpus, arXiv:2404.17733, section 3.2: characters in the longest matches of the list, over the
Japanese characters, less than .05. Letters of scripts with spaces between words are matched by whole words, so that
no word is one by chance.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anadil.artifacts import storage
from anadil.artifacts.text_lists import list_lines
from anadil.clean.kernels.characters import JAPANESE, LETTER, SCRIPT, Characters, encode
from anadil.clean.kernels.compiled import compiled
from anadil.clean.kernels.ngram_kernel import combined, table_size
from anadil.core.errors import DataError

Array = npt.NDArray[Any]

HIRAGANA_TO_KATAKANA = 0x60
MAX_WORDS = 1_000_000
"""Most characters of all lists together: each character of one takes some 20 bytes while they are put together."""
MIN_CHARS = 2
"""Shorter entries match by chance."""


@compiled
def step(edges: Array, nodes: Array, node: int, code: Any) -> Any:
    """Return the node that a character leads to; -1 if none."""
    key = combined(np.uint64(node + 1), code)
    slot = np.int64(key & np.uint64(len(edges) - 1))
    while edges[slot] and edges[slot] != key:
        slot = (slot + 1) & (len(edges) - 1)
    return nodes[slot] if edges[slot] else -1


@compiled
def is_inside(before: Any, after: Any, has_spaces: bool) -> Any:
    """Return whether a word goes on between two characters with these flags."""
    if not before & LETTER or not after & LETTER:
        return False
    return has_spaces or not (before & JAPANESE or after & JAPANESE)


@compiled
def longest_match(codes: Array, place: int, tables: Any, trie: Any) -> int:
    """Return the length of the longest entry that begins here; 0 if none does."""
    flags, folds, has_spaces = tables
    edges, nodes, is_entry = trie
    longest, node, stop = 0, 0, place
    while stop < len(codes):
        node = step(edges, nodes, node, folds[codes[stop]])
        if node < 0:
            break
        stop += 1
        if is_entry[node] and (
            stop == len(codes) or not is_inside(flags[codes[stop - 1]], flags[codes[stop]], has_spaces)
        ):
            longest = stop - place
    return longest


@compiled
def fill_shares(codes: Array, ends: Array, tables: Any, trie: Any, shares: Array) -> None:
    """Fill the share of each text's letters of the script that are in entries."""
    flags, folds, has_spaces = tables
    edges, nodes, _ = trie
    start = 0
    for text in range(len(ends)):
        piece = codes[start : ends[text]]
        letters, matched, place, before = 0, 0, 0, np.uint32(0)
        while place < len(piece):
            flag = flags[piece[place]]
            letters += (flag & SCRIPT) != 0
            length = 0
            if step(edges, nodes, 0, folds[piece[place]]) >= 0 and not is_inside(before, flag, has_spaces):
                length = longest_match(piece, place, tables, trie)
            matched += length
            for each in range(place + 1, place + length):
                letters += (flags[piece[each]] & SCRIPT) != 0
            place += max(1, length)
            before = flags[piece[place - 1]]
        shares[text] = matched / max(1, letters)
        start = ends[text]


class NgWords:
    """A list of entries, and the shares of texts that are in them."""

    def __init__(self, words: Iterable[str], characters: Characters) -> None:
        """Put the entries together; their case, width and kind of kana do not matter."""
        self._folds = characters.folds.copy()
        self._folds[0x3041:0x3097] = np.arange(0x3041, 0x3097) + HIRAGANA_TO_KATAKANA
        self._tables = (characters.flags, self._folds, characters.has_spaces)
        entries = {_one_width(word) for word in words}
        self._trie = self._build([entry for entry in sorted(entries) if len(entry) >= MIN_CHARS])

    def shares(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the share of the script's letters that are in entries, for each normalized text."""
        shares = np.empty(len(texts))
        fill_shares(*encode([_one_width(text) for text in texts]), self._tables, self._trie, shares)
        return shares

    def _build(self, entries: Sequence[str]) -> tuple[Array, Array, Array]:
        """Return a table of edges (hash of node and character), the node of each, and which nodes end an entry."""
        num_edges = sum(map(len, entries))
        edges = np.zeros(table_size(max(1, num_edges)), dtype=np.uint64)
        nodes = np.full(len(edges), -1, dtype=np.int32)
        is_entry = np.zeros(num_edges + 1, dtype=np.bool_)
        count = 1
        for entry in entries:
            node = 0
            for code in self._folds[encode([entry])[0]].tolist():
                after = step(edges, nodes, node, np.uint32(code))
                if after < 0:
                    key = np.uint64(combined(np.uint64(node + 1), np.uint32(code)))
                    slot = int(key) % len(edges)
                    while edges[slot]:
                        slot = (slot + 1) % len(edges)
                    edges[slot], nodes[slot] = key, count
                    after, count = count, count + 1
                node = after
            is_entry[node] = True
        return edges, nodes, is_entry


def _one_width(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def read_ng_words(patterns: Sequence[str]) -> list[str]:
    """Read the entries of lists, one a line; blank lines and lines that begin with `#` are none."""
    words = []
    for uri in storage.expand(patterns, "clean.ng_words"):
        with storage.local_copy(uri) as path:
            try:
                entries = [line.decode() for line in list_lines(path, "clean.ng_words")]
            except UnicodeDecodeError as error:
                raise DataError(f"clean.ng_words: {uri} is not UTF-8 ({error}); convert it") from error
        if not entries:
            raise DataError(
                f"clean.ng_words: {uri} holds no entry; give a word or phrase a line, or take it out"
            )
        words += entries
        if len(words) > MAX_WORDS:
            raise DataError(f"clean.ng_words: more than {MAX_WORDS:,} entries with {uri}; name fewer")
    return words
