"""Limits of the document filters: what every language starts from, and where each comes from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterLimits:
    """A language's own limits; `anadil.recipe.filter_rules.Rules` says what each is. None: not judged."""

    min_words: int
    max_words: int
    min_mean_word_length: float
    max_mean_word_length: float
    min_alpha_words: float
    min_stop_words: int
    max_duplicate_lines: float
    max_top_ngram: float
    max_duplicate_ngrams: float
    max_isolated: float
    min_script: float
    min_chars: int | None = None
    # As much as a page quotes; more is a mixed page.
    max_foreign: float | None = 0.3
    # Gopher, arXiv:2112.11446, section A1.1.
    max_hashes: float | None = 0.1
    max_ellipses: float | None = 0.1
    max_bullet_lines: float | None = 0.9
    max_ellipsis_lines: float | None = 0.3
    # FineWeb, arXiv:2406.17557, section 3.6; FineWeb2 has no limit of short lines.
    min_line_ends: float | None = None
    max_short_lines: float | None = None
    max_new_lines: float | None = 0.3
    max_duplicate_line_chars: float | None = 0.1  # FineWeb2
    # C4, arXiv:1910.10683, section 2.2, and mC4, arXiv:2010.11934, section 3.1; reported only, unless the recipe says
    # otherwise: they were made for English, and drop pages with code and whole forums.
    min_c4_lines: float | None = 0.5
    min_c4_sentences: int | None = 5
    max_curly_brackets: int | None = 0
    max_lorem_ipsum: int | None = 0
    min_long_lines: int | None = 3
    # Gopher, table A1.
    max_duplicate_paragraphs: float | None = 0.3
    max_duplicate_paragraph_chars: float | None = 0.2
    max_top_3gram: float | None = 0.18
    max_top_4gram: float | None = 0.18
    # FineWeb2, the laxest of its Turkic ones: a language with long words repeats fewer.
    max_duplicate_6grams: float | None = 0.27
    max_duplicate_7grams: float | None = 0.25
    max_duplicate_8grams: float | None = 0.23
    max_duplicate_9grams: float | None = 0.20
    max_duplicate_10grams: float | None = 0.18
    # Fitted on news, law and documentation in Azerbaijani, English, Russian and Turkish: they drop 98 % of the same
    # documents with their words shuffled and all lists of keywords, and 0.6 % of them as they are, mostly contents of
    # books and lists of messages.
    min_sentence_signs: float | None = 0.04
    max_words_per_sentence: float | None = 60
    max_broken_sentences: float | None = 0.3
    # Swallow, arXiv:2404.17733, section 3.2: Japanese only.
    min_japanese_chars: int | None = None
    min_japanese: float | None = None
    min_hiragana: float | None = None
    max_katakana: float | None = None
    min_mean_sentence: float | None = None
    max_mean_sentence: float | None = None
    max_longest_sentence: int | None = None
    max_ellipsis_sentences: float | None = None
    max_duplicate_sentences: float | None = None
    max_duplicate_sentence_chars: float | None = None
    max_top_char_2gram: float | None = None
    max_top_char_3gram: float | None = None
    max_top_char_4gram: float | None = None
    max_duplicate_char_5grams: float | None = None
    max_duplicate_char_6grams: float | None = None
    max_duplicate_char_7grams: float | None = None
    max_duplicate_char_8grams: float | None = None
    max_duplicate_char_9grams: float | None = None
    max_duplicate_char_10grams: float | None = None
    # Swallow: share of the letters that are in words of the lists.
    max_ng_words: float | None = 0.05
    min_quality: float | None = 0.5
