"""Everything that rules judge of a text, measured in one compiled pass over its code points."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anadil.clean.kernels.characters import MAX_BATCH_CHARS, Characters, batches, characters_of, encode
from anadil.clean.kernels.columns import COLUMN, EXTERNAL, STATISTICS
from anadil.clean.kernels.ngram_kernel import table_size
from anadil.clean.kernels.text_kernel import measure_batch
from anadil.clean.kernels.word_kernel import stop_word_hash
from anadil.core.errors import AnadilError
from anadil.text.language_data import Language

Matrix = npt.NDArray[np.float64]

UNFILLED = -np.inf
"""No statistic is so small: a column that still holds it was forgotten."""


class Statistics:
    """Measures texts of a language."""

    def __init__(self, language: Language, characters: Characters | None = None) -> None:
        """Make the tables of a language; `characters` are of a language that differs in its limits alone."""
        self.characters = tables = characters or characters_of(language)
        self._has_stop_words = bool(language.stop_words)
        stop_words, longest = _stop_word_table(language, tables)
        self._tables = (tables.flags, tables.kinds, tables.folds, stop_words, longest, tables.has_spaces)

    def measure(self, texts: Sequence[str]) -> Matrix:
        """Return a row for each normalized text, in the order of `STATISTICS`.

        The columns of other steps hold a value that breaks no rule.
        """
        rows = np.full((len(texts), len(STATISTICS)), UNFILLED)
        measured = [text[:MAX_BATCH_CHARS] for text in texts]
        for start, stop in batches(measured):
            codes, ends = encode(measured[start:stop])
            measure_batch(codes, ends, self._tables, self.characters.has_runs, rows[start:stop])
        if not self.characters.has_spaces and not self.characters.has_runs:
            # A letter is no word of a sentence.
            rows[:, [COLUMN["sentence_signs"], COLUMN["words_per_sentence"]]] = np.nan
        if not self._has_stop_words:
            # They are most of the signs of sentences: without them good text has no more than a list of keywords.
            rows[:, COLUMN["sentence_signs"]] = np.nan
        rows[:, COLUMN["chars"]] = [len(text) - text.count("\n\n") for text in texts]
        for name, value in EXTERNAL.items():
            rows[:, COLUMN[name]] = value
        # The rule of a statistic that nobody measures would never drop anything, and say nothing.
        if unfilled := [STATISTICS[column] for column in np.flatnonzero((rows == UNFILLED).any(axis=0))]:
            raise AnadilError(
                f"statistics that rules name and no kernel fills: {', '.join(unfilled)}; fill COLUMN[{unfilled[0]!r}] in a kernel "
                "of clean/kernels, with nan where a language does not measure it, or take the rule out of text/filter_rules.py"
            )
        return rows


def _stop_word_table(language: Language, characters: Characters) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the hashes of the stop words, each at the slot of its lowest bits or the next free one, and most characters."""
    words = sorted(language.stop_words)
    table = np.zeros(table_size(max(1, len(words))), dtype=np.uint64)
    for word in words:
        codes, ends = encode([word])
        key = np.uint64(stop_word_hash(codes, characters.flags, characters.folds, 0, ends[0]))
        slot = int(key) % len(table)
        while table[slot]:
            slot = (slot + 1) % len(table)
        table[slot] = key
    # A word may stand between marks.
    return table, 3 * max(map(len, words), default=0)
