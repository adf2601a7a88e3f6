"""Figures that compare models and tokenizers: pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anadil.core.errors import DataError

SURE_DOCUMENTS = 100  # Fewer scored documents than these make an interval that says little
NORMAL_QUANTILE = 1.96  # The standard normal distribution at 97.5 %
MAX_ALTERED = 0.01  # Share of documents that a tokenizer may fail to give back before they are an error
MAX_LOOP_TOKENS = 32
MIN_LOOP_REPEATS = 4


def scores_other_text(num_altered: int, num_documents: int) -> bool:
    """Return True if a tokenizer alters so many documents that bits per byte would count other text than is scored."""
    return num_altered > math.ceil(MAX_ALTERED * num_documents) or 0 < num_altered == num_documents


def fertility(num_tokens: int, num_words: int) -> float:
    """Tokens per word, without special tokens; lower is better. Words are those of the text's language."""
    if num_words == 0:
        raise DataError("fertility: the text has no words; give held-out text")
    return num_tokens / num_words


def words_in_context(context: int, tokens_per_word: float) -> int:
    """Words that fit into `context` tokens."""
    return int(context / tokens_per_word)


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Turn summed cross-entropy into bits per UTF-8 byte; lower is better.

    Perplexity per token rewards a vocabulary for cutting text coarsely. Bits per byte does not, so it can compare a model
    before and after its tokenizer changed.

    `nats` are summed over the tokens of the text, without special tokens.

    Source: Gao et al. 2020, "The Pile", arXiv:2101.00027, section 3.1.
    """
    if num_bytes == 0:
        raise DataError("bits per byte: the text has no bytes; give held-out text")
    return nats / math.log(2) / num_bytes


def deciding_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """The figures of `scores.json` by which whole runs are compared, such as `bits_per_byte/adapted`."""
    figures: dict[str, Any] = {"gate_passed": _table(scores, "gate").get("passed")}
    for name, table in _table(scores, "candidates").items():
        for key in ("bits_per_byte", "fertility"):
            figures[f"{key}/{name}"] = table.get(key) if isinstance(table, dict) else None
        for code, value in _table(table, "retained").items():
            figures[f"retained_{code}/{name}"] = value
        figures[f"loop_rate/{name}"] = _table(_table(table, "repetition"), "greedy").get("loop_rate")
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _table(node: object, key: str) -> dict[str, Any]:
    """A table inside a table; an empty one if something else or nothing is there."""
    inner = node.get(key) if isinstance(node, Mapping) else None
    return inner if isinstance(inner, dict) else {}


def distinct(tokens: Sequence[int], n: int) -> float:
    """Share of different n-grams among all n-grams; 0 for a text shorter than n.

    Source: Li et al. 2016, "A Diversity-Promoting Objective Function", arXiv:1510.03055.
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def is_loop(tokens: Sequence[int]) -> bool:
    """Return True if a text ends in a loop: its last 1 to 32 tokens come four times or more."""
    for length in range(1, MAX_LOOP_TOKENS + 1):
        if len(tokens) < length * MIN_LOOP_REPEATS:
            return False
        tail = list(tokens[-length:])
        ends = range(len(tokens) - length * MIN_LOOP_REPEATS, len(tokens), length)
        if all(list(tokens[i : i + length]) == tail for i in ends):
            return True
    return False


def share_interval(share: float | None, count: float | None) -> tuple[float, float] | None:
    """95 % interval of a share of `count` texts.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    return None if share is None or not count else _wilson(share, count)


def clustered_share(wins: Sequence[int], votes: Sequence[int]) -> tuple[float | None, list[float] | None]:
    """Return a share of votes and its 95 % interval. Votes on one thing count as less than on as many.

    Source: Korn and Graubard 1998, "Confidence Intervals for Proportions with Small Expected Number of Positive
    Counts Estimated from Survey Data", for the effective number of votes.
    """
    total = sum(votes)
    if not total:
        return None, None
    share = sum(wins) / total
    variance = sum((won - share * num) ** 2 for won, num in zip(wins, votes, strict=True)) / total**2
    # Votes that are all alike have no variance: the judges may only repeat each other.
    alike = math.isclose(variance, 0, abs_tol=1e-15)
    effective = sum(num > 0 for num in votes) if alike else min(total, share * (1 - share) / variance)
    return share, [*careful_interval(share, effective)]


def share_figures(marks: Sequence[bool]) -> dict[str, Any]:
    """Share of marks that are set, their number, and its 95 % interval."""
    share = sum(marks) / len(marks) if marks else None
    return {"value": share, "num": len(marks), "interval": share_interval(share, len(marks))}


def careful_interval(share: float, count: float) -> tuple[float, float]:
    """95 % interval of a share of `count` votes, with half a vote more at either end.

    Of 40 votes with a true share of 0.7, the interval without that holds it 94.4 times in 100.

    Source: Newcombe 1998, "Two-Sided Confidence Intervals for the Single Proportion", method 4.
    """
    half = 0.5 / count
    return _wilson(max(0.0, share - half), count)[0], _wilson(min(1.0, share + half), count)[1]


def _wilson(share: float, count: float) -> tuple[float, float]:
    square = NORMAL_QUANTILE**2
    middle = share + square / (2 * count)
    reach = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    low, high = ((middle + side * reach) / (1 + square / count) for side in (-1, 1))
    return max(0.0, low), min(1.0, high)


def paired_share_difference(
    before: Sequence[bool], after: Sequence[bool]
) -> tuple[float, tuple[float, float]]:
    """Share of the second marks less that of the first, of the same items, with its 95 % interval.

    Source: Agresti and Min 2005, "Simple improved confidence intervals for comparing matched proportions": half a pair more
    of each kind, so that pairs without a difference still leave an interval.
    """
    pairs = list(zip(before, after, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    count = len(pairs) + 2
    middle = (gained - lost) / count
    reach = NORMAL_QUANTILE * math.sqrt((gained + lost + 1) / count - middle**2) / math.sqrt(count)
    return (gained - lost) / len(pairs), (max(-1.0, middle - reach), min(1.0, middle + reach))
