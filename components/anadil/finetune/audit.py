"""Audit of the loss mask, counted on the trainer's own rows before it starts.

A mask that is empty, or lacks the end of the turn, trains without an error. The model then learns nothing, or never stops.
"""

import statistics
from collections.abc import Sequence
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
    """Return the content of `mask_audit.json`."""
    chats = chat_format(tokenizer)
    trained, stopping, lengths = [], [], []
    for row in rows:
        example = _example(row)
        trained.append(sum(label != IGNORED_LABEL for label in example.labels))
        stopping.append(_ends_right(example, chats.control[chats.end]))
        lengths.append(len(example.input_ids))
    _gate(trained, stopping, chats.end)
    num_tokens = sum(lengths)
    shown = dict.fromkeys(
        round(i * (len(rows) - 1) / (NUM_AUDITED_CHATS - 1)) for i in range(NUM_AUDITED_CHATS)
    )
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
            "min": min(trained), "median": statistics.median(trained), "max": max(trained),
        },
        "longest_row_tokens": max(lengths),
        "share_ending_in_eot": sum(stopping) / len(stopping),
        "samples": [_mark_trained(_example(rows[i]), tokenizer) for i in shown],
    }  # fmt: skip


def _mark_trained(example: Example, tokenizer: PreTrainedTokenizerFast) -> str:
    text = ""
    for is_trained, tokens in _spans(example):
        piece = str(tokenizer.decode(tokens))
        text += f"{TRAINED[0]}{piece}{TRAINED[1]}" if is_trained else piece
    return text


def _example(row: Any) -> Example:
    """A row of a Dataset, which is a mapping, or already an example."""
    return row if isinstance(row, Example) else Example(input_ids=row["input_ids"], labels=row["labels"])


def _ends_right(example: Example, end: int) -> bool:
    """True if every trained span ends in `end` and holds it nowhere else."""
    trained = [tokens for is_trained, tokens in _spans(example) if is_trained]
    return bool(trained) and all(span[-1] == end and span.count(end) == 1 for span in trained)


def _spans(example: Example) -> list[tuple[bool, list[int]]]:
    """Return the ids in spans that are all trained, or all not."""
    pairs = zip(example.input_ids, example.labels, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1] != IGNORED_LABEL)
    return [(is_trained, [token for token, _ in run]) for is_trained, run in runs]


def _gate(trained: list[int], stopping: list[bool], end: str) -> None:
    if untrained := trained.count(0):
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
