"""Candidates of each strategy from a corpus's word counts: trained once, cut to every size."""

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from anadil.core.errors import DataError, RecipeError
from anadil.recipe.sections import PUBLISHED_VOCABULARY, Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.text.cut_patterns import ALPHABET, QWEN_3_5_REGEX, Merge, cut_by, cut_of_new_vocabulary
from anadil.text.pieces import UnfitPieces, has_pieces, piece_symbols
from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    extend_vocabulary,
    missing_letters,
    replace_vocabulary,
    with_all_bytes,
)
from anadil.tokenizer.surgery import BanList, characters, plan_surgery, pruned_base
from anadil.tokenizer.usage import SweepUsage
from anadil.tokenizer.word_counts import WordCounts

log = logging.getLogger(__name__)

AUTO_SHARES = (4, 2, 1)
"""Parts of the size that the corpus supports, which `vocab_sizes: auto` compares. Assumption."""
SIZE_STEP = 128
"""Sizes of `auto` are multiples of it, as fast matrix products want them. Source: NVIDIA, "Matrix Multiplication
Background User's Guide", section 4.1 (64 for bf16 on A100; 128 leaves it to be shared by two devices)."""
WORDS_WITH_MARKS = ("की", "कु", "e\u0301e")
"""A letter with a spacing mark, with a non-spacing one, and one that could be written as a single character."""

