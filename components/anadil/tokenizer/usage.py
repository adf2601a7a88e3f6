"""Uses of a candidate's tokens in the corpus: too rare a token cannot be learnt."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tokenizers import Tokenizer

from anadil.text.cut_patterns import Merge
from anadil.text.pieces import tokenize_by
from anadil.tokenizer.word_counts import WordCounts

MIN_SHARE = 0.9
"""Share of its own tokens that a candidate should have seen `tokenizer.min_uses` times. Assumption."""
RARE = (10, 100, 1_000, 10_000)
"""Uses below which tokens are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Uses of a candidate's tokens in the training text; its own tokens are those that its own merges make."""

    own_tokens: int
    """Those that the base does not have (extend, surgery), or all but bytes and special tokens (replace)."""
    own_tokens_seen: int
    """Own tokens seen `min_uses` times or more."""
    supported_size: int
    """Largest size, as `tokenizer.vocab_sizes` means it, of which 90 % would be seen so often."""
    min_uses: int
    """`tokenizer.min_uses`, with which this was counted."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """Counts over the whole vocabulary without special tokens: how many `tokens`, `never` used, and used `under_10` times,
    `under_100` and so on, those never used included."""

    @property
    def is_enough(self) -> bool:
        """True if 90 % of the own tokens are seen `min_uses` times."""
        return self.own_tokens_seen >= MIN_SHARE * self.own_tokens


def usage_in(entry: Mapping[str, Any]) -> TokenUsage | None:
    """The usage in a candidate's entry of `fertility.json`; None where it was not counted."""
    if "own_tokens" not in entry:
        return None
    return TokenUsage(**{each.name: entry[each.name] for each in fields(TokenUsage)})


class SweepUsage:
    """Uses of the tokens of the largest tokenizer of a sweep, and of the smaller ones.

    Without its last merge a BPE leaves that token's two parts where it stood, so one count tells the uses of all sizes.
    """

    def __init__(
        self, largest: Tokenizer, counts: WordCounts | Mapping[str, int], merges: Sequence[Merge] = (),
        other: int = 0, *, min_uses: int, is_alike: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        """Count the uses of the tokens of the largest tokenizer."""
        self._merges, self._other, self._min_uses = merges, other, min_uses
        alike = ((word, count) for word, count in counts.items() if is_alike is None or is_alike(word))
        self._uses = _uses(largest, alike)
        self._rest = [item for item in counts.items() if is_alike and not is_alike(item[0])]

    def of(self, tokenizer: Tokenizer, size: int) -> TokenUsage:
        """The usage of the tokenizer that has the first `size` of the merges."""
        uses = self._uses.copy()
        for left, right in reversed(self._merges[size:]):
            freed = uses.pop(left + right, 0)
            uses[left] += freed
            uses[right] += freed
        uses.update(_uses(tokenizer, self._rest))
        # Training sets special tokens by their ids, so no count of words holds them.
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        vocabulary = tokenizer.get_vocab(with_added_tokens=False).keys() - special
        counts = [uses[token] for token in vocabulary]
        table = {"tokens": len(counts), "never": counts.count(0)}
        table |= {f"under_{limit}": sum(number < limit for number in counts) for limit in RARE}
        # Two merges may give the same token; the first one made it.
        merges = dict[str, Merge]()
        for left, right in self._merges[:size]:
            merges.setdefault(left + right, (left, right))
        seen = sum(uses[token] >= self._min_uses for token in merges)
        return TokenUsage(
            own_tokens=len(merges),
            own_tokens_seen=seen,
            supported_size=self._other + _supported(merges, uses, seen, self._min_uses),
            min_uses=self._min_uses,
            uses=table,
        )


def _uses(tokenizer: Tokenizer, items: Iterable[tuple[str, int]]) -> Counter[str]:
    uses: Counter[str] = Counter()
    tokenize = tokenize_by(tokenizer)
    for word, count in items:
        for token in tokenize(word):
            uses[token.value] += count
    return uses


def _supported(merges: Mapping[str, Merge], uses: Counter[str], seen: int, min_uses: int) -> int:
    """Number of merges, from the first on, that the corpus supports."""
    tokens = list(merges)
    while tokens and seen < MIN_SHARE * len(tokens):
        token = tokens.pop()
        freed = uses.pop(token, 0)
        seen -= freed >= min_uses
        for part in merges[token]:
            seen += part in merges and uses[part] < min_uses <= uses[part] + freed
            uses[part] += freed
    return len(tokens)
