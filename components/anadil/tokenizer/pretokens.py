"""Count the pretokens of texts: the pieces that the pre-tokenizer cuts. Merges never cross their borders."""

import json
import logging
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import numpy as np
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split

from anadil.core.errors import DataError
from anadil.text.corpus import text_batches
from anadil.text.cut_patterns import GPT_2_REGEX, LLAMA_3_REGEX, QWEN_3_5_REGEX, QWEN_REGEX, known_pattern
from anadil.text.pieces import has_pieces
from anadil.tokenizer.kernels import pretoken_kernel as kernel
from anadil.tokenizer.kernels.pretoken_kernel import Array, gather, sorted_order
from anadil.tokenizer.word_counts import WordCounts, word_counts

log = logging.getLogger(__name__)

MAX_PRETOKEN_BYTES = 256  # Longer ones are left out: they are no words
UNLIMITED = 2**62
LETTERS, WITH_MARKS = r"\p{L}+", r"[\p{L}\p{M}]+"
STYLES = {
    LLAMA_3_REGEX: (kernel.LLAMA, 3, LETTERS),
    QWEN_REGEX: (kernel.LLAMA, 1, LETTERS),
    GPT_2_REGEX: (kernel.GPT2, UNLIMITED, LETTERS),
    QWEN_3_5_REGEX: (kernel.LLAMA, 1, WITH_MARKS),
}
"""Known pattern -> how the compiled loop cuts: its style, most digits in a pretoken, and what counts as a letter."""
BATCH_CHARS = 1_000_000  # Text that is handed to compiled code at a time
ROOM = 2**16  # Different pretokens that there is room for at first
PATTERNS = ((r"\p{N}+", kernel.NUMBER), (r"\s+", kernel.SPACE), (r"[\r\n]+", kernel.NEWLINE))
DOCUMENTS, TOO_LONG = "train_documents", "dropped_pretokens"
"""Records of a table."""


def require_words(table: WordCounts) -> None:
    """Refuse an empty table, and log how many pretokens were too long to be counted."""
    if not len(table):
        raise DataError(
            f"tokenizer: the {table.records.get(DOCUMENTS, 0)} train documents hold no words of at most "
            f"{MAX_PRETOKEN_BYTES} bytes; check the corpus, and run clean again with more inputs"
        )
    if num_too_long := table.records.get(TOO_LONG, 0):
        log.warning("left out %d pretokens of more than %d bytes", num_too_long, MAX_PRETOKEN_BYTES)


