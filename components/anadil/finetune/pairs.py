"""Rows of the preference step, made of pairs of answers and stored on disk like those of chats (`rows`)."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from anadil.artifacts.chat_files import read_pairs, refuse_no_chats
from anadil.core.errors import DataError
from anadil.finetune.audit import audit
from anadil.finetune.encode import IGNORED_LABEL, Example, PairExample, encode_pairs
from anadil.finetune.evaluation_questions import EvaluationQuestions
from anadil.finetune.rows import Fingerprints, RowWriter, fitting_length, log_dropped, rows_file
from anadil.recipe.finetune import Preference
from anadil.runtime.job import Job
from anadil.text.chats import DroppedChats, fingerprint, folded, split_of
from anadil.text.letters import letters_of
from anadil.text.pairs import Pair

KEY = "finetune.preference.inputs"
MAX_HELDOUT_PAIRS = 512
"""Pairs that only measure, with each checkpoint; chosen by us."""
IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
PLACE = "pair"
"""Column of a row's number, by which its reference is found."""
SCHEMA = pa.schema([*((name, pa.list_(pa.int32())) for name in IDS), (PLACE, pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs to train and measure on; columns `prompt_ids`, `chosen_ids`, `rejected_ids` and `pair`, on disk."""

    rows: Dataset
    """All pairs; each one's `pair` is its place here."""
    train: Dataset
    heldout: Dataset
    """At most `MAX_HELDOUT_PAIRS` of the pairs whose question training never sees."""
    audit: dict[str, Any]
    """The part `preference` of `mask_audit.json`."""
    digest: str
    """Digest of all ids and their order, by which a checkpoint knows its pairs."""


def read_pair_rows(job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints) -> Pairs:
    """Return every pair that can be trained on, as ids; log the others."""
    dropped = DroppedChats()
    path, fraction = rows_file(job, "pairs"), job.recipe.finetune.heldout_fraction
    heldout = array("b")
    with RowWriter(path, SCHEMA) as file:
        for pair, example in _encoded(job, settings, tokenizer, asked, dropped):
            row = {name: getattr(example, name) for name in IDS} | {PLACE: len(heldout)}
            file.write(row, str(row))
            heldout.append(split_of(pair.chosen, 0, fraction) == "heldout")
    refuse_no_chats(job.side_files.get(KEY, ()), len(heldout), dropped, "pairs")
    rows = Dataset.from_file(str(path))
    is_heldout = np.frombuffer(heldout, dtype=np.bool_)
    train = rows.select(np.flatnonzero(~is_heldout))
    measured = rows.select(np.flatnonzero(is_heldout)[:MAX_HELDOUT_PAIRS])
    log_dropped(len(heldout) + dropped.total, dropped, "pairs")
    if not len(train):
        raise DataError(
            f"pairs: of {len(heldout):,} none is left to train on; lower finetune.heldout_fraction ({fraction})"
        )
    # Both sides of each pair are audited like chats.
    sides: Any = _Sides(train)
    audited = audit(sides, tokenizer, dropped) | {"rows": len(train) + dropped.total, "kept": len(train)}
    return Pairs(rows=rows, train=train, heldout=measured, audit=audited, digest=file.digest.hexdigest())


def _encoded(
    job: Job, settings: Preference, tokenizer: Any, asked: Fingerprints, dropped: DroppedChats
) -> Iterator[tuple[Pair, PairExample]]:
    limit = fitting_length(job, "finetune.preference.max_length", settings.max_length)
    pairs = read_pairs(
        job.side_files.get(KEY, ()),
        dropped,
        columns=job.recipe.finetune.columns,
        letters=letters_of(job.recipe.language_code),
    )
    system = job.recipe.finetune.system_text
    unleaked = (
        Pair(chosen=pair.chosen.with_system(system), rejected=pair.rejected.with_system(system))
        for pair in _without_leaks(job, pairs, asked, dropped)
    )
    seen: set[int] = set()
    for pair, example in encode_pairs(tokenizer, unleaked, limit, dropped):
        key = fingerprint(f"{pair.chosen.id} {pair.rejected.id}")
        if key in seen:
            dropped.add("duplicate", pair.place)
            continue
        seen.add(key)
        yield pair, example


def _without_leaks(
    job: Job, pairs: Iterator[Pair], asked: Fingerprints, dropped: DroppedChats
) -> Iterator[Pair]:
    """Yield the pairs that hold nothing that evaluation asks."""
    known, heldout = EvaluationQuestions(job), frozenset(asked.tolist())
    for pair in pairs:
        # Pairs whose first question is held out are set aside by its hash, see `split_of`.
        later = (fingerprint(folded(question)) for question in pair.chosen.questions[1:])
        if known.holds(pair.chosen) or known.holds(pair.rejected) or any(each in heldout for each in later):
            dropped.add("evaluation_question", pair.place)
        else:
            yield pair


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
