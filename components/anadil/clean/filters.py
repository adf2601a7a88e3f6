"""Which documents are dropped, and why: each filter is a limit, and its name is the reason.

The first reason counts. Language comes first, so that the later limits, which were fitted to
the language, judge its text only.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from anadil.clean.language_id import IdentifiedLanguage, letter_shares
from anadil.recipe.sections import Rules
from anadil.text.language import FilterLimits, Language

DUPLICATE_NGRAM = 5
"""Words of the n-gram of `max_duplicate_ngrams`. Source: Gopher, arXiv:2112.11446, table A1."""
MIN_JUDGED_CHARS = 20
"""Nobody can tell the language of less; that is a matter of length."""
MAX_WORD_CHARS = 1_000
"""A longer word is data. Source: C4, arXiv:1910.10683, as datatrove has it."""


def limits_of(language: Language, rules: Rules) -> FilterLimits:
    """The language's own limits, with those that the recipe names in their place."""
    named = {key: value for key, value in rules.model_dump().items() if value is not None}
    own = {key: getattr(language.limits, key) for key in FilterLimits.__dataclass_fields__}
    return FilterLimits(**(own | named))


RULE_NAMES = (
    "empty", "language", "script", "spelling", "short", "long", "isolated", "word_length", "alpha", "stop_words",
    "duplicate_lines", "top_ngram", "duplicate_ngrams",
)  # fmt: skip


def drop_reason(text: str, found: IdentifiedLanguage, language: Language, limits: FilterLimits) -> str | None:
    """Why a normalized text is dropped, in one word; None if it is kept."""
    words = language.words(text)
    if not words:
        return "empty"
    if not found.is_language:
        is_judged = len(words) >= limits.min_words or (found.is_reliable and len(text) >= MIN_JUDGED_CHARS)
        return "language" if is_judged else "short"
    in_script, own = letter_shares(text, language)
    if in_script < limits.min_script:
        return "script"
    if own < language.min_own_letters:
        return "spelling"
    return _by_words(words, language, limits) or _by_repetition(text, words, limits)


def _by_words(words: Sequence[str], language: Language, limits: FilterLimits) -> str | None:
    num_words = len(words)
    if num_words < limits.min_words:
        return "short"
    if num_words > limits.max_words:
        return "long"
    # First of the word rules, because odd lengths are a consequence of this damage.
    counts = Counter(words)
    stray = sum(counts[letter] for letter in language.stray_letters)
    if stray > limits.max_isolated * num_words:
        return "isolated"
    lengths = [len(word) for word in words]
    mean = sum(lengths) / num_words
    if (
        not limits.min_mean_word_length <= mean <= limits.max_mean_word_length
        or max(lengths) > MAX_WORD_CHARS
    ):
        return "word_length"
    alpha = sum(count for word, count in counts.items() if any(map(str.isalpha, word)))
    if alpha < limits.min_alpha_words * num_words:
        return "alpha"
    folded = {language.fold(word).strip(".,;:!?\"'()«»“”") for word in counts}
    if len(folded & language.stop_words) < limits.min_stop_words:
        return "stop_words"
    return None


def _by_repetition(text: str, words: Sequence[str], limits: FilterLimits) -> str | None:
    if duplicate_line_share(text) > limits.max_duplicate_lines:
        return "duplicate_lines"
    if top_ngram_share(words) > limits.max_top_ngram:
        return "top_ngram"
    if duplicate_ngram_share(words) > limits.max_duplicate_ngrams:
        return "duplicate_ngrams"
    return None


def duplicate_line_share(text: str) -> float:
    """Share of the lines that repeat an earlier one; blank lines do not count.

    Source: Gopher, arXiv:2112.11446, table A1.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    return 1 - len(set(lines)) / len(lines) if lines else 0.0


def top_ngram_share(words: Sequence[str]) -> float:
    """Share of the words' characters in the most frequent 2-gram; 0 if none comes twice.

    Source: Gopher, arXiv:2112.11446, table A1.
    """
    total = sum(map(len, words))
    counts = Counter(pairwise(words))
    most = max((count * (len(a) + len(b)) for (a, b), count in counts.items() if count > 1), default=0)
    return most / total if total else 0.0


def duplicate_ngram_share(words: Sequence[str]) -> float:
    """Share of the words' characters inside 5-grams that an earlier one repeats, none counted twice.

    Source: Gopher, arXiv:2112.11446, table A1.
    """
    total = sum(map(len, words))
    seen: set[tuple[str, ...]] = set()
    repeated = 0
    covered = 0
    for start in range(len(words) - DUPLICATE_NGRAM + 1):
        ngram = tuple(words[start : start + DUPLICATE_NGRAM])
        if ngram in seen:
            repeated += sum(map(len, words[max(covered, start) : start + DUPLICATE_NGRAM]))
            covered = start + DUPLICATE_NGRAM
        seen.add(ngram)
    return repeated / total if total else 0.0
