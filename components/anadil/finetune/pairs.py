"""Pairs of answers -> the rows of the preference step, kept on disk like those of chats (`rows`)."""

import hashlib
import logging
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from anadil.artifacts.chat_files import read_pairs, refuse_no_chats
from anadil.core.errors import DataError
from anadil.finetune.audit import audit
from anadil.finetune.encode import IGNORED_LABEL, Example, PairExample, encode_pairs
from anadil.finetune.evaluation_questions import EvaluationQuestions
from anadil.finetune.rows import MANY_DROPPED, ROWS_AT_A_TIME, Fingerprints, Places, fitting_length
from anadil.recipe.finetune import Preference
from anadil.runtime.job import Job
from anadil.text.chats import DroppedChats, fingerprint, folded, split_of
from anadil.text.drop_reasons import HARMLESS
from anadil.text.pairs import Pair

log = logging.getLogger(__name__)

KEY = "finetune.preference.inputs"
MAX_HELDOUT_PAIRS = 512
"""Pairs that only measure, with each checkpoint; chosen by us."""
IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
PLACE = "pair"
"""Column of a row's number, by which its reference is found."""
SCHEMA = pa.schema([*((name, pa.list_(pa.int32())) for name in IDS), (PLACE, pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What is trained and measured on; columns `prompt_ids`, `chosen_ids`, `rejected_ids` and `pair`, on disk."""

    rows: Dataset
    """All pairs; each one's `pair` is its place here."""
    train: Dataset
    heldout: Dataset
    """At most `MAX_HELDOUT_PAIRS` of the pairs whose question training never sees."""
    audit: dict[str, Any]
    """The part `preference` of `mask_audit.json`."""
    digest: str
    """Of all ids and their order, by which a checkpoint knows its pairs."""


def read_pair_rows(job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints) -> Pairs:
    """Every pair that can be trained on, as ids; says which cannot.

    Args:
        job: Names the files.
        settings: Of the preference step.
        tokenizer: Of the model.
        asked: Fingerprints of the questions of held-out chats, which no pair may teach.

    Raises:
        DataError: None can, or the loss would not fall on the answers.
    """
    dropped = DroppedChats()
    path = job.work / f"pairs-{os.environ.get('RANK', '0')}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    heldout, digest = array("b"), hashlib.sha256()

    def rows() -> Iterator[dict[str, Any]]:
        for pair, example in _encoded(job, settings, tokenizer, asked, dropped):
            row = {name: getattr(example, name) for name in IDS} | {PLACE: len(heldout)}
            digest.update(str(row).encode())
            heldout.append(split_of(pair.chosen, 0, job.recipe.finetune.heldout_fraction) == "heldout")
            yield row

    _write(path.as_posix(), rows())
    files = job.side_files.get(KEY, ())
    refuse_no_chats(files, len(heldout), dropped, "pairs")
    found = Dataset.from_file(str(path))
    is_heldout = np.frombuffer(heldout, dtype=np.bool_)
    train, measured = np.flatnonzero(~is_heldout), np.flatnonzero(is_heldout)[:MAX_HELDOUT_PAIRS]
    _report(len(heldout), train, job.recipe.finetune.heldout_fraction, dropped)
    parts = found.select(train)
    return Pairs(
        rows=found, train=parts, heldout=found.select(measured),
        audit=_audit(parts, tokenizer, dropped), digest=digest.hexdigest(),
    )  # fmt: skip


def _encoded(
    job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints, dropped: DroppedChats
) -> Iterator[tuple[Pair, PairExample]]:
    limit = fitting_length(job, "finetune.preference.max_length", settings.max_length)
    pairs = read_pairs(job.side_files.get(KEY, ()), dropped, columns=job.recipe.finetune.columns)
    system = job.recipe.finetune.system_text
    found = (
        Pair(chosen=pair.chosen.with_system(system), rejected=pair.rejected.with_system(system))
        for pair in _without_leaks(job, pairs, asked, dropped)
    )
    seen: set[int] = set()
    for pair, example in encode_pairs(tokenizer, found, limit, dropped):
        key = fingerprint(f"{pair.chosen.id} {pair.rejected.id}")
        if key in seen:
            dropped.add("duplicate", pair.place)
            continue
        seen.add(key)
        yield pair, example


def _without_leaks(
    job: Job, pairs: Iterator[Pair], asked: Fingerprints, dropped: DroppedChats
) -> Iterator[Pair]:
    """The pairs that hold nothing that evaluation asks; the first question's hash sets those of its part aside."""
    known, heldout = EvaluationQuestions(job), frozenset(asked.tolist())
    for pair in pairs:
        later = (fingerprint(folded(question)) for question in pair.chosen.questions[1:])
        if known.holds(pair.chosen) or known.holds(pair.rejected) or any(each in heldout for each in later):
            dropped.add("evaluation_question", pair.place)
        else:
            yield pair


def _write(path: str, rows: Iterator[dict[str, Any]]) -> None:
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        waiting: list[dict[str, Any]] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == ROWS_AT_A_TIME:
                writer.write_batch(pa.RecordBatch.from_pylist(waiting, schema=SCHEMA))
                waiting = []
        writer.write_batch(pa.RecordBatch.from_pylist(waiting, schema=SCHEMA))


def _report(kept: int, train: Places, fraction: float, dropped: DroppedChats) -> None:
    total = kept + dropped.total
    faults = sum(count for reason, count in dropped.counts.items() if reason not in HARMLESS)
    if dropped.total:
        level = logging.WARNING if faults > MANY_DROPPED * total else logging.INFO
        log.log(level, "%d of %d pairs left out: %s", dropped.total, total, dropped)
    if not len(train):
        raise DataError(
            f"pairs: of {kept:,} none is left to train on; lower finetune.heldout_fraction ({fraction})"
        )


class _Sides:
    """Both chats of each pair, as examples; read one at a time."""

    def __init__(self, pairs: Dataset) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    def __iter__(self) -> Iterator[Example]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> Example:
        row = self.pairs[int(place) // 2]
        answer = row[IDS[1 + place % 2]]
        return Example(
            input_ids=row["prompt_ids"] + answer, labels=[IGNORED_LABEL] * len(row["prompt_ids"]) + answer
        )


def _audit(pairs: Dataset, tokenizer: PreTrainedTokenizerFast, dropped: DroppedChats) -> dict[str, Any]:
    """As of chats, with both sides of each pair."""
    sides: Any = _Sides(pairs)
    found = audit(sides, tokenizer, dropped)
    return found | {"rows": len(pairs) + dropped.total, "kept": len(pairs)}
