"""The rules of cleaning: one record for each limit.

A record makes the column of `stats/`, the reason of what is dropped, the key of `clean.rules` and of language packs with
its default and schema, and the line of the reference. A kernel of `clean/kernels` fills the statistic that it names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    create_model,
)

Share = Annotated[float, Field(ge=0, le=1)]
Mode = Literal["enforce", "report"]
Limits = Mapping[str, float | None]
"""Key -> limit; None: not judged."""
GOPHER = "Gopher, arXiv:2112.11446, table A1"
GOPHER_SYMBOLS = "Gopher, arXiv:2112.11446, section A1.1"
FINEWEB = "FineWeb, arXiv:2406.17557, section 3.6"
FINEWEB2 = "FineWeb2"
# The laxest of FineWeb2's Turkic languages: a language with long words repeats fewer.
TURKIC = "FineWeb2, the laxest Turkic language"
SWALLOW = "Swallow, arXiv:2404.17733, section 3.2"
C4, MC4 = "C4, arXiv:1910.10683, section 2.2", "mC4, arXiv:2010.11934, section 3.1"
# Fitted on news, law and documentation in Azerbaijani, English, Russian and Turkish. They drop 98 % of the same documents
# with their words shuffled and all lists of keywords, and 0.6 % of them as they are, mostly contents of books.
FITTED = "ours, fitted on four languages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A limit of a statistic. Records of one name are one rule, and stand together."""

    name: str
    measure: str
    """Statistic; one that no other record names becomes the last column."""
    limit: str
    """Key that sets it. It begins with `min` or `max`, which says what breaks it."""
    default: float | None = None
    """For a language that sets no other; None: not judged."""
    source: str
    mode: Mode = "enforce"
    """`enforce` drops, `report` only counts; `clean.modes` may say otherwise."""
    doc: str = ""
    """The key's meaning, in the schema and the reference."""
    type: Any = Share
    set_in: Literal["recipe", "identification", "nowhere"] = "recipe"
    """`recipe`: `clean.rules` and a pack's `limits`. `identification`: there in a pack. `nowhere`: nobody changes it."""

    @property
    def is_least(self) -> bool:
        """A smaller value breaks it, not a larger one."""
        return self.limit.startswith("min")


def _ngrams(
    name: str, key: str, defaults: Mapping[int, float | None], source: str, docs: str
) -> Iterable[Rule]:
    """Rules of n-grams, one for each order; statistic and key have the same name."""
    for order, default in defaults.items():
        measure = key.format(order)
        doc = docs.format(order)
        yield Rule(
            name=name, measure=measure, limit=f"max_{measure}", default=default, source=source, doc=doc
        )


