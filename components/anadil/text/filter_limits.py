"""Limits of the document filters: what every language starts from, and where each comes from."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterLimits:
    """A language's own limits; `anadil.recipe.filter_rules.Rules` says what each is. None: not judged.

    The defaults are those of a language of which nothing is known but its script and identifier.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    min_words: int = 50  # Gopher, arXiv:2112.11446, table A1
    max_words: int = 100_000  # Gopher
    # Our choice: the least and most of FineWeb2 for all its languages with spaces.
    min_mean_word_length: float = 2
    max_mean_word_length: float = 14
    min_alpha_words: Share = 0.7  # FineWeb2 has .7 to .8 for most languages
    min_stop_words: int = 0  # none are known
    max_duplicate_lines: Share = 0.30  # Gopher
    max_top_ngram: Share = 0.20  # Gopher
    max_duplicate_ngrams: Share = 0.30  # FineWeb2
    max_isolated: Share = 0.05  # ours: see az.yaml
    min_script: Share = 0.5  # Swallow, arXiv:2404.17733
    min_chars: int | None = None
    # As much as a page quotes; more is a mixed page.
    max_foreign: Share | None = 0.3
    # Gopher, arXiv:2112.11446, section A1.1.
    max_hashes: float | None = 0.1
    max_ellipses: float | None = 0.1
    max_bullet_lines: Share | None = 0.9
    max_ellipsis_lines: Share | None = 0.3
    # FineWeb, arXiv:2406.17557, section 3.6; FineWeb2 has no limit of short lines.
    min_line_ends: Share | None = None
    max_short_lines: Share | None = None
    max_new_lines: float | None = 0.3
    max_duplicate_line_chars: Share | None = 0.1  # FineWeb2
    # C4, arXiv:1910.10683, section 2.2, and mC4, arXiv:2010.11934, section 3.1; reported only, unless the recipe says
    # otherwise: they were made for English, and drop pages with code and whole forums.
    min_c4_lines: Share | None = 0.5
    min_c4_sentences: int | None = 5
    max_curly_brackets: int | None = 0
    max_lorem_ipsum: int | None = 0
    min_long_lines: int | None = 3
    # Gopher, table A1.
    max_duplicate_paragraphs: Share | None = 0.3
    max_duplicate_paragraph_chars: Share | None = 0.2
    max_top_3gram: Share | None = 0.18
    max_top_4gram: Share | None = 0.18
    # FineWeb2, the laxest of its Turkic ones: a language with long words repeats fewer.
    max_duplicate_6grams: Share | None = 0.27
    max_duplicate_7grams: Share | None = 0.25
    max_duplicate_8grams: Share | None = 0.23
    max_duplicate_9grams: Share | None = 0.20
    max_duplicate_10grams: Share | None = 0.18
    # Fitted on news, law and documentation in Azerbaijani, English, Russian and Turkish: they drop 98 % of the same
    # documents with their words shuffled and all lists of keywords, and 0.6 % of them as they are, mostly contents of
    # books and lists of messages.
    min_sentence_signs: Share | None = 0.04
    max_words_per_sentence: float | None = 60
    max_broken_sentences: Share | None = 0.3
    # Swallow, arXiv:2404.17733, section 3.2: Japanese only.
    min_japanese_chars: int | None = None
    min_japanese: Share | None = None
    min_hiragana: Share | None = None
    max_katakana: Share | None = None
    min_mean_sentence: float | None = None
    max_mean_sentence: float | None = None
    max_longest_sentence: int | None = None
    max_ellipsis_sentences: Share | None = None
    max_duplicate_sentences: Share | None = None
    max_duplicate_sentence_chars: Share | None = None
    max_top_char_2gram: Share | None = None
    max_top_char_3gram: Share | None = None
    max_top_char_4gram: Share | None = None
    max_duplicate_char_5grams: Share | None = None
    max_duplicate_char_6grams: Share | None = None
    max_duplicate_char_7grams: Share | None = None
    max_duplicate_char_8grams: Share | None = None
    max_duplicate_char_9grams: Share | None = None
    max_duplicate_char_10grams: Share | None = None
    # Swallow: share of the letters that are in words of the lists.
    max_ng_words: Share | None = 0.05
    min_quality: Share | None = 0.5
