"""Find documents that hold text of the files which models are judged and taught by.

A document is contaminated if it shares a run of eight words with an item, or a run of 40 characters, which is what
finds an item in a language whose suffixes change its words. Source: word 8-grams, as in "PaLM", arXiv:2204.02311,
section 8; the length of the run of characters is our choice: about as many letters as eight short words.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from anadil.core.json_text import parse_json
from anadil.text.folded_units import Hashes, ngram_hashes, unit_hashes
from anadil.text.language_data import Language

RUN_WORDS = 8
RUN_CHARS = 40
MIN_MERGED = 1 << 22
"""Runs that wait for others before they are merged."""
PIECE_CHARS, OVERLAP_CHARS = 1 << 19, 1_000
"""Characters of an item whose runs are computed at a time, which takes some 120 bytes each."""
MAX_NAMED = 10
"""Items that are named of one document."""


class Decontamination:
    """Finds items of the files in documents; each different run of the items costs 12 bytes."""

    def __init__(self, items: Iterable[tuple[str, str]], language: Language) -> None:
        """Hash the runs of the items, by name and text; case, signs, accents and white space are no difference.

        An item with fewer than eight words and 40 characters could be in any document, and is not looked for.
        """
        self._language = language
        self._names: list[str] = []
        self._hashes, self._owners = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int32)
        pending: list[tuple[Hashes, int]] = []
        num_pending = 0
        for name, text in items:
            runs = np.unique(np.concatenate([np.unique(self._runs(piece)) for piece in _pieces(text)]))
            if not len(runs):
                continue
            pending.append((runs, len(self._names)))
            self._names.append(name)
            num_pending += len(runs)
            if num_pending > max(MIN_MERGED, len(self._hashes)):
                self._merge(pending)
                num_pending = 0
        self._merge(pending)

    def _merge(self, pending: list[tuple[Hashes, int]]) -> None:
        """Add the runs of items, so that memory follows from how many different ones there are."""
        hashes = np.concatenate([self._hashes, *(runs for runs, _ in pending)])
        owners = [np.full(len(runs), owner, dtype=np.int32) for runs, owner in pending]
        # Equal runs count for the first item: sorting is stable.
        self._hashes, first = np.unique(hashes, return_index=True)
        self._owners = np.concatenate([self._owners, *owners])[first]
        pending.clear()

    def save(self, folder: Path) -> None:
        """Write the hashes and names, so that processes share what one has read."""
        np.save(folder / "runs.npy", self._hashes)
        np.save(folder / "owners.npy", self._owners)
        (folder / "names.json").write_text(json.dumps(self._names), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, language: Language) -> Self:
        """Load the files of `save`, mapped into memory."""
        loaded = cls((), language)
        loaded._hashes = np.load(folder / "runs.npy", mmap_mode="r")
        loaded._owners = np.load(folder / "owners.npy", mmap_mode="r")
        loaded._names = json.loads((folder / "names.json").read_text(encoding="utf-8"))
        return loaded

    def matches(self, text: str) -> list[str]:
        """Return the names of the items of which a normalized text holds a run, the first ten; empty for a clean text."""
        if not len(self._hashes):
            return []
        runs = self._runs(text)
        places = np.searchsorted(self._hashes, runs)
        places[places == len(self._hashes)] = 0
        owners = np.unique(self._owners[places[self._hashes[places] == runs]])
        return [self._names[each] for each in owners[:MAX_NAMED]]

    def _runs(self, text: str) -> Hashes:
        characters = unit_hashes(text, self._language, by_character=True)
        runs = ngram_hashes(characters, RUN_CHARS)
        # Where a language writes no spaces, its units are characters, and eight of them are in any text.
        if self._language.shingle_units("ab") == ["a", "b"]:
            return runs
        words = unit_hashes(text, self._language, by_character=False)
        return np.concatenate((runs, ngram_hashes(words, RUN_WORDS)))


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text into pieces, each with the beginning of the next one: no run is lost at a border."""
    for start in range(0, max(1, len(text)), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS + OVERLAP_CHARS]


def texts_of(row: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, whatever its layout: prompts, answers, messages, choices."""
    if isinstance(row, str):
        packed = None
        # Some files hold their messages as the text of a list or table.
        if row.lstrip().startswith(("[", "{")):
            with suppress(ValueError):
                packed = parse_json(row)
        yield from (row,) if packed is None else texts_of(packed)
    elif isinstance(row, dict | list):
        for value in row.values() if isinstance(row, dict) else row:
            yield from texts_of(value)
