"""Token ids of texts, one way for corpus, evaluation, fertility and chats: exact, then fast.

The ids are those of the tokenizers library. gigatoken gives them many times as fast if a tokenizer's merges can be
written as ranks. A sample is compared each time.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anadil.core.errors import DataError
from anadil.text.cut_patterns import (
    ALPHABET,
    NEW_LEADS,
    NEW_LETTERS,
    JsonObject,
    known_pattern,
    pre_tokenizer_parts,
)
from anadil.text.pieces import BLANK, BYTE_TOKENS, REPLACES, blanks_fault, is_of_pieces, normalizer_parts

if TYPE_CHECKING:
    import gigatoken
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

Ids = NDArray[np.int32]

FAST_FROM_CHARS = 1_000_000
"""Text from which on the fast way is worth its start, a second with 128,000 tokens."""
FORGET_CHARS = 1_000_000_000
"""Text after which the fast way is restarted: gigatoken keeps each different word, some 80 bytes of it."""
COMPARED = 100  # One text of so many is encoded by both libraries, the first of all too
WORDS_AT_ONCE = 10_000
SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeRanks:
    """A vocabulary in the order of merging, without gaps."""

    ids: NDArray[np.int32]
    """(ranks,): the token's id, which may stand in another order and with gaps."""
    content: str
    """`tokenizer.json` with ranks as ids, and without normalizer, added tokens and what adds BOS."""
    of_pieces: bool = False
    """A vocabulary of SentencePiece's kind."""


def ranks_of(tokenizer: "Tokenizer") -> BpeRanks | str:
    """The ranks of a tokenizer, or why gigatoken would not give its ids.

    gigatoken joins two neighbours if their joined bytes are a token, the one of least rank first, and takes a whole word
    that is a token at once. `tokenizers` joins by a list of pairs. Both do the same if a token's rank is the place of the
    first pair that makes it. A token that no pair makes comes last: with `ignore_merges` a whole word may be one, without it
    nothing can. Added tokens have no rank, so no text becomes one.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    if is_of_pieces(content):
        return _piece_ranks(content)
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(setting):
            return f"its model has {setting}"
    if known_pattern(content.get("pre_tokenizer")) is None:
        return "its text is cut by a pattern that is not known here"
    added = {token["content"] for token in content.get("added_tokens") or ()}
    vocab: dict[str, int] = {
        symbols: index for symbols, index in model["vocab"].items() if symbols not in added
    }
    alphabet = set(ALPHABET)
    if not alphabet <= vocab.keys():
        return "its vocabulary lacks some of the 256 bytes"
    tokenize = tokenizer.model.tokenize
    order = dict.fromkeys(ALPHABET)
    # Files of older versions hold `left right`.
    merged = (pair.replace(" ", "") if isinstance(pair, str) else "".join(pair) for pair in model["merges"])
    order |= dict.fromkeys(symbols for symbols in merged if symbols in vocab)
    if model.get("ignore_merges"):
        whole = sorted(vocab.keys() - order.keys(), key=vocab.__getitem__)
        order |= dict.fromkeys(symbols for symbols in whole if alphabet.issuperset(symbols))
    elif any(len(tokenize(symbols)) > 1 for symbols in order):
        return "some of its tokens are not what their own text is merged to"
    cuts = pre_tokenizer_parts(content["pre_tokenizer"])
    # gigatoken would find added tokens and add BOS even if asked not to.
    bare = {name: content[name] for name in ("version", "decoder")} | {
        "added_tokens": [],
        # gigatoken knows no sequence of one.
        "pre_tokenizer": content["pre_tokenizer"] if len(cuts) > 1 else cuts[0],
        "model": model | {"vocab": {symbols: rank for rank, symbols in enumerate(order)}},
    }
    return BpeRanks(
        content=json.dumps(bare, ensure_ascii=False),
        ids=np.array([vocab[symbols] for symbols in order], dtype=np.int32),
    )


def _piece_ranks(content: JsonObject) -> BpeRanks | str:
    """The same of a vocabulary of SentencePiece's kind, for which gigatoken takes its pairs and ids as they are."""
    if fault := blanks_fault(content):
        return fault
    vocab = content["model"]["vocab"]
    if not vocab.keys() >= BYTE_TOKENS.keys():
        return "its vocabulary lacks some of the 256 bytes"
    if REPLACES not in normalizer_parts(content):
        return "its pre-tokenizer writes spaces otherwise behind an added token than before it"
    bare = content | {"post_processor": None, "added_tokens": []}
    return BpeRanks(
        content=json.dumps(bare, ensure_ascii=False),
        ids=np.arange(max(vocab.values()) + 1, dtype=np.int32),
        of_pieces=True,
    )


