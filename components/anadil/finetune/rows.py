"""Chats -> the rows of training: read once, encoded, and kept on disk, so that memory does not grow with them."""

import hashlib
import json
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from anadil.artifacts.base_model import model_config
from anadil.artifacts.chat_files import read_chats, refuse_no_chats
from anadil.core.errors import DataError, RecipeError
from anadil.finetune.encode import Example, encode_chats
from anadil.runtime.job import Job
from anadil.text.chats import HARMLESS, Chat, DroppedChats, Part, split_of

log = logging.getLogger(__name__)

MANY_DROPPED = 0.1
"""Share of rows left out from which on the user is warned; a proposal, nothing is published."""
MAX_HELDOUT_CHATS = 2_000
"""Of `heldout_chats.jsonl`, which `evaluate` asks one after another."""
NUM_SEEN_CHATS = 32
"""Of `seen_chats.jsonl`: chats that training saw, to be asked back."""
ROWS_AT_A_TIME = 1_000
SCHEMA = pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", "labels")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is trained on, judged on and asked; `train` and `validation` are read from disk."""

    train: Dataset
    """Columns `input_ids` and `labels`, each a list with a number for every token."""
    validation: Dataset
    """The same; empty without `finetune.validation_fraction`."""
    heldout: list[Chat]
    """At most `MAX_HELDOUT_CHATS` of the chats that training never sees."""
    digest: str
    """Of all ids, labels and their order, by which a checkpoint knows its rows."""


