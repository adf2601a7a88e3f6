"""Audit of the loss mask, counted on the trainer's own rows before it starts.

A mask that is empty, or that leaves out the end of the turn, trains without any error and
gives a model that learned nothing, or that never stops.
"""

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.finetune.chat_format import chat_format
from anadil.finetune.encode import IGNORED_LABEL, Example
from anadil.text.chats import DroppedChats

NUM_AUDITED_CHATS = 3
TRAINED = ("⟦", "⟧")
"""Brackets round the trained spans of a sample."""


def audit(rows: Sequence[Any], tokenizer: PreTrainedTokenizerFast, dropped: DroppedChats) -> dict[str, Any]:
    """The content of `mask_audit.json`.

    Raises:
        DataError: A row has no trained token, or a trained span does not end in the control token that closes a turn.
    """
    written = chat_format(tokenizer)
    trained, stopping, lengths = [], [], []
    for row in rows:
        example = _example(row)
        trained.append(sum(label != IGNORED_LABEL for label in example.labels))
        stopping.append(_ends_right(example, written.control[written.end]))
        lengths.append(len(example.input_ids))
    _gate(trained, stopping, written.end)
    num_tokens = sum(lengths)
    middle = [round(i * (len(rows) - 1) / (NUM_AUDITED_CHATS - 1)) for i in range(NUM_AUDITED_CHATS)]
    return {
        "rows": len(rows) + dropped.total,
        "kept": len(rows),
        "dropped": dict(sorted(dropped.counts.items())),
        "dropped_first": dict(sorted(dropped.places.items())),
        "not_read": dropped.unread,
        "tokens": num_tokens,
        "trained_tokens": sum(trained),
        "trained_share": round(sum(trained) / num_tokens, 4),
        "trained_tokens_per_row": {
            "min": min(trained),
            "median": statistics.median(trained),
            "max": max(trained),
        },
        "longest_row_tokens": max(lengths),
        "share_ending_in_eot": sum(stopping) / len(stopping),
        "samples": [mark_trained(_example(rows[i]), tokenizer) for i in dict.fromkeys(middle)],
    }


def mark_trained(example: Example, tokenizer: PreTrainedTokenizerFast) -> str:
    """The text of an example with brackets round what is trained."""
    text = ""
    for is_trained, run in groupby(_pairs(example), key=lambda pair: pair[1] != IGNORED_LABEL):
        piece = str(tokenizer.decode([token for token, _ in run]))
        text += f"{TRAINED[0]}{piece}{TRAINED[1]}" if is_trained else piece
    return text


def _example(row: Any) -> Example:
    """A row of a Dataset, which is a mapping, or already an example."""
    return row if isinstance(row, Example) else Example(input_ids=row["input_ids"], labels=row["labels"])


def _ends_right(example: Example, end: int) -> bool:
    """True if every trained span ends in `end` and holds it nowhere else."""
    spans = [
        [token for token, _ in run]
        for is_trained, run in groupby(_pairs(example), key=lambda pair: pair[1] != IGNORED_LABEL)
        if is_trained
    ]
    return bool(spans) and all(span[-1] == end and span.count(end) == 1 for span in spans)


def _pairs(example: Example) -> Iterable[tuple[int, int]]:
    return zip(example.input_ids, example.labels, strict=True)


def _gate(trained: list[int], stopping: list[bool], end: str) -> None:
    untrained = trained.count(0)
    if untrained:
        raise DataError(
            f"mask audit: {untrained:,} of {len(trained):,} rows have no trained token, the first is "
            f"row {trained.index(0)}; the chat template must mark the assistant's turns"
        )
    if not all(stopping):
        raise DataError(
            f"mask audit: {stopping.count(False):,} of {len(stopping):,} rows do not train {end} "
            f"at the end of each answer, the first is row {stopping.index(False)}; "
            "the model would not learn to stop"
        )
