"""The document filters as a recipe names them: limits, and whether a rule drops or only reports."""

from typing import Literal, get_args

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from anadil.recipe.fields import Fraction, StrictModel

RuleName = Literal[
    "empty", "language", "mixed", "short", "script", "spelling", "long", "isolated", "word_length", "alpha", "stop_words",
    "symbols", "bullet_lines", "ellipsis_lines", "line_ends", "short_lines", "new_lines", "words_soup", "c4_lines",
    "c4_sentences", "curly_brackets", "lorem_ipsum", "long_lines", "kana", "sentence_length", "ellipsis_sentences",
    "duplicate_lines", "duplicate_line_chars", "duplicate_paragraphs", "duplicate_sentences", "top_ngram",
    "duplicate_ngrams", "top_char_ngram", "duplicate_char_ngrams", "ng_words", "quality",
]  # fmt: skip
"""Rules in the order in which the first that a document breaks is the reason why it is dropped."""
RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)
Mode = Literal["enforce", "report"]


class Rules(StrictModel):
    """Limits of the document filters; a key left out takes the language's own limit."""

    min_words: NonNegativeInt | None = None
    """Fewest words of a document."""
    max_words: PositiveInt | None = None
    """Most words of a document."""
    min_mean_word_length: NonNegativeFloat | None = None
    """Least mean length of its words, in characters."""
    max_mean_word_length: PositiveFloat | None = None
    """Largest mean length of its words, in characters."""
    min_alpha_words: Fraction | None = None
    """Least share of words that hold a letter."""
    min_stop_words: NonNegativeInt | None = None
    """Fewest different stop words of the language."""
    max_duplicate_lines: Fraction | None = None
    """Largest share of lines that repeat an earlier line."""
    max_top_ngram: Fraction | None = None
    """Largest share of characters in the most frequent word 2-gram."""
    max_duplicate_ngrams: Fraction | None = None
    """Largest share of characters in repeated word 5-grams."""
    max_isolated: Fraction | None = None
    """Largest share of words that are one stray letter or hold a lost one (U+FFFD), the marks of damaged text."""
    min_script: Fraction | None = None
    """Least share of letters that belong to the language's script."""
    min_chars: NonNegativeInt | None = None
    """Fewest characters of a document."""
    max_foreign: Fraction | None = None
    """Largest share of text in lines of another language."""
    max_hashes: NonNegativeFloat | None = None
    """Most `#` for each word."""
    max_ellipses: NonNegativeFloat | None = None
    """Most `...` and `…` for each word."""
    max_bullet_lines: Fraction | None = None
    """Largest share of lines that begin with a bullet."""
    max_ellipsis_lines: Fraction | None = None
    """Largest share of lines that end in an ellipsis."""
    min_line_ends: Fraction | None = None
    """Least share of lines that end as a sentence does."""
    max_short_lines: Fraction | None = None
    """Largest share of lines of at most 30 characters."""
    max_new_lines: NonNegativeFloat | None = None
    """Most line feeds for each word."""
    max_duplicate_line_chars: Fraction | None = None
    """Largest share of characters in lines that repeat an earlier line."""
    min_c4_lines: Fraction | None = None
    """Least share of lines that C4 would keep."""
    min_c4_sentences: NonNegativeInt | None = None
    """Fewest sentences in lines that C4 would keep."""
    max_curly_brackets: NonNegativeInt | None = None
    """Most `{` in a document."""
    max_lorem_ipsum: NonNegativeInt | None = None
    """Most times that a document says `lorem ipsum`."""
    min_long_lines: NonNegativeInt | None = None
    """Fewest lines of at least 200 characters."""
    max_duplicate_paragraphs: Fraction | None = None
    """Largest share of paragraphs that repeat an earlier one."""
    max_duplicate_paragraph_chars: Fraction | None = None
    """Largest share of characters in paragraphs that repeat an earlier one."""
    max_top_3gram: Fraction | None = None
    """Largest share of characters in the most frequent word 3-gram."""
    max_top_4gram: Fraction | None = None
    """Largest share of characters in the most frequent word 4-gram."""
    max_duplicate_6grams: Fraction | None = None
    """Largest share of characters in repeated word 6-grams."""
    max_duplicate_7grams: Fraction | None = None
    """Largest share of characters in repeated word 7-grams."""
    max_duplicate_8grams: Fraction | None = None
    """Largest share of characters in repeated word 8-grams."""
    max_duplicate_9grams: Fraction | None = None
    """Largest share of characters in repeated word 9-grams."""
    max_duplicate_10grams: Fraction | None = None
    """Largest share of characters in repeated word 10-grams."""
    min_sentence_signs: Fraction | None = None
    """Least stop words and sound beginnings of sentences, for each word; a list of keywords has few. Not judged in a language
    of which no stop words are known."""
    max_words_per_sentence: PositiveFloat | None = None
    """Most words for each end of a sentence, counting one more end where the text begins as a sentence does; text without
    marks, such as recognized speech, has hardly any."""
    max_broken_sentences: Fraction | None = None
    """Largest share of ends of sentences after which no sentence begins; shuffled words have most."""
    min_japanese_chars: NonNegativeInt | None = None
    """Japanese: fewest kana, kanji and Japanese punctuation marks."""
    min_japanese: Fraction | None = None
    """Japanese: their least share of the characters."""
    min_hiragana: Fraction | None = None
    """Japanese: least share of hiragana among them."""
    max_katakana: Fraction | None = None
    """Japanese: largest share of katakana among them."""
    min_mean_sentence: NonNegativeFloat | None = None
    """Japanese: least mean length of a sentence, in characters."""
    max_mean_sentence: PositiveFloat | None = None
    """Japanese: largest mean length of a sentence, in characters."""
    max_longest_sentence: PositiveInt | None = None
    """Japanese: characters of the longest sentence."""
    max_ellipsis_sentences: Fraction | None = None
    """Japanese: largest share of sentences that end in `…` or `・`."""
    max_duplicate_sentences: Fraction | None = None
    """Japanese: largest share of sentences, and of lines, that repeat an earlier one."""
    max_duplicate_sentence_chars: Fraction | None = None
    """Japanese: largest share of characters in these."""
    max_top_char_2gram: Fraction | None = None
    """Japanese: largest share of the most frequent among all 2-grams of characters."""
    max_top_char_3gram: Fraction | None = None
    """Japanese: the same of 3-grams."""
    max_top_char_4gram: Fraction | None = None
    """Japanese: the same of 4-grams."""
    max_duplicate_char_5grams: Fraction | None = None
    """Japanese: largest share of the different 5-grams of characters that come twice or more."""
    max_duplicate_char_6grams: Fraction | None = None
    """Japanese: the same of 6-grams."""
    max_duplicate_char_7grams: Fraction | None = None
    """Japanese: the same of 7-grams."""
    max_duplicate_char_8grams: Fraction | None = None
    """Japanese: the same of 8-grams."""
    max_duplicate_char_9grams: Fraction | None = None
    """Japanese: the same of 9-grams."""
    max_duplicate_char_10grams: Fraction | None = None
    """Japanese: the same of 10-grams."""
    max_ng_words: Fraction | None = None
    """Largest share of letters in words of `clean.ng_words`. Source: Swallow, arXiv:2404.17733."""
    min_quality: Fraction | None = None
    """Least score of `clean.quality_model`."""