KeepCounts = Mapping[str, int]
"""Word counts of the texts of `tokenizer.keep`: pretoken in byte symbols -> how often it occurs."""
NOTHING_TO_EXCHANGE = (
    "tokenizer.strategies: surgery: the base has no token of a script that neither the corpus nor tokenizer.keep "
    "uses, so nothing can be exchanged; leave it out"
)
Maker = Callable[[Tokenizer, WordCounts, tuple[int, ...], Settings, KeepCounts], Iterator[TokenizerCandidate]]
"""Called with the base, the counts, the sizes (none: as many as the corpus supports), the recipe's section, and counts of `tokenizer.keep`."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One strategy's tokenizers: trained once, cut to every size."""

    strategy: Strategy
    settings: Settings
    counts: WordCounts
    merges: list[Merge]
    """Merges of the largest tokenizer."""
    make: Callable[[int], Tokenizer]
    """Number of merges -> tokenizer."""
    least: int = 0
    """Size of a vocabulary without merges, where the size counts it."""

    def candidates(
        self, sizes: tuple[int, ...], *, most: int | None = None,
        is_alike: Callable[[str], bool] | None = None,
    ) -> Iterator[TokenizerCandidate]:  # fmt: skip
        """A candidate of each size, or without sizes of those that the corpus supports.

        `most` is the number of tokens that the base can exchange, None for no limit, and `is_alike` that of `SweepUsage`.
        """
        whole, floor = self.make(len(self.merges)), _floor(sizes, self.settings)
        usage = SweepUsage(
            whole, self.counts, self.merges, self.least, min_uses=self.settings.min_uses, is_alike=is_alike
        )
        for size in sizes or self._auto_sizes(usage.of(whole, len(self.merges)).supported_size):
            asked = size if most is None else min(size, most)
            if asked < size:
                log.warning(
                    "surgery: asked for %d tokens, but only %d of the base's can be exchanged", size, asked
                )
            num = min(max(size - self.least, 0), len(self.merges))
            got = self.least + num
            if got < asked:
                log.warning(
                    "%s: asked for %d tokens, the corpus gives %d (no other pair occurs %d times); "
                    "give more text or smaller tokenizer.vocab_sizes",
                    self.strategy, asked, got, floor,
                )  # fmt: skip
            tokenizer = whole if num == len(self.merges) else self.make(num)
            yield TokenizerCandidate(
                strategy=self.strategy, asked=size, got=got, tokenizer=tokenizer, usage=usage.of(tokenizer, num)
            )  # fmt: skip

    def _auto_sizes(self, supported: int) -> tuple[int, ...]:
        """The size that the corpus supports, and parts of it, ascending; none where it supports no token."""
        parts = (supported // share for share in AUTO_SHARES)
        # A step would be a large share of a small size.
        rounded = {size // SIZE_STEP * SIZE_STEP if size >= 8 * SIZE_STEP else size for size in parts}
        sizes = tuple(sorted(size for size in rounded if size > self.least))
        if sizes:
            listed = ", ".join(map(str, sizes))
            log.info("%s: the corpus supports %d; sizes %s", self.strategy, supported, listed)
        else:
            log.warning(
                "%s: the corpus uses no new token %d times, so there is no candidate; give more text or name "
                "tokenizer.vocab_sizes",
                self.strategy, self.settings.min_uses,
            )  # fmt: skip
        return sizes


def extensions(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates that add `sizes` tokens to the base's."""
    if settings.prune:
        base = pruned_base(base, counts.items(), keep.items())
    banned, floor = BanList(keep), _floor(sizes, settings)
    is_banned: Callable[[str], bool] = banned
    letters: list[str] = []
    if has_pieces(base):
        content = json.loads(base.to_str())
        is_unfit = UnfitPieces(content)
        is_banned = lambda token: banned(piece_symbols(token)) or is_unfit(token)  # noqa: E731  a choice of two
        lacking = missing_letters(content["model"]["vocab"], characters(counts.items()), settings.min_uses)
        letters = [letter for letter in lacking if not is_banned(letter)]
    base = with_all_bytes(base, letters)
    merges = continue_merges(base, counts, max(sizes, default=PUBLISHED_VOCABULARY), floor, is_banned)
    sweep = Sweep("extend", settings, counts, merges, lambda num: extend_vocabulary(base, merges[:num]))
    yield from sweep.candidates(sizes)


def surgeries(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates that exchange `sizes` of the base's tokens, which neither corpus nor kept texts can hold."""
    surgery = plan_surgery(base, counts.items(), keep.items(), settings.min_uses)
    most = surgery.room
    log.info("surgery: %s tokens of the base are of scripts that nothing uses", f"{most:,}")
    if not most:
        if settings.choice == "surgery" or set(settings.strategies) == {"surgery"}:
            raise DataError(NOTHING_TO_EXCHANGE)
        log.warning("%s", NOTHING_TO_EXCHANGE)
        return
    largest = min(most, max(sizes, default=most))
    merges = continue_merges(surgery.reduced, counts, largest, _floor(sizes, settings), surgery.is_banned)
    sweep = Sweep("surgery", settings, counts, merges, lambda num: surgery.exchanged(merges[:num]))
    # A word of an unused script may need tokens that only the larger exchange takes out.
    yield from sweep.candidates(sizes, most=most, is_alike=surgery.alphabet.spells)


def replacements(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates of `sizes` tokens that replace the base's, special tokens included."""
    del keep  # nothing of the base's vocabulary is
    least = _least_size(base)
    largest = max(sizes, default=PUBLISHED_VOCABULARY)
    log.info("training a vocabulary of %d tokens", largest)
    trained = train_vocabulary(counts, largest - least + len(ALPHABET), _floor(sizes, settings))
    sweep = Sweep(
        "replace", settings, counts, trained.merges,
        lambda num: replace_vocabulary(base, *trained.cut(len(ALPHABET) + num)), least,
    )  # fmt: skip
    yield from sweep.candidates(sizes)


def _floor(sizes: tuple[int, ...], settings: Settings) -> int:
    # Named sizes are made in full, with tokens as rare as that takes. `auto` makes none that is used too seldom.
    return settings.min_frequency if sizes else settings.min_uses


def _least_size(base: Tokenizer) -> int:
    return len(ALPHABET) + len(base.get_added_tokens_decoder())


MAKERS: Mapping[Strategy, Maker] = {"extend": extensions, "replace": replacements, "surgery": surgeries}


def recut_base(base: Tokenizer, *, has_marks: bool = False) -> Tokenizer:
    """The base's tokenizer with the pre-tokenizer of a new vocabulary; `has_marks`: combining marks stay with their letters."""
    content = json.loads(base.to_str())

    def with_cut(cut: dict[str, Any]) -> Tokenizer:
        if cut == content["pre_tokenizer"]:
            return base
        recut = Tokenizer.from_str(json.dumps(content | {"pre_tokenizer": cut}, ensure_ascii=False))
        recut.encode_special_tokens = True
        return recut

    recut = with_cut(cut_of_new_vocabulary(content["pre_tokenizer"]))
    # Qwen 3.5's expression keeps marks with their letters, and tokenizers, gigatoken and llama.cpp all know it.
    # It cuts texts without marks as Qwen's, so digits are single.
    return with_cut(cut_by(QWEN_3_5_REGEX)) if has_marks and cuts_at_marks(recut) else recut


def cuts_at_marks(tokenizer: Tokenizer) -> bool:
    """Return True if a text is cut between a letter and its vowel sign or accent: no token can hold both."""
    return any(len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) > 1 for word in WORDS_WITH_MARKS)


def mark_share(characters: Counter[str]) -> float:
    """Share of combining marks among counted letters and marks."""
    kinds: Counter[str] = Counter()
    for character, count in characters.items():
        kinds[unicodedata.category(character)[0]] += count
    return kinds["M"] / max(1, kinds["L"] + kinds["M"])


def require_room(base: Tokenizer, sizes: tuple[int, ...]) -> None:
    """Check that vocabularies of these sizes can replace the base's."""
    least = _least_size(base)
    if sizes and min(sizes) < least:
        raise RecipeError(
            f"tokenizer.vocab_sizes: {min(sizes)} is too small to replace this base's vocabulary; "
            f"{len(ALPHABET)} bytes and {least - len(ALPHABET)} special tokens need at least {least}"
        )
