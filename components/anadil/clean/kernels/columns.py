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
    """Share of the words that are one stray letter, hold U+FFFD, which stands for a character that was lost, or have
    letters of another alphabet (Latin, Greek, Cyrillic) between their own."""
    STOP_WORDS = 13
    """Number of different stop words."""
    STOP_WORD_SHARE = 14
    HASHES = 15
    """`#` for each word."""
    ELLIPSES = 16
    """`...` or `…` for each word."""
    SENTENCE_SIGNS = 17
    """Stop words and sound beginnings of sentences, for each word: a list of keywords has neither."""
    WORDS_PER_SENTENCE = 18
    """Words over the ends of sentences, and one end more where the text does not begin with a small letter; half of one where there
    is none."""
    BROKEN_SENTENCES = 19
    """Share of the ends of sentences inside a line after which no sentence begins; of one end more than there are.
    Where nearly all letters are small ones, sentences begin with those."""
    # Lines.
    LINES = 20
    BULLET_LINES = 21
    ELLIPSIS_LINES = 22
    LINE_ENDS = 23
    """Share of the lines that end as a sentence does, counting one more that does: one line tells nothing."""
    SHORT_LINES = 24
    """Share of the lines of at most 30 characters."""
    NEW_LINES = 25
    """Line feeds for each word; a blank line counts no more than the end of the line before it."""
    LONG_LINES = 26
    """Number of lines of at least 200 characters."""
    C4_PHRASES = 27
    """Number of phrases for which C4 drops a line: `javascript`, `privacy policy` and the like."""
    C4_LINES = 28
    """Share of the lines that C4 would keep."""
    C4_SENTENCES = 29
    """Number of sentences in those."""
    CURLY_BRACKETS = 30
    LOREM_IPSUM = 31
    # Repetition.
    DUPLICATE_LINES = 32
    DUPLICATE_LINE_CHARS = 33
    DUPLICATE_PARAGRAPHS = 34
    DUPLICATE_PARAGRAPH_CHARS = 35
    TOP_2GRAM = 36
    TOP_3GRAM = 37
    TOP_4GRAM = 38
    DUPLICATE_5GRAMS = 39
    DUPLICATE_6GRAMS = 40
    DUPLICATE_7GRAMS = 41
    DUPLICATE_8GRAMS = 42
    DUPLICATE_9GRAMS = 43
    DUPLICATE_10GRAMS = 44
    # Swallow's: characters and sentences.
    JAPANESE_CHARS = 45
    """Number of kana, kanji and Japanese commas and stops."""
    JAPANESE = 46
    """Share of the characters that are of these."""
    HIRAGANA = 47
    """Share of the Japanese characters."""
    KATAKANA = 48
    MEAN_SENTENCE = 49
    LONGEST_SENTENCE = 50
    ELLIPSIS_SENTENCES = 51
    DUPLICATE_SWALLOW_LINES = 52
    DUPLICATE_SWALLOW_LINE_CHARS = 53
    DUPLICATE_SENTENCES = 54
    DUPLICATE_SENTENCE_CHARS = 55
    TOP_CHAR_2GRAM = 56
    TOP_CHAR_3GRAM = 57
    TOP_CHAR_4GRAM = 58
    DUPLICATE_CHAR_5GRAMS = 59
    """Share of the different 5-grams that come more than once."""
    DUPLICATE_CHAR_6GRAMS = 60
    DUPLICATE_CHAR_7GRAMS = 61
    DUPLICATE_CHAR_8GRAMS = 62
    DUPLICATE_CHAR_9GRAMS = 63
    DUPLICATE_CHAR_10GRAMS = 64


STATISTICS = tuple(column.name.lower() for column in Column)
"""Names, in the order of the columns."""
EXTERNAL = ("language", "foreign", "quality", "ng_words")
"""Those that other steps fill."""
