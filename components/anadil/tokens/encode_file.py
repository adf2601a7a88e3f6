"""Encodes one file of a corpus into a shard of token ids, in a process that loads neither torch nor transformers."""

import hashlib
import io
import os
import socket
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anadil.artifacts import sealed_dir
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_kind import stored_template
from anadil.artifacts.base_model import read_settings, read_tokenizer
from anadil.artifacts.base_vocabulary import END_OF_TEXT, SETTINGS, base_settings, frame_of, token_text
from anadil.core.errors import DataError
from anadil.core.json_text import write_json
from anadil.text.corpus import read_file, text_batches
from anadil.text.encoder import Encoder
from anadil.text.excluded import excluded_rows
from anadil.tokens.tensor_file import TensorWriter

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Tokens round documents."""

    begin: int
    """Id before each document: BOS, or the end of text in its place."""
    end: int
    """Id after each document."""
    bos: int | None
    """Id before each later piece of a document, where the tokenizer itself sets BOS before every text."""


def document_tokenizer(folder: Path) -> "tuple[Tokenizer, Frame]":
    """The tokenizer of a directory, and the tokens that it puts round documents."""
    tokenizer = read_tokenizer(folder)
    settings = {key: value for name in SETTINGS for key, value in read_settings(folder / name).items()}
    bos, eos = (token_text(settings.get(f"{role}_token")) for role in ("bos", "eos"))
    if not bos and not eos:
        known = base_settings(folder, tokenizer)
        bos, eos = (token_text(known.get(f"{role}_token")) for role in ("bos", "eos"))
    frame = frame_of(tokenizer.get_vocab(), bos, eos, str(stored_template(folder)))
    if frame is None:
        raise DataError(f"{folder}: tokenizer has neither {END_OF_TEXT} nor an eos_token; add one")
    begin, end = frame
    sets_it = settings.get("add_bos_token") or tokenizer.encode("a").ids[:1] == [begin]
    sets_bos = sets_it and tokenizer.id_to_token(begin) == bos
    return tokenizer, Frame(begin=begin, end=end, bos=begin if sets_bos else None)


BATCH_CHARS = 1_000_000
"""Text of one call, which spreads it over the threads of the process."""
SHARD, FACTS = "shard.safetensors", "facts.json"
"""Files of a task's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeTask:
    """One file of a corpus to encode."""

    file: Path
    folder: Path
    """Directory to make: shard, facts, manifest."""
    tokenizer: Path
    """Directory of the tokenizer."""
    frame: Frame
    """Tokens round documents."""
    threads: int
    """Texts at a time."""
    keeps_empty: bool
    """True if documents without a token stay, so that their bytes count."""
    excluded: Path | None
    """File of the documents that are left out: a JSON line for each, with `id` and `reason`."""
    most_tokens: int | None = None
    """Tokens after which the shard ends, with a whole document."""
    reads_special: bool
    """True if the letters of special tokens are these tokens: text that the base wrote itself."""
    origin: dict[str, str]
    """Settings that decide the shard."""

    @property
    def name(self) -> str:
        """Name for messages."""
        return str(self.file)


def encode_file_in_worker(task: EncodeTask) -> None:
    """`encode_file` in a process that does nothing else, with no more threads than the task says; raises as it does."""
    # Read by the library when it first encodes in a process. Not set in others: "true" takes away the library's guard of
    # forks, and a copy of a process that has encoded would wait for its threads for ever.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if task.threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(task.threads)
    encode_file(task)


def encode_file(task: EncodeTask) -> None:
    """Make the shard of one file of a corpus, unless it is there."""
    if sealed_dir.exists(task.folder):
        return
    encoder = _encoder(task.tokenizer, task.origin["tokenizer"], task.threads, task.reads_special)
    encoder.begin_sample()
    known = encoder.difference
    # The host is the owner: what a killed process has left goes when the host begins again, and never another's draft.
    with sealed_dir.create(task.folder, task.origin, socket.gethostname()) as draft:
        _write(task, encoder, draft)
        if encoder.difference != known:
            # Documents before the one that differs may differ too.
            _write(task, encoder, draft)