def cutter_of(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer itself, or in place of SentencePiece's kind, which cuts nothing, Qwen 3.5's way to cut.

    SentencePiece makes no token of letters and digits, or of two words. New tokens are not to either.
    """
    if not has_pieces(tokenizer):
        return tokenizer
    cutter = Tokenizer(BPE())
    cutter.pre_tokenizer = pre_tokenizers.Sequence(
        [Split(Regex(QWEN_3_5_REGEX), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return cutter


def count_texts(tokenizer: Tokenizer, texts: Iterable[str]) -> WordCounts:
    """The table of some texts as the tokenizer's own normalizer and pre-tokenizer cut them.

    Its records count documents, and pretokens that were too long. Memory: some 50 bytes for each different pretoken.
    """
    pattern = known_pattern(json.loads(tokenizer.to_str()).get("pre_tokenizer"))
    if tokenizer.normalizer is not None:
        texts = map(tokenizer.normalizer.normalize_str, texts)
    if pattern is None:
        return count_by_library(tokenizer, texts)
    counter = _Counter(pattern)
    for batch in text_batches(texts, BATCH_CHARS):
        counter.add(batch)
    return counter.table()


class CharacterKinds:
    """Code point -> its kind, as the library's regular expressions see it: their Unicode is not Python's."""

    def __init__(self, letters: str) -> None:
        self._patterns = (*PATTERNS, (letters, kernel.LETTER))
        self.kinds = np.full(0x110000, kernel.OTHER, dtype=np.uint8)
        self._is_known = np.zeros(0x1100, dtype=np.bool_)

    def learn(self, data: Array) -> None:
        """Look up the kinds of the characters of a text in UTF-8, by pages of 256: all at once would take seconds."""
        pages = np.zeros_like(self._is_known)
        kernel.mark_pages(data, pages)
        for page in np.flatnonzero(pages & ~self._is_known).tolist():
            first = 256 * page
            text = "".join(map(chr, range(first, first + 256)))
            for pattern, kind in self._patterns:
                # No such character stands between two runs that were taken out.
                outside = [span for _, span in Split(Regex(pattern), "removed").pre_tokenize_str(text)]
                for (_, start), (end, _) in pairwise([(0, 0), *outside, (256, 256)]):
                    self.kinds[first + start : first + end] = kind
        self._is_known |= pages


character_kinds = cache(CharacterKinds)


class _Counter:
    def __init__(self, pattern: str) -> None:
        style, digits, _ = STYLES[pattern]
        self._settings = np.array([style, digits, MAX_PRETOKEN_BYTES], dtype=np.int64)
        self._characters = character_kinds(STYLES[pattern][2])
        self._state = np.zeros(kernel.STATE, dtype=np.int64)
        self._entries = np.zeros((ROOM, 3), dtype=np.int64)
        self._text = np.empty(ROOM * 8, dtype=np.uint8)
        self._slots = np.full(2 * ROOM, -1, dtype=np.int32)
        self._num_documents = 0

    def add(self, texts: list[str]) -> None:
        encoded = [text.encode() for text in texts]
        # A bytearray can be written, as the types say for which the kernels were compiled.
        data = np.frombuffer(bytearray(b"".join(encoded)), dtype=np.uint8)
        ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
        self._num_documents += len(texts)
        self._characters.learn(data)
        while not kernel.count_batch(
            data,
            ends,
            self._characters.kinds,
            self._settings,
            self._slots,
            self._entries,
            self._text,
            self._state,
        ):
            self._make_room()

    def table(self) -> WordCounts:
        num, size = int(self._state[kernel.NUM]), int(self._state[kernel.SIZE])
        starts = np.ascontiguousarray(self._entries[: num + 1, kernel.START])
        order = sorted_order(self._text, starts)
        text, sorted_starts = np.empty(size, dtype=np.uint8), np.empty(num + 1, dtype=np.int64)
        gather(self._text, starts, order, text, sorted_starts)
        records = {DOCUMENTS: self._num_documents, TOO_LONG: int(self._state[kernel.TOO_LONG])}
        return WordCounts(
            text=text, starts=sorted_starts, counts=self._entries[order, kernel.COUNT], records=records
        )

    def _make_room(self) -> None:
        num, size = int(self._state[kernel.NUM]), int(self._state[kernel.SIZE])
        if size + MAX_PRETOKEN_BYTES > len(self._text):
            self._text = np.append(self._text, np.empty(len(self._text) // 2, dtype=np.uint8))
        if num + 1 >= len(self._entries):
            more = np.empty((len(self._entries) // 2, 3), dtype=np.int64)
            self._entries = np.concatenate([self._entries, more])
        # Slots depend on the size of the table, so they are filled anew.
        if 2 * num >= len(self._slots):
            self._slots = np.full(2 * len(self._slots), -1, dtype=np.int32)
            kernel.fill_slots(self._entries, num, self._slots)


def count_by_library(tokenizer: Tokenizer, texts: Iterable[str]) -> WordCounts:
    """The table of normalized texts as the pre-tokenizer itself cuts them, some 15 times slower."""
    counts: Counter[str] = Counter()
    num_documents = 0
    for text in texts:
        counts.update([piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)])
        num_documents += 1
    # One symbol is one byte, so characters count bytes.
    too_long = [pretoken for pretoken in counts if len(pretoken) > MAX_PRETOKEN_BYTES]
    num_too_long = sum(counts.pop(pretoken) for pretoken in too_long)
    return word_counts(counts.items(), {DOCUMENTS: num_documents, TOO_LONG: num_too_long})
