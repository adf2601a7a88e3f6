"""Rows of training, made of chats: read once, encoded, and stored on disk, so that memory does not grow with them.

Every chat goes into one file with its keys. Copies and questions of the evaluation are removed once all are known, so
that a copy of a held-out chat is found wherever it stands.
"""

import hashlib
import json
import logging
import os
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from anadil.artifacts.base_model import model_config
from anadil.artifacts.chat_files import read_chats, refuse_no_chats, refuse_unknown_mix
from anadil.artifacts.scored_text import documents_of
from anadil.core.errors import DataError
from anadil.finetune.encode import Example, encode_chats
from anadil.finetune.trainer import Mix
from anadil.runtime.job import Job
from anadil.text.chats import (
    HARMLESS,
    Chat,
    DroppedChats,
    Part,
    Reason,
    TopicColumns,
    fingerprint,
    folded,
    split_of,
)
from anadil.text.letters import letters_of

log = logging.getLogger(__name__)

Keys = npt.NDArray[np.uint64]

BANDS, ROWS = 6, 16
"""Chats of Jaccard similarity (1 / 6) ** (1 / 16) = 0.89 are found about half the time, of 0.7 one in 50. Chosen by
us: a template with another name in it is another chat."""
SHINGLE_CHARS = 8
"""Characters of a shingle, the same for languages that write no spaces."""
MIN_CHARS = 200
"""Shortest near copy: in a shorter chat another word or number is another question. Our choice."""
NUM_KEYS = 1 + BANDS
"""Keys of a chat: one of the whole text, and one of each band."""
SHINGLES_AT_A_TIME = 4_096
"""Bounds the memory of a long chat, such as a row of 10 MB."""
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_GENERATOR = np.random.default_rng(20240617)
_FACTORS = _GENERATOR.integers(0, 2**31, (BANDS * ROWS, 1), dtype=np.uint32) * np.uint32(2) + np.uint32(1)
_OFFSETS = _GENERATOR.integers(0, 2**32, (BANDS * ROWS, 1), dtype=np.uint32)


def keys_of(chat: Chat) -> Keys:
    """Return a key of the chat without case, blanks and punctuation, then one for each band; shape (7,)."""
    text = "\n".join(f"{message.role}\t{folded(message.content)}" for message in chat.messages)
    keys = np.full(NUM_KEYS, fingerprint(text), dtype=np.uint64)
    if len(text) < MIN_CHARS:
        return keys
    signature = np.full(BANDS * ROWS, 0xFFFFFFFF, dtype=np.uint32)
    # A hash of each run of eight characters, or of the whole text if it is shorter.
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    width = min(SHINGLE_CHARS, len(codes))
    hashes = np.zeros(len(codes) - width + 1, dtype=np.uint64)
    for place in range(width):
        hashes = (hashes + codes[place : place + len(hashes)]) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    shingles = (hashes >> np.uint64(32)).astype(np.uint32)
    for start in range(0, len(shingles), SHINGLES_AT_A_TIME):
        values = shingles[start : start + SHINGLES_AT_A_TIME] * _FACTORS + _OFFSETS
        values ^= values >> np.uint32(15)
        np.minimum(signature, values.min(axis=1), out=signature)
    bands = signature.reshape(BANDS, ROWS).astype(np.uint64)
    keys[1:] = np.arange(BANDS, dtype=np.uint64)
    for row in range(ROWS):
        keys[1:] = (keys[1:] ^ bands[:, row]) * MULTIPLIER
        keys[1:] ^= keys[1:] >> np.uint64(29)
    return keys


