"""How each strategy makes its candidates of a corpus's word counts: trained once, cut to every size."""

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from anadil.core.errors import DataError, RecipeError
from anadil.recipe.sections import PUBLISHED_VOCABULARY, Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.text.byte_symbols import ALPHABET
from anadil.text.cut_patterns import QWEN_3_5_REGEX, cut_by, cut_of_new_vocabulary
from anadil.tokenizer.ban_list import BanList
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    extend_vocabulary,
    replace_vocabulary,
    vocab_size,
    with_all_bytes,
)
from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.prune import pruned_base
from anadil.tokenizer.surgery import plan_surgery
from anadil.tokenizer.train_bpe import train_vocabulary
from anadil.tokenizer.usage import SweepUsage, TokenUsage
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
Maker = Callable[[Tokenizer, WordCounts, tuple[int, ...], Settings, KeepCounts], Iterator[TokenizerCandidate]]
"""Called with the base, the counts, the sizes (none: as many as the corpus supports), the recipe's section, and counts of `tokenizer.keep`."""


def extensions(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates that add `sizes` tokens to the base's."""
    if settings.prune:
        base = pruned_base(base, counts.items(), keep.items())
    base = with_all_bytes(base)
    # Named sizes are made in full, with tokens as rare as that takes. `auto` makes none that is used too seldom.
    floor = settings.min_frequency if sizes else settings.min_uses
    merges = continue_merges(base, counts, max(sizes, default=PUBLISHED_VOCABULARY), floor, BanList(keep))
    whole = extend_vocabulary(base, merges)
    usage = SweepUsage(whole, counts, merges, min_uses=settings.min_uses)
    for size in sizes or _auto_sizes("extend", usage.of(whole, len(merges)), 0):
        tokenizer = whole if size >= len(merges) else extend_vocabulary(base, merges[:size])
        got = warn_of_fewer("extend", size, min(size, len(merges)), floor)
        yield TokenizerCandidate(
            strategy="extend", asked=size, got=got, tokenizer=tokenizer, usage=usage.of(tokenizer, size)
        )


NOTHING_TO_EXCHANGE = (
    "tokenizer.strategies: surgery: the base has no token of a script that neither the corpus nor tokenizer.keep "
    "uses, so nothing can be exchanged; leave it out"
)


def surgeries(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates that exchange `sizes` of the base's tokens, which neither corpus nor kept texts can hold.

    Where there are none, and other strategies are compared, a warning says so.

    Raises:
        DataError: There are none, and nothing else is asked for.
    """
    surgery = plan_surgery(base, counts.items(), keep.items())
    most = surgery.room
    log.info("surgery: %s tokens of the base are of scripts that nothing uses", f"{most:,}")
    if not most:
        if settings.choice == "surgery" or set(settings.strategies) == {"surgery"}:
            raise DataError(NOTHING_TO_EXCHANGE)
        log.warning("%s", NOTHING_TO_EXCHANGE)
        return
    floor = settings.min_frequency if sizes else settings.min_uses
    largest = min(most, max(sizes, default=most))
    merges = continue_merges(surgery.reduced, counts, largest, floor, surgery.is_banned)
    whole = surgery.exchanged(merges)
    # A word of an unused script may need tokens that only the larger exchange takes out.
    usage = SweepUsage(whole, counts, merges, min_uses=settings.min_uses, is_alike=surgery.alphabet.spells)
    for size in sizes or _auto_sizes("surgery", usage.of(whole, len(merges)), 0):
        if size > most:
            log.warning(
                "surgery: asked for %d tokens, but only %d of the base's can be exchanged", size, most
            )
        tokenizer = whole if size >= len(merges) else surgery.exchanged(merges[:size])
        got = warn_of_fewer("surgery", min(size, most), min(size, len(merges)), floor)
        yield TokenizerCandidate(
            strategy="surgery", asked=size, got=got, tokenizer=tokenizer, usage=usage.of(tokenizer, size)
        )


def replacements(
    base: Tokenizer, counts: WordCounts, sizes: tuple[int, ...], settings: Settings, keep: KeepCounts
) -> Iterator[TokenizerCandidate]:
    """Candidates of `sizes` tokens that replace the base's, special tokens included."""
    del keep  # nothing of the base's vocabulary is
    num_special = len(base.get_added_tokens_decoder())
    # Bytes and special tokens are in a vocabulary of any size.
    least = len(ALPHABET) + num_special
    floor = settings.min_frequency if sizes else settings.min_uses
    largest = max(sizes, default=PUBLISHED_VOCABULARY)
    log.info("training a vocabulary of %d tokens", largest)
    trained = train_vocabulary(counts, largest - num_special, floor)
    whole = replace_vocabulary(base, *trained.cut(largest - num_special))
    usage = SweepUsage(whole, counts, trained.merges, least, min_uses=settings.min_uses)
    for size in sizes or _auto_sizes("replace", usage.of(whole, len(trained.merges)), least):
        vocab, merges = trained.cut(size - num_special)
        is_whole = len(merges) == len(trained.merges)
        tokenizer = whole if is_whole else replace_vocabulary(base, vocab, merges)
        got = warn_of_fewer("replace", size, vocab_size(tokenizer), floor)
        yield TokenizerCandidate(
            strategy="replace",
            asked=size,
            got=got,
            tokenizer=tokenizer,
            usage=usage.of(tokenizer, len(merges)),
        )


MAKERS: Mapping[Strategy, Maker] = {"extend": extensions, "replace": replacements, "surgery": surgeries}


def recut_base(base: Tokenizer, *, has_marks: bool = False) -> Tokenizer:
    """The base's tokenizer as `replace` changes it: with the pre-tokenizer of a new vocabulary.

    Of expressions that keep marks with their letters Qwen 3.5's is the one that the tokenizers library, gigatoken and
    llama.cpp all know. It is Qwen's for texts without marks, so digits are single.

    Args:
        base: Byte-level BPE.
        has_marks: The language writes combining marks, which then stay with their letters.
    """
    content = json.loads(base.to_str())
    recut = _with_cut(base, content, cut_of_new_vocabulary(content["pre_tokenizer"]))
    if not has_marks or not cuts_at_marks(recut):
        return recut
    return _with_cut(base, content, cut_by(QWEN_3_5_REGEX))


def cuts_at_marks(tokenizer: Tokenizer) -> bool:
    """True if a text is cut between a letter and its vowel sign or accent: no token can hold both."""
    return any(len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) > 1 for word in WORDS_WITH_MARKS)


def mark_share(characters: Counter[str]) -> float:
    """Share of combining marks among counted letters and marks."""
    kinds: Counter[str] = Counter()
    for character, count in characters.items():
        kinds[unicodedata.category(character)[0]] += count
    return kinds["M"] / max(1, kinds["L"] + kinds["M"])


def _with_cut(base: Tokenizer, content: dict[str, Any], cut: dict[str, Any]) -> Tokenizer:
    if cut == content["pre_tokenizer"]:
        return base
    recut = Tokenizer.from_str(json.dumps(content | {"pre_tokenizer": cut}, ensure_ascii=False))
    recut.encode_special_tokens = True
    return recut


def require_room(base: Tokenizer, sizes: tuple[int, ...]) -> None:
    """Check that vocabularies of these sizes can replace the base's.

    Raises:
        RecipeError: One has no room for the bytes and the base's special tokens.
    """
    num_special = len(base.get_added_tokens_decoder())
    least = len(ALPHABET) + num_special
    if sizes and min(sizes) < least:
        raise RecipeError(
            f"tokenizer.vocab_sizes: {min(sizes)} is too small to replace this base's vocabulary; "
            f"{len(ALPHABET)} bytes and {num_special} special tokens need at least {least}"
        )


def _auto_sizes(strategy: Strategy, usage: TokenUsage, least: int) -> tuple[int, ...]:
    """The size that the corpus supports, and parts of it, ascending; none where it supports no token.

    Args:
        strategy: Which candidates are made.
        usage: Of the largest vocabulary, none of whose pairs occurs less often than a token should be used.
        least: Size of a vocabulary without tokens of its own.
    """
    supported = usage.supported_size
    parts = (supported // share for share in AUTO_SHARES)
    # Of few tokens a step would be a large share.
    rounded = {size // SIZE_STEP * SIZE_STEP if size >= 8 * SIZE_STEP else size for size in parts}
    sizes = tuple(sorted(size for size in rounded if size > least))
    if sizes:
        log.info("%s: the corpus supports %d; sizes %s", strategy, supported, ", ".join(map(str, sizes)))
    else:
        log.warning(
            "%s: the corpus uses no new token %d times, so there is no candidate; give more text or name "
            "tokenizer.vocab_sizes",
            strategy, usage.min_uses,
        )  # fmt: skip
    return sizes


def warn_of_fewer(strategy: Strategy, asked: int, got: int, min_frequency: int) -> int:
    """`got`, after a warning where it is less than asked for: no library says so."""
    if got < asked:
        log.warning(
            "%s: asked for %d tokens, the corpus gives %d (no other pair occurs %d times); "
            "give more text or smaller tokenizer.vocab_sizes",
            strategy, asked, got, min_frequency,
        )  # fmt: skip
    return got
