"""The statistics of a document: a column of the matrix that the kernels fill, in this order.

Shares are 0 to 1. Lengths are code points. What a language does not measure is nan, which breaks no limit.
"""

from enum import IntEnum

OF_NGRAMS = range(2, 11)
"""Orders of the n-grams: the most frequent 2- to 4-grams, repeated 5- to 10-grams. Source: Gopher, table A1."""


class Column(IntEnum):
    """Name and place of a statistic; rows and rules call it by its name in lower case."""

    # What other steps found, and put here.
    LANGUAGE = 0
    """1 if the text is in the language, or too short to tell; else 0."""
    FOREIGN = 1
    """Share of the text whose lines are in another language."""
    QUALITY = 2
    """Score of the user's own model, 0 to 1."""
    NG_WORDS = 3
    """Share of the letters of the script that are in words of the NG lists."""
    # Characters.
    CHARS = 4
    LETTERS = 5
    SCRIPT = 6
    """Share of the letters in the language's script."""
    OWN_LETTERS = 7
    """Share of the letters that its neighbours do not write."""
    # Words.
    WORDS = 8
    MEAN_WORD_LENGTH = 9
    LONGEST_WORD = 10
    ALPHA_WORDS = 11
    """Share of the words that hold a letter."""
    ISOLATED = 12
    """Share of the words that are one stray letter."""
    STOP_WORDS = 13
    """Number of different stop words."""
    STOP_WORD_SHARE = 14
    HASHES = 15
    """`#` for each word."""
    ELLIPSES = 16
    """`...` or `…` for each word."""
    WORDS_PER_SENTENCE = 17
    """Words over one more than the ends of sentences."""
    BROKEN_SENTENCES = 18
    """Share of the ends of sentences inside a line after which no sentence begins; of one end more than there are."""
    # Lines.
    LINES = 19
    BULLET_LINES = 20
    ELLIPSIS_LINES = 21
    LINE_ENDS = 22
    """Share of the lines that end as a sentence does, counting one more that does: one line tells nothing."""
    SHORT_LINES = 23
    """Share of the lines of at most 30 characters."""
    NEW_LINES = 24
    """Line feeds for each word."""
    LONG_LINES = 25
    """Number of lines of at least 200 characters."""
    C4_PHRASES = 26
    """Number of phrases for which C4 drops a line: `javascript`, `privacy policy` and the like."""
    C4_LINES = 27
    """Share of the lines that C4 would keep."""
    C4_SENTENCES = 28
    """Number of sentences in those."""
    CURLY_BRACKETS = 29
    LOREM_IPSUM = 30
    # Repetition.
    DUPLICATE_LINES = 31
    DUPLICATE_LINE_CHARS = 32
    DUPLICATE_PARAGRAPHS = 33
    DUPLICATE_PARAGRAPH_CHARS = 34
    TOP_2GRAM = 35
    TOP_3GRAM = 36
    TOP_4GRAM = 37
    DUPLICATE_5GRAMS = 38
    DUPLICATE_6GRAMS = 39
    DUPLICATE_7GRAMS = 40
    DUPLICATE_8GRAMS = 41
    DUPLICATE_9GRAMS = 42
    DUPLICATE_10GRAMS = 43
    # Swallow's: characters and sentences.
    JAPANESE_CHARS = 44
    """Number of kana, kanji and Japanese commas and stops."""
    JAPANESE = 45
    """Share of the characters that are of these."""
    HIRAGANA = 46
    """Share of the Japanese characters."""
    KATAKANA = 47
    MEAN_SENTENCE = 48
    LONGEST_SENTENCE = 49
    ELLIPSIS_SENTENCES = 50
    DUPLICATE_SWALLOW_LINES = 51
    DUPLICATE_SWALLOW_LINE_CHARS = 52
    DUPLICATE_SENTENCES = 53
    DUPLICATE_SENTENCE_CHARS = 54
    TOP_CHAR_2GRAM = 55
    TOP_CHAR_3GRAM = 56
    TOP_CHAR_4GRAM = 57
    DUPLICATE_CHAR_5GRAMS = 58
    """Share of the different 5-grams that come more than once."""
    DUPLICATE_CHAR_6GRAMS = 59
    DUPLICATE_CHAR_7GRAMS = 60
    DUPLICATE_CHAR_8GRAMS = 61
    DUPLICATE_CHAR_9GRAMS = 62
    DUPLICATE_CHAR_10GRAMS = 63


STATISTICS = tuple(column.name.lower() for column in Column)
"""Names, in the order of the columns."""
EXTERNAL = ("language", "foreign", "quality", "ng_words")
"""Those that other steps fill."""
