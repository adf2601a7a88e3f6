"""Everything that rules judge of a text, measured in one compiled pass over its code points."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.characters import Characters, characters_of, encode
from anadil.clean.kernels.columns import COLUMN, EXTERNAL, STATISTICS
from anadil.clean.kernels.ngram_kernel import table_size
from anadil.clean.kernels.text_kernel import measure_batch
from anadil.clean.kernels.word_kernel import stop_word_hash
from anadil.core.errors import AnadilError
from anadil.text.language_data import Language

Matrix = npt.NDArray[np.float64]

MAX_BATCH_CHARS = 4_000_000
"""Characters that are measured at a time, and most of one text, so that memory stays small: some 100 bytes for each.

A longer text has more words than any limit lets pass; the rest of it is not checked.
"""
UNFILLED = -np.inf
"""No statistic is so small: a column that still holds it was forgotten."""


class Statistics:
    """Measures texts of a language."""

    def __init__(self, language: Language, characters: Characters | None = None) -> None:
        """Make the tables of a language.

        Args:
            language: Of the texts.
            characters: Its tables, where they exist already.
        """
        self.characters = characters or characters_of(language)
        own = self.characters
        self._by_character = own.has_runs
        self._has_stop_words = bool(language.stop_words)
        table, longest = _stop_word_table(language, own)
        self._tables = (own.flags, own.kinds, own.folds, table, longest, own.has_spaces)

    def measure(self, texts: Sequence[str]) -> Matrix:
        """One row for each normalized text, in the order of `STATISTICS`.

        The columns of other steps hold what breaks no rule: the text is in the language, nothing in it is foreign.

        Raises:
            AnadilError: No kernel fills a column.
        """
        rows = np.full((len(texts), len(STATISTICS)), UNFILLED)
        start = 0
        for batch in _batches([text[:MAX_BATCH_CHARS] for text in texts]):
            own = rows[start : start + len(batch)]
            measure_batch(*encode(batch), self._tables, self._by_character, own)
            start += len(batch)
        if not self.characters.has_spaces and not self.characters.has_runs:
            # A letter is no word of a sentence.
            rows[:, [COLUMN["sentence_signs"], COLUMN["words_per_sentence"]]] = np.nan
        if not self._has_stop_words:
            # They are most of the signs of sentences: without them good text has no more than a list of keywords.
            rows[:, COLUMN["sentence_signs"]] = np.nan
        rows[:, COLUMN["chars"]] = [len(text) - text.count("\n\n") for text in texts]
        for name, value in EXTERNAL.items():
            rows[:, COLUMN[name]] = value
        _check_filled(rows)
        return rows


def _check_filled(rows: Matrix) -> None:
    """Refuse a statistic that nobody measures: its rule would never drop anything, and say nothing."""
    unfilled = [STATISTICS[column] for column in np.flatnonzero((rows == UNFILLED).any(axis=0))]
    if unfilled:
        raise AnadilError(
            f"statistics that rules name and no kernel fills: {', '.join(unfilled)}; fill COLUMN[{unfilled[0]!r}] in a kernel "
            "of clean/kernels, with nan where a language does not measure it, or take the rule out of text/filter_rules.py"
        )


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    start, chars = 0, 0
    for index, text in enumerate(texts):
        if chars and chars + len(text) > MAX_BATCH_CHARS:
            yield texts[start:index]
            start, chars = index, 0
        chars += len(text)
    if start < len(texts):
        yield texts[start:]


def _stop_word_table(language: Language, own: Characters) -> tuple[npt.NDArray[np.uint64], int]:
    """Hashes of the stop words, each at the slot that its lowest bits name or the next free one."""
    words = sorted(language.stop_words)
    table = np.zeros(table_size(max(1, len(words))), dtype=np.uint64)
    for word in words:
        codes, ends = encode([word])
        key = np.uint64(stop_word_hash(codes, own.flags, own.folds, 0, ends[0]))
        slot = int(key) % len(table)
        while table[slot]:
            slot = (slot + 1) % len(table)
        table[slot] = key
    # A word may stand between marks.
    return table, 3 * max(map(len, words), default=0)