class Encoder:
    """Token ids of texts, without BOS and EOS; special tokens in a text are read as their letters."""

    def __init__(self, tokenizer: "Tokenizer", *, threads: int = 1, reads_special: bool = False) -> None:
        """An encoder with the ids of a tokenizer, in which nothing truncates or pads from now on; `threads` texts at a time.

        With `reads_special` the letters of a special token are that token: for text of this program's own only, since
        outside text could end a turn.
        """
        # tokenizer.json may ask for both, and ids would be cut or filled without a word.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._threads = threads
        self._fast: _FastEncoder | None = None
        # gigatoken knows no added tokens.
        self._reads_special = self._started = reads_special
        self._num_chars = self._num_texts = 0
        self.difference = ""
        """Where the fast way gave other ids, which ended it; empty where it did not."""

    @property
    def is_fast(self) -> bool:
        """True if text goes the fast way, which it does not before there is enough of it."""
        return self._fast is not None

    def begin_sample(self) -> None:
        """Compare the next text: one file's sample says nothing of the next file."""
        self._num_texts = 0
        # gigatoken cannot empty its cache, so a new one is made.
        if self._num_chars > FORGET_CHARS:
            self._started = self._reads_special or bool(self.difference)
            self._fast, self._num_chars = None, FAST_FROM_CHARS

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        return self.encode_sized(texts)[0]

    def encode_sized(self, texts: Sequence[str]) -> tuple[list[Ids], list[int]]:
        """The ids of each text, and its UTF-8 bytes, which are known anyway; raises as `encode`."""
        utf8 = _utf8_of(texts)
        return self._encode(texts, utf8), list(map(len, utf8))

    def _encode(self, texts: Sequence[str], utf8: Sequence[bytes]) -> list[Ids]:
        # Place of the next text to compare, however large the batches before were.
        first = -self._num_texts % COMPARED
        self._num_texts += len(texts)
        self._num_chars += sum(map(len, texts))
        if not self._started and self._num_chars >= FAST_FROM_CHARS:
            self._start()
        if self._fast is None:
            return self._exact(texts)
        encoded = self._fast.encode(texts, utf8, self._threads)
        chosen = range(first, len(texts), COMPARED)
        compared = self._exact([texts[index] for index in chosen])
        for index, expected in zip(chosen, compared, strict=True):
            if not np.array_equal(encoded[index], expected):
                self._give_up(texts[index])
                return self._exact(texts)
        return encoded

    def check(self, texts: Iterable[str]) -> bool:
        """Return True if the fast way, if any, gives the ids of `tokenizers` for every text; else see `difference`."""
        if not self._started:
            self._start()
        rest = iter(texts)
        while self._fast is not None and (some := list(islice(rest, WORDS_AT_ONCE))):
            encoded = self._fast.encode(some, _utf8_of(some), self._threads)
            for text, ids, expected in zip(some, encoded, self._exact(some), strict=True):
                if ids.tobytes() != expected.tobytes():  # ten times as fast as NumPy's comparison
                    self._give_up(text)
                    break
        return not self.difference

    def _start(self) -> None:
        self._started = True
        ranks = ranks_of(self._tokenizer)
        gigatoken = ranks if isinstance(ranks, str) else _gigatoken_of(ranks)
        if isinstance(ranks, str) or isinstance(gigatoken, str):
            log.debug("encoding by tokenizers: %s", gigatoken)
            return
        self._fast = _FastEncoder(ranks, gigatoken, self._tokenizer, self._exact)

    def _give_up(self, text: str) -> None:
        self._fast = None
        self.difference = (
            f"the fast encoder gives other token ids than tokenizers for {_shortened(text)}; encoding by tokenizers, "
            "which takes several times as long"
        )
        log.warning("%s", self.difference)

    def _exact(self, texts: Sequence[str]) -> list[Ids]:
        tokenizer = self._tokenizer
        before = tokenizer.encode_special_tokens
        # Without it `<|eot_id|>` in a text is found as a token.
        tokenizer.encode_special_tokens = not self._reads_special
        try:
            encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        finally:
            tokenizer.encode_special_tokens = before
        return [np.array(one.ids, dtype=np.int32) for one in encoded]


