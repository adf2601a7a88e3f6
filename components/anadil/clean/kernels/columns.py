"""The statistics of a document: a column of the matrix that the kernels fill, in this order.

Shares are 0 to 1. Lengths are code points. What a language does not measure is nan, which breaks no limit.
"""

import math

from anadil.text.filter_rules import RULES

# Docs of statistics that their names do not tell. `stats/` has had its columns in this order from the beginning.
MEASURED = {
    # Other steps fill these.
    "language": "1 if the text is in the language, or too short to tell; else 0.",
    "foreign": "Share of the text whose lines are in another language.",
    "quality": "Score of the user's own model, 0 to 1.",
    "ng_words": "Share of the letters of the script that are in words of the NG lists.",
    # Characters.
    "chars": "",
    "letters": "",
    "script": "Share of the letters in the language's script.",
    "own_letters": "Share of the letters that its neighbours do not write.",
    # Words.
    "words": "",
    "mean_word_length": "",
    "longest_word": "",
    "alpha_words": "Share of the words that hold a letter.",
    "isolated": "Share of the words that are one stray letter, hold U+FFFD, which stands for a character that was lost, or "
    "have letters of another alphabet (Latin, Greek, Cyrillic) between their own.",
    "stop_words": "Number of different stop words.",
    "stop_word_share": "",
    "hashes": "`#` for each word.",
    "ellipses": "`...` or `…` for each word.",
    "sentence_signs": "Stop words and sound beginnings of sentences, for each word: a list of keywords has neither.",
    "words_per_sentence": "Words over the ends of sentences, and one end more where the text does not begin with a small "
    "letter; half of one where there is none.",
    "broken_sentences": "Share of the ends of sentences inside a line after which no sentence begins; of one end more than "
    "there are. Where nearly all letters are small ones, sentences begin with those.",
    # Lines.
    "lines": "",
    "bullet_lines": "",
    "ellipsis_lines": "",
    "line_ends": "Share of the lines that end as a sentence does, counting one more that does: one line tells nothing.",
    "short_lines": "Share of the lines of at most 30 characters.",
    "new_lines": "Line feeds for each word; a blank line counts no more than the end of the line before it.",
    "long_lines": "Number of lines of at least 200 characters.",
    "c4_phrases": "Number of phrases for which C4 drops a line: `javascript`, `privacy policy` and the like.",
    "c4_lines": "Share of the lines that C4 would keep.",
    "c4_sentences": "Number of sentences in those.",
    "curly_brackets": "",
    "lorem_ipsum": "",
    # Repetition.
    "duplicate_lines": "",
    "duplicate_line_chars": "",
    "duplicate_paragraphs": "",
    "duplicate_paragraph_chars": "",
    **{f"top_{order}gram": "" for order in range(2, 5)},
    **{f"duplicate_{order}grams": "" for order in range(5, 11)},
    # Swallow's: characters and sentences.
    "japanese_chars": "Number of kana, kanji and Japanese commas and stops.",
    "japanese": "Share of the characters that are of these.",
    "hiragana": "Share of the Japanese characters.",
    "katakana": "",
    "mean_sentence": "",
    "longest_sentence": "",
    "ellipsis_sentences": "",
    "duplicate_swallow_lines": "",
    "duplicate_swallow_line_chars": "",
    "duplicate_sentences": "",
    "duplicate_sentence_chars": "",
    **{f"top_char_{order}gram": "" for order in range(2, 5)},
    **{
        f"duplicate_char_{order}grams": "Share of the different n-grams that come more than once."
        for order in range(5, 11)
    },
}
STATISTICS = tuple(dict.fromkeys((*MEASURED, *(rule.measure for rule in RULES))))
"""Names in the order of the columns; one that only a rule names comes last."""
COLUMN = {name: place for place, name in enumerate(STATISTICS)}
EXTERNAL = {"language": 1.0, "foreign": 0.0, "quality": math.nan, "ng_words": 0.0}
"""Columns that other steps fill -> the value that breaks no rule."""
