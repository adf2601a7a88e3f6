"""Exchange tokens of the base that nothing needs for new ones: the strategy `surgery`.

The vocabulary keeps its size, every other token its id and its row, and texts of the kept
languages their tokens. Tokens leave that neither a kept text nor the corpus can hold, the last
merged first, as many as there are new merges; those take their ids.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from anadil.core.errors import IntegrityError
from anadil.tokenizer.alphabet import Alphabet, characters, scripts_of
from anadil.tokenizer.ban_list import BanList
from anadil.tokenizer.candidate import JsonObject, Merges, checked_tokenizer, missing_bytes, vocab_size

Words = Iterable[tuple[str, int]]
"""A word-count table's items: pretoken in byte symbols, how often it occurs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surgery:
    """Plan of an exchange in a base's vocabulary."""

    base: Tokenizer
    removable: tuple[str, ...]
    """Tokens that may leave, in the order in which they do."""
    missing: tuple[str, ...]
    """Bytes that the base lacks; they come before any merge."""
    reduced: Tokenizer
    """The base without them, on which merges are continued; only its model is to be used."""
    alphabet: Alphabet
    banned: BanList

    @property
    def room(self) -> int:
        """The most merges that can be exchanged for tokens of the base."""
        return max(0, len(self.removable) - len(self.missing))

    def is_banned(self, token: str) -> bool:
        """True if a new token would change a kept text, or could only be in one of no use."""
        return self.banned(token) or not self.alphabet.spells(token)

    def exchanged(self, merges: Merges) -> Tokenizer:
        """The base's tokenizer with new merges, whose tokens take the ids of as many others.

        Args:
            merges: Those that continue `reduced`, at most as many as there is `room` for, or the first of them.

        Raises:
            IntegrityError: A new token cannot be reached by merging its bytes.
        """
        content = json.loads(self.base.to_str())
        added = [*self.missing, *(left + right for left, right in merges)]
        removed = self.removable[: len(added)]
        vocab = content["model"]["vocab"]
        ids = sorted(vocab[token] for token in removed)
        _remove(content, set(removed))
        vocab |= dict(zip(added, ids, strict=True))
        content["model"]["merges"] += merges
        special = {token["content"]: token["id"] for token in content["added_tokens"]}
        tokenizer = checked_tokenizer(content, special)
        _require_reachable(content, added)
        return tokenizer


def plan_surgery(base: Tokenizer, words: Words, keep: Words) -> Surgery:
    """Find the tokens that neither kept texts nor the corpus can hold.

    A script is in use if a letter in a thousand is of it; of the kept texts every single letter is.
    """
    keep = list(keep)
    of_kept = characters(keep)
    alphabet = Alphabet(scripts_of(of_kept) | scripts_of(characters(words)), of_kept)
    content = json.loads(base.to_str())
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    candidates = (token for token in _last_merged_first(content["model"]) if token not in added)
    # Single bytes stay: any text can be encoded with them.
    removable = tuple(token for token in candidates if len(token) > 1 and not alphabet.spells(token))
    _remove(content, set(removable))
    # Where ids are missing, special tokens get other ones unless the vocabulary says theirs.
    content["model"]["vocab"] |= added
    missing = missing_bytes(content["model"]["vocab"])
    first = vocab_size(base)
    content["model"]["vocab"] |= {symbol: first + number for number, symbol in enumerate(missing)}
    return Surgery(
        base=base,
        removable=removable,
        missing=tuple(missing),
        reduced=Tokenizer.from_str(json.dumps(content, ensure_ascii=False)),
        alphabet=alphabet,
        banned=BanList(word for word, _ in keep),
    )


def _last_merged_first(model: JsonObject) -> list[str]:
    """Tokens in an order in which each comes before those that it is made of."""
    made = {left + right: number for number, (left, right) in reversed([*enumerate(model["merges"])])}
    return sorted(model["vocab"], key=lambda token: (-made.get(token, len(made)), -model["vocab"][token]))


def _remove(content: JsonObject, tokens: set[str]) -> None:
    """Take tokens out of a tokenizer's JSON, with all merges that make or need them."""
    model = content["model"]
    model["merges"] = [
        (left, right)
        for left, right in model["merges"]
        if not (left in tokens or right in tokens or left + right in tokens)
    ]
    for token in tokens:
        del model["vocab"][token]


def _require_reachable(content: JsonObject, tokens: Sequence[str]) -> None:
    # Else a whole word that is a token would be found without a merge.
    merging = content | {"model": content["model"] | {"ignore_merges": False}}
    model = Tokenizer.from_str(json.dumps(merging, ensure_ascii=False)).model
    for token in tokens:
        pieces = [piece.value for piece in model.tokenize(token)]
        if pieces != [token]:
            raise IntegrityError(
                f"tokenizer: the new token {token!r} is out of reach, its bytes become {pieces}; "
                "leave surgery out of tokenizer.strategies, and report this base.model"
            )