@dataclass(slots=True)
class _Parts:
    """Where each chat went."""

    heldout: list[Chat] = field(default_factory=list)
    num_heldout: int = 0
    seen: list[Chat] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Of each row of training."""


def read_rows(job: Job, tokenizer: PreTrainedTokenizerFast, dropped: DroppedChats) -> Rows:
    """Every chat that can be trained on, as ids and labels; says which cannot.

    Writes `heldout_chats.jsonl` and `seen_chats.jsonl` beside the adapter.

    Raises:
        DataError: None can, or a part that the recipe asks for is empty.
        RecipeError: `finetune.mix` names a source that there is not.
    """
    parts = _Parts()
    folder = job.work / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    chats = _unique(read_chats(job.files, dropped), dropped)
    with _RowFile(folder / "train.arrow") as train, _RowFile(folder / "validation.arrow") as validation:
        for part, chat, example in _encoded(job, tokenizer, chats, dropped):
            if part == "heldout":
                _keep(parts.heldout, chat, parts.num_heldout, MAX_HELDOUT_CHATS, job.recipe.seed)
                parts.num_heldout += 1
                continue
            (train if part == "train" else validation).add(example)
            if part == "train":
                _keep(parts.seen, chat, len(parts.sources), NUM_SEEN_CHATS, job.recipe.seed)
                parts.sources.append(chat.source)
    rows = Rows(
        train=_mixed(train.dataset(), parts.sources, job.recipe.finetune.mix, job.recipe.seed),
        validation=validation.dataset(),
        heldout=parts.heldout,
        digest=hashlib.sha256(
            f"{train.digest.hexdigest()} {validation.digest.hexdigest()}".encode()
        ).hexdigest(),
    )
    _report(job, rows, parts, dropped)
    for name, chosen in (("heldout_chats", parts.heldout), ("seen_chats", parts.seen)):
        _write_chats(job.out / f"{name}.jsonl", chosen)
    return rows


class _RowFile:
    """A file of rows that is written row by row and then read where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self._waiting: list[Example] = []

    def __enter__(self) -> Self:
        self._sink = pa.OSFile(str(self.path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()
        self._sink.close()

    def add(self, example: Example) -> None:
        """Write one row."""
        self._waiting.append(example)
        self.digest.update(f"{example.input_ids}{example.labels}".encode())
        if len(self._waiting) == ROWS_AT_A_TIME:
            self._flush()

    def dataset(self) -> Dataset:
        """All rows, mapped into memory."""
        return Dataset.from_file(str(self.path))

    def _flush(self) -> None:
        columns = [
            [each.input_ids for each in self._waiting],
            [each.labels for each in self._waiting],
        ]
        arrays = [pa.array(column, pa.list_(pa.int32())) for column in columns]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        self._waiting.clear()


def _encoded(
    job: Job, tokenizer: PreTrainedTokenizerFast, chats: Iterable[Chat], dropped: DroppedChats
) -> Iterator[tuple[Part, Chat, Example]]:
    settings = job.recipe.finetune
    limit = settings.max_length
    context = int(model_config(job.inputs["model"]).get("max_position_embeddings", limit))
    if context < limit:
        log.warning("finetune.max_length: %d is more than the model's context; %d is used", limit, context)
        limit = context
    for chat, example in encode_chats(tokenizer, chats, limit, dropped):
        yield split_of(chat, settings.validation_fraction, settings.heldout_fraction), chat, example


def _unique(chats: Iterable[Chat], dropped: DroppedChats) -> Iterator[Chat]:
    """The chats without copies of an earlier one."""
    found: set[str] = set()
    for chat in chats:
        if chat.id in found:
            dropped.add("duplicate", chat.place)
        else:
            found.add(chat.id)
            yield chat


def _keep(sample: list[Chat], chat: Chat, number: int, size: int, seed: int) -> None:
    """Keep a chat in an even sample of all, of which it is the `number`-th. Source: Vitter, algorithm R."""
    if number < size:
        sample.append(chat)
        return
    place = random.Random(f"{seed} {number}").randrange(number + 1)  # noqa: S311  a sample, no secret
    if place < size:
        sample[place] = chat


def _mixed(rows: Dataset, sources: Sequence[str], mix: Mapping[str, float], seed: int) -> Dataset:
    """The rows, each as often as its source's weight says.

    Raises:
        RecipeError: A weight is for a source that there is not.
    """
    if not mix:
        return rows
    unknown = sorted(set(mix) - set(sources))
    if unknown:
        raise RecipeError(
            f"finetune.mix: no chats of {', '.join(unknown)}; the sources are {', '.join(sorted(set(sources)))}"
        )
    places: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        places.setdefault(source, []).append(place)
    chosen: list[int] = []
    for source, own in places.items():
        whole, part = divmod(mix.get(source, 1.0), 1)
        chosen += own * int(whole)
        chosen += random.Random(f"{seed} {source}").sample(own, round(part * len(own)))  # noqa: S311  no secret
    return rows.select(sorted(chosen))


def _report(job: Job, rows: Rows, parts: _Parts, dropped: DroppedChats) -> None:
    """Count what became of all rows in the manifest and the log.

    Raises:
        DataError: Nothing is left to train on, or for a part that is asked for.
    """
    settings = job.recipe.finetune
    kept = len(parts.sources) + len(rows.validation) + parts.num_heldout
    total = kept + dropped.total
    job.records.update(rows=total, kept=kept, dropped=dropped.total)
    refuse_no_chats(job.files, kept, dropped)
    faults = sum(count for reason, count in dropped.counts.items() if reason not in HARMLESS)
    if dropped.total:
        level = logging.WARNING if faults > MANY_DROPPED * total else logging.INFO
        log.log(level, "%d of %d chats left out: %s", dropped.total, total, dropped)
    if not len(rows.train):
        raise DataError(
            f"chats: all {kept:,} are held out by finetune.heldout_fraction ({settings.heldout_fraction}) and "
            f"finetune.validation_fraction ({settings.validation_fraction}), or mixed away; lower them"
        )
    if settings.validation_fraction and not len(rows.validation):
        raise DataError(
            f"finetune.validation_fraction: {settings.validation_fraction} of {kept:,} chats is none; raise it or set 0"
        )


def _write_chats(path: Path, chats: Sequence[Chat]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for chat in chats:
            row: dict[str, Any] = chat.as_row()
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