def repeats(
    keys: Sequence[Keys], ranks: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the chats that repeat another one, and of those that nearly do; they do not overlap."""
    # The chat of lower rank stays; among equal ranks, the earlier one.
    order = np.argsort(ranks, kind="stable")
    repeated = np.zeros((2, len(order)), dtype=np.bool_)
    for number, column in enumerate(keys):
        _, first, inverse = np.unique(column[order], return_index=True, return_inverse=True)
        repeated[min(number, 1), order] |= first[inverse] < np.arange(len(order))
    return repeated[0], repeated[1] & ~repeated[0]


Places = npt.NDArray[np.int64]
Fingerprints = npt.NDArray[np.uint64]

MANY_DROPPED = 0.1
"""Share of rows left out from which on the user is warned; a proposal, nothing is published."""
MAX_HELDOUT_CHATS = 2_000
"""Most rows of `heldout_chats.jsonl`, which `evaluate` asks one after another."""
NUM_SEEN_CHATS = 32
"""Rows of `seen_chats.jsonl`: chats that training saw, to be asked back."""
ROWS_AT_A_TIME = 256
PARTS: tuple[Part, ...] = ("heldout", "validation", "train")
"""Order of the parts: of two similar chats the one of the earlier part stays."""
TOKENS = ("input_ids", "labels")
TEXTS = ("source", "place", "chat")
KEYS = tuple(f"key_{number}" for number in range(NUM_KEYS))
SCHEMA = pa.schema(
    [
        *((name, pa.list_(pa.int32())) for name in TOKENS),
        ("part", pa.uint8()),
        *((name, pa.large_string()) for name in TEXTS),
        *((name, pa.uint64()) for name in KEYS),
    ]
)
assert set(PARTS) == set(get_args(Part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Chats to train on, to validate on and to ask; `train` and `validation` are read from disk."""

    train: Dataset
    """Columns `input_ids` and `labels`, each a list with a number for every token."""
    mix: Mix
    validation: Dataset
    """The same columns; empty without `finetune.validation_fraction`."""
    heldout: list[dict[str, Any]]
    """At most `MAX_HELDOUT_CHATS` of the chats that training never sees, as rows of `heldout_chats.jsonl`."""
    heldout_questions: Fingerprints
    """Fingerprint of the first question of each chat that training never sees."""
    digest: str
    """Digest of all ids, labels and their order, by which a checkpoint knows its rows."""


def read_rows(
    job: Job, tokenizer: PreTrainedTokenizerFast, dropped: DroppedChats, heldout: Sequence[Chat] = ()
) -> Rows:
    """Return every chat that can be trained on, as ids and labels; log the others.

    Writes `heldout_chats.jsonl` and `seen_chats.jsonl` beside the adapter.
    """
    settings, seed = job.recipe.finetune, job.recipe.seed
    path = rows_file(job, "rows")
    read = Counter[str]()
    letters = letters_of(job.recipe.language_code)
    chats = _counted(read_chats(job.files, dropped, columns=settings.columns, letters=letters), read)
    # The recipe may hold out another share by now.
    asked = {chat.id for chat in heldout}
    with _ChatFile(path) as file:
        for chat, example in _encoded(job, tokenizer, dropped, chain(heldout, chats)):
            part = split_of(chat, settings.validation_fraction, settings.heldout_fraction)
            file.add(chat, example, "heldout" if chat.id in asked else part)
    rows = Dataset.from_file(str(path))
    parts = _without_repeats(file, path, dropped)
    num_rows = sum(map(len, parts.values()))
    refuse_no_chats(job.files, max(0, num_rows - len(heldout)), dropped, columns=settings.columns)
    trained, mix = _mix(parts, rows, settings.mix, read)
    shown = mix.places(seed, 0)
    order = b"".join([file.digest.digest(), trained[shown].tobytes(), parts["validation"].tobytes()])
    result = Rows(
        train=rows.select_columns(list(TOKENS)).select(trained),
        mix=mix,
        validation=rows.select_columns(list(TOKENS)).select(parts["validation"]),
        heldout=_chats_of(rows, _sample(parts["heldout"], MAX_HELDOUT_CHATS, seed), file.topics),
        heldout_questions=np.frombuffer(file.first, dtype=np.uint64)[parts["heldout"]],
        digest=hashlib.sha256(order).hexdigest(),
    )
    _report(job, result, num_rows, dropped)
    # Only chats of the first epoch: a weight of `finetune.mix` may leave some out.
    seen = _chats_of(rows, _sample(np.unique(trained[shown]), NUM_SEEN_CHATS, seed), file.topics)
    for name, chosen in (("heldout_chats", result.heldout), ("seen_chats", seen)):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        (job.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return result


def rows_file(job: Job, name: str) -> Path:
    """Return where this process stores its rows: each of a group reads them for itself."""
    job.work.mkdir(parents=True, exist_ok=True)
    return job.work / f"{name}-{os.environ.get('RANK', '0')}.arrow"


class RowWriter:
    """An Arrow file, written row by row; memory holds `ROWS_AT_A_TIME`."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.digest = hashlib.sha256()
        """Digest over the `deciding` text of all rows."""
        self._path, self._schema = path, schema
        self._pending: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._sink = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, self._schema)
        return self

    def write(self, row: dict[str, Any], deciding: str) -> None:
        """Write a row; `deciding` enters the digest."""
        self.digest.update(deciding.encode())
        self._pending.append(row)
        if len(self._pending) == ROWS_AT_A_TIME:
            self._flush()

    def __exit__(self, *error: object) -> None:
        with self._sink:
            if error[0] is None:
                self._flush()
                self._writer.close()

    def _flush(self) -> None:
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._pending, schema=self._schema))
        self._pending.clear()


class _ChatFile(RowWriter):
    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA)
        self.later = array("Q")
        """Row and fingerprint of each question after the first of its chat, one after the other."""
        self.topics = TopicColumns()
        self.first = array("Q")
        """Fingerprint of each row's first question."""

    def add(self, chat: Chat, example: Example, part: Part) -> None:
        """Write one chat."""
        first, *later = (fingerprint(folded(question)) for question in chat.questions)
        for question in later:
            self.later.extend((len(self.first), question))
        self.first.append(first)
        self.topics.add(chat.topics)
        texts = (chat.source, chat.place, json.dumps(chat.as_row(), ensure_ascii=False))
        self.write(
            {"input_ids": example.input_ids, "labels": example.labels, "part": PARTS.index(part)}
            | dict(zip(TEXTS, texts, strict=True))
            | dict(zip(KEYS, keys_of(chat).tolist(), strict=True)),
            f"{example.input_ids}{example.labels}",
        )


def _encoded(
    job: Job, tokenizer: PreTrainedTokenizerFast, dropped: DroppedChats, chats: Iterable[Chat]
) -> Iterator[tuple[Chat, Example]]:
    settings = job.recipe.finetune
    limit = fitting_length(job, "finetune.max_length", settings.max_length)
    system = settings.system_text
    asked = (chat.with_system(system) for chat in EvaluationQuestions(job).without(chats, dropped))
    return encode_chats(tokenizer, asked, limit, dropped)


def fitting_length(job: Job, key: str, limit: int) -> int:
    """Return a limit of tokens, or the model's context where that is less."""
    context = int(model_config(job.inputs["model"]).get("max_position_embeddings", limit))
    if context < limit:
        log.warning("%s: %d is more than the model's context; %d is used", key, limit, context)
    return min(context, limit)


def _without_repeats(file: _ChatFile, path: Path, dropped: DroppedChats) -> dict[Part, Places]:
    """Return the rows of each part that no other repeats, and that hold no held-out question where they are trained."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all()
        parts = table.column("part").to_numpy()
        exact, near = repeats([table.column(name).to_numpy() for name in KEYS], parts)
        is_heldout = (parts == PARTS.index("heldout")) & ~exact & ~near
        later = np.frombuffer(file.later, dtype=np.uint64).reshape(-1, 2)
        heldout_questions = np.frombuffer(file.first, dtype=np.uint64)[is_heldout]
        asks = np.zeros(len(parts), dtype=np.bool_)
        asks[later[np.isin(later[:, 1], heldout_questions), 0].astype(np.int64)] = True
        asks &= ~exact & ~near & (parts != PARTS.index("heldout"))
        places = table.column("place")
        masks: tuple[tuple[Reason, npt.NDArray[np.bool_]], ...] = (
            ("duplicate", exact), ("near_duplicate", near), ("evaluation_question", asks),
        )  # fmt: skip
        for reason, mask in masks:
            for row in np.flatnonzero(mask).tolist():
                dropped.add(reason, places[row].as_py())
    unique = ~exact & ~near & ~asks
    return {name: np.flatnonzero(unique & (parts == number)) for number, name in enumerate(PARTS)}


def _counted(chats: Iterable[Chat], read: Counter[str]) -> Iterator[Chat]:
    for chat in chats:
        read[chat.source] += 1
        yield chat


def _mix(
    parts: Mapping[Part, Places], rows: Dataset, mix: Mapping[str, float], read: Mapping[str, int]
) -> tuple[Places, Mix]:
    """Return the rows that training shows at all, and how often an epoch shows those of each source."""
    source_of = np.array(rows.data.column("source").to_pylist(), dtype=object)
    sources = sorted(set(source_of))
    refuse_unknown_mix(mix, [*sources, *read])
    # How long chats are is known once there is a tokenizer. Hours of pre-training lie before this, so it does not end here.
    for source in sorted(read.keys() - set(source_of[np.concatenate([*parts.values()])])):
        log.warning(
            "%s: trained without any of its %d chats, which are skipped as below", source, read[source]
        )
    places = parts["train"]
    weights = {source: mix.get(source, 1.0) for source in sources}
    shown = np.array([weights[source] > 0 for source in source_of[places]], dtype=np.bool_)
    chosen = [
        (np.flatnonzero(source_of[places][shown] == source), weight) for source, weight in weights.items()
    ]
    by_name = {name: pair for name, pair in zip(weights, chosen, strict=True) if len(pair[0])}
    # One source needs no curve of its own.
    return places[shown], Mix(
        sources=tuple(by_name.values()), names=tuple(by_name) if len(by_name) > 1 else ()
    )


def _sample(places: Places, size: int, seed: int) -> Places:
    if size >= len(places):
        return places
    chosen = random.Random(seed).sample(range(len(places)), size)  # noqa: S311  a sample, no secret
    return places[sorted(chosen)]


def _chats_of(rows: Dataset, places: Places, topics: TopicColumns) -> list[dict[str, Any]]:
    chats = [json.loads(text) for text in rows.select(places)["chat"]]
    # A column that groups no rows may hold the names of customers.
    shared = [dict(topics.shared(chat.pop("topics", {}).items())) for chat in chats]
    return [chat | ({"topics": known} if known else {}) for chat, known in zip(chats, shared, strict=True)]


def log_dropped(total: int, dropped: DroppedChats, what: str) -> None:
    """Log how many rows were dropped and why, as a warning where many have faults."""
    faults = sum(count for reason, count in dropped.counts.items() if reason not in HARMLESS)
    if dropped.total:
        level = logging.WARNING if faults > MANY_DROPPED * total else logging.INFO
        log.log(level, "%d of %d %s skipped: %s", dropped.total, total, what, dropped)


def _report(job: Job, rows: Rows, num_kept: int, dropped: DroppedChats) -> None:
    settings = job.recipe.finetune
    total = num_kept + dropped.total
    job.records.update(rows=total, kept=num_kept, dropped=dropped.total)
    log_dropped(total, dropped, "chats")
    if not rows.mix.size:
        raise DataError(
            f"chats: of {num_kept:,} none is left to train on; lower finetune.heldout_fraction "
            f"({settings.heldout_fraction}) and finetune.validation_fraction ({settings.validation_fraction}), or "
            "raise a weight of finetune.mix"
        )
    if settings.validation_fraction and not len(rows.validation):
        raise DataError(
            f"finetune.validation_fraction: {settings.validation_fraction} of {num_kept:,} chats is none; raise it or set 0"
        )


MIN_LINE_CHARS = 40
"""Shortest folded line of held-out text: a shorter one could stand in any chat. As `clean.decontaminate`."""


class EvaluationQuestions:
    """Fingerprints of the questions of `evaluate.questions` and of the lines of `evaluate.heldout`."""

    def __init__(self, job: Job) -> None:
        """Read the files that the recipe names."""
        files, heldout = (job.side_files.get(f"evaluate.{key}", ()) for key in ("questions", "heldout"))
        letters = letters_of(job.recipe.language_code)
        questions = read_chats(files, DroppedChats(), columns=job.recipe.finetune.columns, letters=letters)
        self._turns = {fingerprint(folded(turn)) for chat in questions for turn in chat.questions}
        self._lines = {
            line
            for document in documents_of(heldout, job.recipe.clean.text_field, "")
            for line in _lines(document.text)
        }

    def without(self, chats: Iterable[Chat], dropped: DroppedChats) -> Iterator[Chat]:
        """Yield the chats that hold none of them, and count the others."""
        for chat in chats:
            if self.holds(chat):
                dropped.add("evaluation_question", chat.place)
            else:
                yield chat

    def holds(self, chat: Chat) -> bool:
        """True if a chat asks such a question or contains such a line."""
        if self._turns and any(fingerprint(folded(turn)) in self._turns for turn in chat.questions):
            return True
        return bool(self._lines) and any(
            line in self._lines for message in chat.messages for line in _lines(message.content)
        )


def _lines(text: str) -> Iterator[int]:
    for line in text.splitlines():
        plain = folded(line)
        if len(plain) >= MIN_LINE_CHARS:
            yield fingerprint(plain)
