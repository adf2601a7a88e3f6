"""One file of a corpus -> its token ids on disk, exactly as the tokenizer gives them, and faster.

Runs in processes of its own, one for each file at a time, which load neither torch nor
transformers. Words come again and again: in texts of languages that put spaces between words
each different word is encoded once and then looked up.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from anadil.artifacts import cache_dir
from anadil.artifacts.base_model import LLAMA_3_REGEX
from anadil.text.corpus import read_file

QWEN_REGEX = LLAMA_3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
"""Source: Qwen/Qwen2.5-0.5B, tokenizer.json."""
SEPARATE_AT_SPACES = (LLAMA_3_REGEX, QWEN_REGEX)
"""Patterns none of whose matches has a space after another character than a space."""
RARE_SPACES = re.compile("[\\s\u180e] |\0")
"""Texts in which not every space begins a word of its own: two spaces on end, a line that begins with one."""
BEFORE_SPACE = re.compile("(?<=[^\\s\u180e])(?= )")
BATCH_CHARS = 1_000_000
"""Text that is encoded by one call, which spreads it over the threads of the process."""
LONGEST_WORD = 100
"""Characters of the longest word that is kept for its next occurrence."""
MOST_WORDS = 500_000
"""Words kept, some 0.3 KB each, before all are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One file of a corpus to encode."""

    file: Path
    shard: Path
    """Directory to make: `ids.bin`, `starts.npy`, manifest."""
    tokenizer: str
    """The tokenizer, as its library writes it."""
    bos: int | None
    """Id before each document; None for none."""
    end: int
    """Id after each document."""
    origin: dict[str, str]
    """What decides the ids."""


class Encoder:
    """Token ids of texts, without BOS and EOS; special tokens in a text are read as their letters."""

    def __init__(self, tokenizer: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Without it `<|eot_id|>` in a text, where anybody may have written it, is found as a token.
        self._tokenizer.encode_special_tokens = True
        self.splits = separates_at_spaces(json.loads(tokenizer))
        """Whether words are looked up."""
        self._known: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, as the bytes of an array of int32."""
        if not self.splits:
            return self._encoded(texts)
        cut = [_words(text) for text in texts]
        unknown = list(set().union(*cut).difference(self._known))
        self._known.update(zip(unknown, self._encoded(unknown), strict=True))
        found = [b"".join(map(self._known.__getitem__, words)) for words in cut]
        if len(self._known) > MOST_WORDS:
            self._known.clear()
        for word in unknown:
            if len(word) > LONGEST_WORD:
                self._known.pop(word, None)
        return found

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32).tobytes() for encoding in encodings]


def separates_at_spaces(tokenizer: dict[str, Any]) -> bool:
    """Whether a text's ids are those of its words, one after another.

    So it is where nothing is done before the text is cut, where the cutting pattern is known to
    end a match before a space that follows anything but white space, and where no token is
    sought in the text as a whole.
    """
    ordinary = [token for token in tokenizer.get("added_tokens") or () if not token["special"]]
    model = tokenizer["model"]
    if tokenizer.get("normalizer") or ordinary or model.get("type") != "BPE" or model.get("dropout"):
        return False
    cutting = tokenizer.get("pre_tokenizer") or {}
    steps = cutting.get("pretokenizers", [cutting])
    *before, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return False
    if not before:
        return bool(last.get("use_regex", True))  # GPT-2's pattern, of the same kind
    split = before[0]
    return (
        len(before) == 1
        and not last.get("use_regex", True)
        and split.get("type") == "Split"
        and split.get("pattern", {}).get("Regex") in SEPARATE_AT_SPACES
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
    )


def _words(text: str) -> list[str]:
    """The text cut before each space that follows anything but white space."""
    if RARE_SPACES.search(text):
        return BEFORE_SPACE.split(text)
    return text.replace(" ", "\0 ").split("\0")


_encoders: dict[str, Encoder] = {}
_read: Any = None


def begin_process(read: Any, parent: int, threads: int) -> None:
    """Make a new process ready for `encode_file`.

    Args:
        read: Shared number, raised by the bytes of the corpus that are done.
        parent: Process whose end ends this one.
        threads: Threads of the tokenizer.
    """
    global _read  # noqa: PLW0603  the one place that a process pool leaves for it
    _read = read
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us
    if sys.platform.startswith("linux"):
        import ctypes

        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def encode_file(task: Task) -> None:
    """Make the shard of one file of a corpus, unless it is there.

    Raises:
        IntegrityError: The file is damaged.
        OSError: The disk is full, among others.
    """
    if cache_dir.is_there(task.shard):
        return
    starts = [0]
    with cache_dir.making(task.shard, task.origin) as draft:
        with (draft / "ids.bin").open("wb") as file:
            for ids in _documents(task):
                file.write(ids)
                starts.append(starts[-1] + len(ids) // 4)
        np.save(draft / "starts.npy", np.array(starts, dtype=np.int64), allow_pickle=False)


def _documents(task: Task) -> Iterator[bytes]:
    encoder = _encoders.get(task.tokenizer)
    if encoder is None:
        _encoders.clear()
        encoder = _encoders[task.tokenizer] = Encoder(task.tokenizer)
    begin = b"" if task.bos is None else np.int32(task.bos).tobytes()
    end = np.int32(task.end).tobytes()
    size, done = task.file.stat().st_size, 0
    chars = 0
    for texts in _batches(document.text for document in read_file(task.file)):
        for ids in encoder.encode(texts):
            if ids:
                yield begin + ids + end
        chars += sum(map(len, texts))
        # How much of the file is read is known only roughly, since it is compressed.
        now = min(size, chars // 4)
        _count(now - done)
        done = now
    _count(size - done)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _count(num: int) -> None:
    if _read is not None:
        with _read.get_lock():
            _read.value += num
