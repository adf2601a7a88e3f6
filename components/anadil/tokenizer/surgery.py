"""Take tokens of the base away that nothing needs: the strategy `surgery`, and `tokenizer.prune` for `extend`.

Surgery exchanges tokens that neither a kept text nor the corpus can hold, last merged first, for as many new ones. The
vocabulary keeps its size, every other token its id and row, and kept texts their tokens. A pruned base is smaller:
each token less saves a row of the embedding and of the softmax.
"""

import codecs
import itertools
import json
import logging
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tokenizers import Tokenizer

from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import MIB
from anadil.text.cut_patterns import to_bytes, to_text
from anadil.text.letters import NAMES, name_of
from anadil.text.pieces import UnfitPieces, is_of_pieces, symbols_by
from anadil.tokenizer import candidate as candidates

log = logging.getLogger(__name__)

SCRIPTS = frozenset(itertools.chain.from_iterable(NAMES.values()))
"""Scripts by the first word of their letters' names; signs, digits and emoji have none of these."""
MIN_SHARE = 0.001
"""Least share of a text's letters for their script to be in use, not a name or a quotation. Assumption."""
LAST_LETTER = 0x2FFFF  # Code points beyond hold the rarest Chinese characters, and no scripts
INSIDE = bytes(range(0x80, 0xC0))
"""Bytes that continue a character in UTF-8."""


def characters(words: Iterable[tuple[str, int]]) -> Counter[str]:
    """Count the characters of a word-count table, whose pretokens are in byte symbols."""
    counts: Counter[str] = Counter()
    for word, count in words:
        for character in to_text(word):
            counts[character] += count
    return counts


def scripts_of(counts: Counter[str]) -> set[str]:
    """Scripts of at least one letter in a thousand among counted characters."""
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        scripts[name_of(character)] += count
    letters = {name: count for name, count in scripts.items() if name in SCRIPTS}
    least = MIN_SHARE * sum(letters.values())
    return {name for name, count in letters.items() if count >= least}