RULES = (
    Rule(name="empty", measure="words", limit="min", default=1, source="ours", set_in="nowhere"),
    Rule(name="language", measure="language", limit="min", default=1, source="ours", set_in="nowhere"),
    Rule(name="mixed", measure="foreign", limit="max_foreign", default=0.3, source="ours: as much as a page quotes",
        doc="Largest share of text in lines of another language."),
    Rule(name="short", measure="words", limit="min_words", default=50, source=GOPHER, type=NonNegativeInt,
        doc="Fewest words of a document."),
    Rule(name="short", measure="chars", limit="min_chars", source=SWALLOW, type=NonNegativeInt,
        doc="Fewest characters of a document."),
    Rule(name="short", measure="japanese_chars", limit="min_japanese_chars", source=SWALLOW, type=NonNegativeInt,
        doc="Japanese: fewest kana, kanji and Japanese punctuation marks."),
    Rule(name="script", measure="script", limit="min_script", default=0.5, source="Swallow, arXiv:2404.17733",
        doc="Least share of letters that belong to the language's script."),
    Rule(name="spelling", measure="own_letters", limit="min_own_letters", source="the pack", set_in="identification"),
    Rule(name="long", measure="words", limit="max_words", default=100_000, source=GOPHER, type=PositiveInt,
        doc="Most words of a document."),
    # First of the word rules, because odd lengths are a consequence of this damage.
    Rule(name="isolated", measure="isolated", limit="max_isolated", default=0.05, source="ours, measured on Azerbaijani",
        doc="Largest share of words that are one stray letter or hold a lost one (U+FFFD), the marks of damaged text."),
    Rule(name="word_length", measure="mean_word_length", limit="min_mean_word_length", default=2, type=NonNegativeFloat,
        source="ours: FineWeb2's least of all languages with spaces",
        doc="Least mean length of its words, in characters."),
    Rule(name="word_length", measure="mean_word_length", limit="max_mean_word_length", default=14, type=PositiveFloat,
        source="ours: FineWeb2's most of all languages with spaces",
        doc="Largest mean length of its words, in characters."),
    # A longer word is data. datatrove has the same number.
    Rule(name="word_length", measure="longest_word", limit="max", default=1_000, source=C4, set_in="nowhere"),
    Rule(name="alpha", measure="alpha_words", limit="min_alpha_words", default=0.7,
        source="FineWeb2: .7 to .8 for most languages", doc="Least share of words that hold a letter."),
    Rule(name="stop_words", measure="stop_words", limit="min_stop_words", default=0, source="ours: none are known",
        type=NonNegativeInt, doc="Fewest different stop words of the language."),
    Rule(name="symbols", measure="hashes", limit="max_hashes", default=0.1, source=GOPHER_SYMBOLS, type=NonNegativeFloat,
        doc="Most `#` for each word."),
    Rule(name="symbols", measure="ellipses", limit="max_ellipses", default=0.1, source=GOPHER_SYMBOLS,
        type=NonNegativeFloat, doc="Most `...` and `…` for each word."),
    Rule(name="bullet_lines", measure="bullet_lines", limit="max_bullet_lines", default=0.9, source=GOPHER_SYMBOLS,
        doc="Largest share of lines that begin with a bullet."),
    Rule(name="ellipsis_lines", measure="ellipsis_lines", limit="max_ellipsis_lines", default=0.3, source=GOPHER_SYMBOLS,
        doc="Largest share of lines that end in an ellipsis."),
    Rule(name="line_ends", measure="line_ends", limit="min_line_ends", source=FINEWEB,
        doc="Least share of lines that end as a sentence does."),
    # FineWeb2 has no limit of short lines.
    Rule(name="short_lines", measure="short_lines", limit="max_short_lines", source=FINEWEB,
        doc="Largest share of lines of at most 30 characters."),
    Rule(name="new_lines", measure="new_lines", limit="max_new_lines", default=0.3, source=FINEWEB, type=NonNegativeFloat,
        doc="Most line feeds for each word."),
    Rule(name="words_soup", measure="sentence_signs", limit="min_sentence_signs", default=0.04, source=FITTED,
        doc="Least stop words and sound beginnings of sentences, for each word; a list of keywords has few. Not judged in a "
        "language of which no stop words are known."),
    Rule(name="words_soup", measure="broken_sentences", limit="max_broken_sentences", default=0.3, source=FITTED,
        doc="Largest share of ends of sentences after which no sentence begins; shuffled words have most."),
    # Reported only, unless the recipe says otherwise: they were made for English, and drop pages with code and whole forums.
    Rule(name="c4_lines", measure="c4_lines", limit="min_c4_lines", default=0.5, source=C4, mode="report",
        doc="Least share of lines that C4 would keep."),
    Rule(name="c4_sentences", measure="c4_sentences", limit="min_c4_sentences", default=5, source=C4, mode="report",
        type=NonNegativeInt, doc="Fewest sentences in lines that C4 would keep."),
    Rule(name="curly_brackets", measure="curly_brackets", limit="max_curly_brackets", default=0, source=C4, mode="report",
        type=NonNegativeInt, doc="Most `{` in a document."),
    Rule(name="lorem_ipsum", measure="lorem_ipsum", limit="max_lorem_ipsum", default=0, source=C4, mode="report",
        type=NonNegativeInt, doc="Most times that a document says `lorem ipsum`."),
    Rule(name="long_lines", measure="long_lines", limit="min_long_lines", default=3, source=MC4, mode="report",
        type=NonNegativeInt, doc="Fewest lines of at least 200 characters."),
    Rule(name="kana", measure="japanese", limit="min_japanese", source=SWALLOW,
        doc="Japanese: least share of kana, kanji and Japanese punctuation marks among the characters."),
    Rule(name="kana", measure="hiragana", limit="min_hiragana", source=SWALLOW,
        doc="Japanese: least share of hiragana among those."),
    Rule(name="kana", measure="katakana", limit="max_katakana", source=SWALLOW,
        doc="Japanese: largest share of katakana among those."),
    Rule(name="sentence_length", measure="words_per_sentence", limit="max_words_per_sentence", default=60, source=FITTED,
        type=PositiveFloat,
        doc="Most words for each end of a sentence, counting one more end where the text begins as a sentence does; text "
        "without marks, such as recognized speech, has hardly any."),
    Rule(name="sentence_length", measure="mean_sentence", limit="min_mean_sentence", source=SWALLOW,
        type=NonNegativeFloat, doc="Japanese: least mean length of a sentence, in characters."),
    Rule(name="sentence_length", measure="mean_sentence", limit="max_mean_sentence", source=SWALLOW, type=PositiveFloat,
        doc="Japanese: largest mean length of a sentence, in characters."),
    Rule(name="sentence_length", measure="longest_sentence", limit="max_longest_sentence", source=SWALLOW,
        type=PositiveInt, doc="Japanese: characters of the longest sentence."),
    Rule(name="ellipsis_sentences", measure="ellipsis_sentences", limit="max_ellipsis_sentences", source=SWALLOW,
        doc="Japanese: largest share of sentences that end in `…` or `・`."),
    Rule(name="duplicate_lines", measure="duplicate_lines", limit="max_duplicate_lines", default=0.3, source=GOPHER,
        doc="Largest share of lines that repeat an earlier line."),
    Rule(name="duplicate_line_chars", measure="duplicate_line_chars", limit="max_duplicate_line_chars", default=0.1,
        source=FINEWEB2, doc="Largest share of characters in lines that repeat an earlier line."),
    Rule(name="duplicate_paragraphs", measure="duplicate_paragraphs", limit="max_duplicate_paragraphs", default=0.3,
        source=GOPHER, doc="Largest share of paragraphs that repeat an earlier one."),
    Rule(name="duplicate_paragraphs", measure="duplicate_paragraph_chars", limit="max_duplicate_paragraph_chars",
        default=0.2, source=GOPHER, doc="Largest share of characters in paragraphs that repeat an earlier one."),
    # Lines have the keys of sentences.
    Rule(name="duplicate_sentences", measure="duplicate_swallow_lines", limit="max_duplicate_sentences", source=SWALLOW),
    Rule(name="duplicate_sentences", measure="duplicate_swallow_line_chars", limit="max_duplicate_sentence_chars",
        source=SWALLOW),
    Rule(name="duplicate_sentences", measure="duplicate_sentences", limit="max_duplicate_sentences", source=SWALLOW,
        doc="Japanese: largest share of sentences, and of lines, that repeat an earlier one."),
    Rule(name="duplicate_sentences", measure="duplicate_sentence_chars", limit="max_duplicate_sentence_chars",
        source=SWALLOW, doc="Japanese: largest share of characters in these."),
    Rule(name="top_ngram", measure="top_2gram", limit="max_top_ngram", default=0.2, source=GOPHER,
        doc="Largest share of characters in the most frequent word 2-gram."),
    *_ngrams("top_ngram", "top_{}gram", {3: 0.18, 4: 0.18}, GOPHER,
        "Largest share of characters in the most frequent word {}-gram."),
    Rule(name="duplicate_ngrams", measure="duplicate_5grams", limit="max_duplicate_ngrams", default=0.3, source=FINEWEB2,
        doc="Largest share of characters in repeated word 5-grams."),
    *_ngrams("duplicate_ngrams", "duplicate_{}grams", {6: 0.27, 7: 0.25, 8: 0.23, 9: 0.2, 10: 0.18}, TURKIC,
        "Largest share of characters in repeated word {}-grams."),
    *_ngrams("top_char_ngram", "top_char_{}gram", dict.fromkeys(range(2, 5)), SWALLOW,
        "Japanese: largest share of the most frequent among all {}-grams of characters."),
    *_ngrams("duplicate_char_ngrams", "duplicate_char_{}grams", dict.fromkeys(range(5, 11)), SWALLOW,
        "Japanese: largest share of the different {}-grams of characters that come twice or more."),
    Rule(name="ng_words", measure="ng_words", limit="max_ng_words", default=0.05, source=SWALLOW,
        doc="Largest share of letters in words of `clean.ng_words`. Source: Swallow, arXiv:2404.17733."),
    Rule(name="quality", measure="quality", limit="min_quality", default=0.5, source="ours",
        doc="Least score of `clean.quality_model`."),
)  # fmt: skip
"""From cheap to dear to explain. The first enforced rule that a document breaks is the reason why it is dropped.

Language comes first, so that the later limits, which were fitted to the language, judge its text only.
"""
MODES = {rule.name: rule.mode for rule in RULES}
"""Rule -> mode, in the same order."""
KEYS = {rule.limit: rule for rule in RULES if rule.set_in == "recipe"}
"""Key of `clean.rules` -> its record."""
if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(MODES)]


def limits_model(base: type[BaseModel], *, has_defaults: bool) -> Any:
    """A model with a field for each key, whose default is the rule's or None."""
    fields: dict[str, Any] = {
        key: (rule.type | None, Field(rule.default if has_defaults else None, description=rule.doc))
        for key, rule in KEYS.items()
    }
    return create_model("Limits", __base__=base, **fields)
