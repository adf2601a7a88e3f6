"""How often the corpus uses the tokens that a candidate adds: too rare a token cannot be learnt."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

Merge = tuple[str, str]

MIN_USES = 100
"""Times that a token is seen in the training text from which on it counts as learnt. Assumption."""
MIN_SHARE = 0.9
"""Share of its own tokens that a candidate should have seen so often. Assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """The tokens that a candidate's own merges make, in the training text."""

    own_tokens: int
    """Those that the base does not have (extend), or all but bytes and special tokens (replace)."""
    own_tokens_seen: int
    """Of them, seen 100 times or more."""
    supported_size: int
    """Largest size, as `tokenizer.vocab_sizes` means it, of which 90 % would be seen so often."""

    @property
    def is_enough(self) -> bool:
        """Whether 90 % of the own tokens are seen 100 times."""
        return self.own_tokens_seen >= MIN_SHARE * self.own_tokens


def count_usage(
    tokenizer: Tokenizer, counts: Mapping[str, int], own: Sequence[Merge], other: int = 0
) -> TokenUsage:
    """Count the uses of a candidate's own tokens.

    Args:
        tokenizer: The candidate.
        counts: Pretoken in byte symbols -> how often it occurs in the training text.
        own: Its own merges, in order; a smaller size of the same corpus has the first of them.
        other: Tokens of a size beside those: bytes and special tokens, where the size counts them.
    """
    uses: Counter[str] = Counter()
    for word, count in counts.items():
        for token in tokenizer.model.tokenize(word):
            uses[token.value] += count
    # Two merges may give the same token; the first one made it.
    merges = dict[str, Merge]()
    for left, right in own:
        merges.setdefault(left + right, (left, right))
    seen = sum(uses[token] >= MIN_USES for token in merges)
    return TokenUsage(
        own_tokens=len(merges), own_tokens_seen=seen, supported_size=other + _supported(merges, uses, seen)
    )


def _supported(merges: Mapping[str, Merge], uses: Counter[str], seen: int) -> int:
    """How many of the merges, from the first on, the corpus supports.

    Without its last merge a BPE leaves that token's two parts where it stood, so the uses of every
    smaller vocabulary follow from those of the largest.
    """
    tokens = list(merges)
    while tokens and seen < MIN_SHARE * len(tokens):
        token = tokens.pop()
        freed = uses.pop(token, 0)
        seen -= freed >= MIN_USES
        for part in merges[token]:
            seen += part in merges and uses[part] < MIN_USES <= uses[part] + freed
            uses[part] += freed
    return len(tokens)