class Alphabet:
    """All characters but letters of scripts that are not in use."""

    def __init__(self, scripts: Iterable[str], letters: Iterable[str] = ()) -> None:
        """List what whole and cut characters look like in UTF-8. `letters` are single ones of scripts that are not in use."""
        self._foreign = SCRIPTS - set(scripts)
        self._letters = frozenset(letters)
        self._parts: set[bytes] = set()
        """Pieces of the UTF-8 of one character that begin or end inside it."""
        # A token may begin and end inside a character, so every piece of an allowed one is listed.
        for point in range(0x80, LAST_LETTER + 1):
            if not 0xD800 <= point < 0xE000 and self.has(chr(point)):
                encoded = chr(point).encode()
                self._parts.update(
                    encoded[start:end]
                    for start in range(len(encoded))
                    for end in range(start + 1, len(encoded) + 1)
                )

    def has(self, character: str) -> bool:
        """Return True if a text may hold the character."""
        return (
            ord(character) > LAST_LETTER
            or character in self._letters
            or unicodedata.name(character, "").partition(" ")[0] not in self._foreign
        )

    def spells(self, token: str) -> bool:
        """Return True if a text may hold a token, in byte symbols, which may begin and end inside a character."""
        text = to_bytes(token)
        body = text.lstrip(INSIDE)
        head = text[: len(text) - len(body)]
        try:
            whole, num_bytes = codecs.utf_8_decode(body, "strict", False)
        except UnicodeDecodeError:
            return False
        cut = (head, body[num_bytes:])
        return all(map(self.has, whole)) and all(piece in self._parts for piece in cut if piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostScript:
    """Tokens of one script that the base has and a candidate lacks.

    No text of the script is at hand, or the tokens would have been needed. Their own cost says what such text costs.
    """

    tokens: int
    cost: float
    """Mean number of the candidate's tokens for the text of one of them."""


def lost_scripts(base: Tokenizer, candidate: Tokenizer) -> dict[str, LostScript]:
    """Script, such as `Cyrillic` -> its lost tokens, most first; pieces of letters have no script and do not count."""
    vocab = candidate.get_vocab(with_added_tokens=True)
    costs: dict[str, list[int]] = defaultdict(list)
    symbols = symbols_by(base)
    for token in base.get_vocab(with_added_tokens=False):
        if token in vocab:
            continue
        text = to_text(symbols(token))
        script = next((name for name in map(name_of, text) if name in SCRIPTS), "")
        if script and "\ufffd" not in text:
            costs[script.capitalize()].append(len(candidate.model.tokenize(token)))
    lost = {name: LostScript(tokens=len(each), cost=round(fmean(each), 2)) for name, each in costs.items()}
    return dict(sorted(lost.items(), key=lambda pair: (-pair[1].tokens, pair[0])))


def lost_text(lost: Mapping[str, LostScript]) -> str:
    """Words for people; empty where nothing is lost."""
    return ", ".join(
        f"{script} {each.tokens:,} (a text that was one of them takes {each.cost:g})"
        for script, each in lost.items()
    )


LEAST_KEPT_BYTES = MIB
"""Least size of the kept texts for pruning: most words of a language do not occur in less. Assumption."""
Words = Iterable[tuple[str, int]]
"""A word-count table's items: pretoken in byte symbols, how often it occurs."""


class BanList:
    """All strings within the pretokens of a sample; called with a token, it tells if it is one of them.

    A new token can stand in a word only if the word holds its string. Without such tokens each word of the sample
    keeps its own. On GPT-2 extended by 8,000 tokens a sample of 3 MB left 98 % of other English documents as they
    were, instead of 75 %.
    """

    def __init__(self, pretokens: Iterable[str]) -> None:
        """Sort the ends of all pretokens, in byte symbols, each once. Memory: some 25 MB for 3 MB of prose."""
        # Each part of a pretoken begins one of its ends.
        self._ends = sorted({word[start:] for word in pretokens for start in range(len(word))})

    def __call__(self, token: str) -> bool:
        """Return True if some pretoken holds the token."""
        place = bisect_left(self._ends, token)
        return place < len(self._ends) and self._ends[place].startswith(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surgery:
    """Plan of an exchange in a base's vocabulary."""

    base: Tokenizer
    removable: tuple[str, ...]
    """Tokens that may leave, in the order in which they do."""
    missing: tuple[str, ...]
    """Bytes or, of pieces, letters that the base lacks; they come before any merge."""
    reduced: Tokenizer
    """The base without them, on which merges are continued; only its model is to be used."""
    alphabet: Alphabet
    is_banned: Callable[[str], bool]
    """True for a new token that would change a kept text, or holds a letter of an unused script."""

    @property
    def room(self) -> int:
        """The most merges that can be exchanged for tokens of the base."""
        return max(0, len(self.removable) - len(self.missing))

    def exchanged(self, merges: candidates.Merges) -> Tokenizer:
        """The base's tokenizer with new merges, the first `room` of those that continue `reduced`."""
        content = json.loads(self.base.to_str())
        added = [*self.missing, *(left + right for left, right in merges)]
        removed = self.removable[: len(added)]
        vocab = content["model"]["vocab"]
        ids = sorted(vocab[token] for token in removed)
        _remove(content, set(removed))
        vocab |= dict(zip(added, ids, strict=True))
        candidates.add_merges(content, merges[: len(removed) - len(self.missing)])
        special = {token["content"]: token["id"] for token in content["added_tokens"]}
        tokenizer = candidates.checked_tokenizer(content, special)
        _require_reachable(content, added)
        return tokenizer


def plan_surgery(base: Tokenizer, words: Words, keep: Words, least: int = 1) -> Surgery:
    """Find the tokens that neither kept texts nor the corpus can hold. Letters with `least` uses come into pieces.

    A script is in use if a letter in a thousand is of it; of the kept texts every single letter is.
    """
    keep = list(keep)
    of_kept, of_corpus = characters(keep), characters(words)
    alphabet = Alphabet(scripts_of(of_kept) | scripts_of(of_corpus), of_kept)
    content, symbols = json.loads(base.to_str()), symbols_by(base)
    of_pieces = is_of_pieces(content)
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    merges, vocab = content["model"]["merges"], content["model"]["vocab"]
    made = {left + right: number for number, (left, right) in reversed([*enumerate(merges)])}
    # Each token comes before those that it is made of.
    last = -1 if of_pieces else len(made)  # letters of pieces are made by nothing
    ordered = sorted(vocab, key=lambda token: (-made.get(token, last), -vocab[token]))
    # Single bytes stay: any text can be encoded with them.
    removable = tuple(
        token
        for token in ordered
        if token not in added and len(symbols(token)) > 1 and not alphabet.spells(symbols(token))
    )
    is_unfit = UnfitPieces(content) if of_pieces else None
    _remove(content, set(removable))
    # Where ids are missing, special tokens get other ones unless the vocabulary says theirs.
    content["model"]["vocab"] |= added
    banned = BanList(word for word, _ in keep)

    def is_banned(token: str) -> bool:
        written = symbols(token)
        return banned(written) or not alphabet.spells(written) or (is_unfit is not None and is_unfit(token))

    missing = candidates.missing_bytes(vocab)
    if of_pieces:
        letters = candidates.missing_letters(vocab, of_corpus, least)
        missing = [letter for letter in letters if not is_banned(letter)]
    first = candidates.vocab_size(base)
    content["model"]["vocab"] |= {symbol: first + number for number, symbol in enumerate(missing)}
    return Surgery(
        base=base, removable=removable, missing=tuple(missing),
        reduced=Tokenizer.from_str(json.dumps(content, ensure_ascii=False)), alphabet=alphabet, is_banned=is_banned,
    )  # fmt: skip


def _remove(content: candidates.JsonObject, tokens: set[str]) -> None:
    model = content["model"]
    model["merges"] = [
        (left, right)
        for left, right in model["merges"]
        if not (left in tokens or right in tokens or left + right in tokens)
    ]
    for token in tokens:
        del model["vocab"][token]


def _require_reachable(content: candidates.JsonObject, tokens: Sequence[str]) -> None:
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


def pruned_base(
    base: Tokenizer, words: Iterable[tuple[str, int]], keep: Iterable[tuple[str, int]]
) -> Tokenizer:
    """The base's tokenizer without unused tokens; ids are renumbered, special tokens last.

    What a used token is made of stays, so every text of the kept sample and of the corpus is cut as before. Other words of
    the kept languages may take more tokens afterwards. `words` and `keep` hold pretokens in byte symbols and their counts.
    """
    keep = list(keep)
    num_bytes = sum(len(word) * count for word, count in keep)
    if num_bytes < LEAST_KEPT_BYTES:
        raise DataError(
            f"tokenizer.prune: the texts of tokenizer.keep have {num_bytes:,} bytes, and tokens that such a short sample "
            f"does not use may well be needed; name files of at least {LEAST_KEPT_BYTES:,} bytes in tokenizer.keep, "
            "or set tokenizer.prune to false"
        )
    content = json.loads(base.to_str())
    model = content["model"]
    parts: dict[str, list[str]] = defaultdict(list)
    for left, right in model["merges"]:
        parts[left + right] += (left, right)
    needed: set[str] = set()
    queue = {token.value for each in (words, keep) for word, _ in each for token in base.model.tokenize(word)}
    while queue:
        token = queue.pop()
        needed.add(token)
        queue.update(part for part in parts.get(token, ()) if part not in needed)
    special = {token["content"] for token in content["added_tokens"]}
    old = sorted(model["vocab"], key=model["vocab"].__getitem__)
    # All bytes stay, or some text could not be encoded.
    staying = [token for token in old if token not in special and (len(token) == 1 or token in needed)]
    vocab = {token: index for index, token in enumerate(staying)}
    merges = [(left, right) for left, right in model["merges"] if {left, right, left + right} <= vocab.keys()]
    log.info("left out %s tokens of the base that no text uses", f"{len(old) - len(staying):,}")
    return candidates.replace_vocabulary(base, vocab, merges)