@lru_cache(1)
def _encoder(tokenizer: Path, digest: str, threads: int, reads_special: bool) -> Encoder:  # noqa: ARG001  of the cache's key
    return Encoder(document_tokenizer(tokenizer)[0], threads=threads, reads_special=reads_special)


def _write(task: EncodeTask, encoder: Encoder, draft: Path) -> None:
    starts, num_bytes = array("q", [0]), array("i")
    left_out = Counter[str]()
    ids_digest = hashlib.sha256()
    with TensorWriter(draft / SHARD) as out:
        for batch in _documents(task, encoder, left_out):
            data = b"".join(ids for ids, _ in batch)
            out.append(data)
            ids_digest.update(data)
            for ids, size in batch:
                starts.append(starts[-1] + len(ids) // 4)
                num_bytes.append(size)
        # Behind the ids, whose number is known only now: a shard is written as a stream.
        out.end_tensor("ids", "I32", (starts[-1],))
        out.write("starts", "I64", np.frombuffer(starts, dtype=np.int64))
        out.write("bytes", "I32", np.frombuffer(num_bytes, dtype=np.int32) if num_bytes else [])
    facts = {
        "documents": len(num_bytes),
        "tokens": starts[-1],
        "bytes": sum(num_bytes),
        "crc32": out.table_crc,
        "left_out": dict(left_out),
        "digest": _digest(starts, ids_digest.hexdigest()),
    }
    write_json(draft / FACTS, facts)


def _digest(starts: "array[int]", ids_sha256: str) -> str:
    """Digest of ids and borders, as releases up to 0.1 made it: their checkpoints name it."""
    # The header of a `.npy` file counts too, so one is written in memory.
    file = io.BytesIO()
    np.save(file, np.frombuffer(starts, dtype=np.int64), allow_pickle=False)
    content = file.getvalue()
    entries: dict[str, dict[str, str | int]] = {
        "ids.bin": {"bytes": 4 * starts[-1], "sha256": ids_sha256},
        "starts.npy": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
    }
    return Manifest(kind=sealed_dir.KIND, key="", origin={}, files=entries).digest


def _documents(
    task: EncodeTask, encoder: Encoder, left_out: Counter[str]
) -> Iterator[list[tuple[bytes, int]]]:
    """Batches of documents: ids with what stands round them, and bytes of text."""
    begin, end = (np.int32(index).tobytes() for index in (task.frame.begin, task.frame.end))
    tokens = 0
    for texts in text_batches(_texts(task, left_out), BATCH_CHARS):
        try:
            encoded, sizes = encoder.encode_sized(texts)
        except DataError as error:
            raise DataError(f"{task.file}: {error}") from None
        batch = [
            (begin + ids.tobytes() + end, size)
            for ids, size in zip(encoded, sizes, strict=True)
            if (size if task.keeps_empty else len(ids))
        ]
        left_out["empty"] += len(texts) - len(batch)
        if task.most_tokens is not None:
            ends = np.cumsum([len(ids) // 4 for ids, _ in batch]) + tokens
            room = int(np.searchsorted(ends, task.most_tokens, side="right"))
            if room < len(batch):
                yield batch[:room]
                return
            tokens = int(ends[-1]) if batch else tokens
        yield batch


def _texts(task: EncodeTask, left_out: Counter[str]) -> Iterator[str]:
    excluded = _excluded(task.excluded) if task.excluded else {}
    for document in read_file(task.file):
        if reason := excluded.get(document.id):
            left_out[reason] += 1
        else:
            yield document.text


@lru_cache(1)
def _excluded(path: Path) -> dict[str, str]:
    return {row["id"]: row["reason"] for row in excluded_rows(path.read_bytes(), path)}