class _FastEncoder:
    """gigatoken with the ranks of a tokenizer; `tokenizers` does what it cannot do."""

    def __init__(
        self, ranks: BpeRanks, gigatoken: "gigatoken.Tokenizer", tokenizer: "Tokenizer",
        exact: Callable[[Sequence[str]], list[Ids]],
    ) -> None:  # fmt: skip
        self._ids = ranks.ids
        self._are_ranks = bool((ranks.ids == np.arange(len(ranks.ids))).all())
        self._content = ranks.content
        # One for each thread that encodes: gigatoken refuses a second caller while it fills its cache.
        self._idle = [gigatoken]
        # gigatoken writes the spaces of pieces itself, three times as fast.
        self._normalizer = None if ranks.of_pieces else tokenizer.normalizer
        self._of_pieces = ranks.of_pieces
        self._exact = exact
        added = {
            token: index for index, token in tokenizer.get_added_tokens_decoder().items() if not token.special
        }
        # Those that nothing but their own letters decide are cut out here, as `tokenizers` does. Gemma's line ends are such.
        self._cut_ids = {token.content: np.array([index], dtype=np.int32) for token, index in added.items()
                         if ranks.of_pieces and not (token.normalized or token.lstrip or token.rstrip or token.single_word)}  # fmt: skip
        self._cut = re.compile(f"({_any_of(self._cut_ids)})") if self._cut_ids else None
        sought = [token.content for token in added if token.content not in self._cut_ids]
        sought += [
            self._normalized(content).replace(" ", BLANK) if ranks.of_pieces else self._normalized(content)
            for content in sought
        ]
        self._sought = re.compile(_any_of(sought)) if sought else None

    def encode(self, texts: Sequence[str], utf8: Sequence[bytes], threads: int) -> list[Ids]:
        """The ids of each text, given its bytes too, so that nothing is written in UTF-8 twice."""
        if threads == 1 or len(texts) == 1:
            return list(map(self._encode, texts, utf8))
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self._encode, texts, utf8))

    def _normalized(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))

    def _encode(self, text: str, utf8: bytes) -> Ids:
        if self._cut is not None and len(parts := self._cut.split(text)) > 1:
            ids = [
                self._cut_ids[part] if number % 2 else self._encode_part(part, part.encode())
                for number, part in enumerate(parts)
                if part
            ]
            return np.concatenate(ids)
        return self._encode_part(text, utf8)

    def _encode_part(self, text: str, utf8: bytes) -> Ids:
        normalized = self._normalized(text)
        if self._sought is not None and (self._sought.search(text) or self._sought.search(normalized)):
            return self._exact([text])[0]
        if normalized is not text:
            utf8 = normalized.encode()
        # gigatoken knows a newer Unicode, so these letters are cut otherwise. The bytes are a first, fast look.
        if not self._of_pieces and any(map(utf8.__contains__, NEW_LEADS)) and NEW_LETTERS.search(normalized):
            return self._exact([text])[0]
        # Both are one step of the interpreter, so that two threads never take the same.
        try:
            idle = self._idle.pop()
        except IndexError:
            # At most one for each thread over the whole run: a new one reads the vocabulary again.
            idle = _gigatoken(self._content)
        ranks = idle.encode(utf8)
        self._idle.append(idle)
        return ranks.view(np.int32) if self._are_ranks else self._ids[ranks]


def _any_of(texts: Iterable[str]) -> str:
    """The pattern of any of some texts, of several at a place the longest."""
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


def _gigatoken(content: str) -> "gigatoken.Tokenizer":
    from gigatoken import Tokenizer as Gigatoken

    return Gigatoken.from_json(content)


def _gigatoken_of(ranks: BpeRanks) -> "gigatoken.Tokenizer | str":
    try:
        return _gigatoken(ranks.content)
    except (ImportError, RuntimeError, ValueError) as error:
        return str(error)


def _utf8_of(texts: Iterable[str]) -> list[bytes]:
    utf8 = []
    for text in texts:
        try:
            utf8.append(text.encode())
        except UnicodeEncodeError as error:
            raise DataError(
                f"text {_shortened(text)}: character {error.start} is half a surrogate pair, U+{ord(text[error.start]):04X}; "
                "write the text as UTF-8"
            ) from None
    return utf8


def _shortened(text: str) -> str:
    return ascii(text[:SHOWN_CHARS]) + ("..." if len(text) > SHOWN_CHARS else "")
