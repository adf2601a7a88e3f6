"""Chats as token ids, with the loss on what the assistant says and on the control token that ends it.

The ids are those that the shipped template gives. They are put together here, control tokens by their ids and
messages as plain text, and not by tokenizing the rendered template: there a message that holds the letters
`<|eot_id|>` would end its own turn.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.finetune.chat_format import ChatFormat, Piece, UnprovenTemplateError, chat_format
from anadil.model.load import encode_texts
from anadil.text.chats import Chat, DroppedChats, Pair

IGNORED_LABEL = -100
"""Label of a token without loss: `ignore_index` of torch's cross_entropy."""
CHATS_AT_A_TIME = 256
"""In memory while they are encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One chat for the trainer; labels are the ids where the model is trained, else `IGNORED_LABEL`."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairExample:
    """A question and its two answers for the trainer."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    """The better answer, with the control token that ends it."""
    rejected_ids: list[int]


def encode_chats(
    tokenizer: PreTrainedTokenizerFast, chats: Iterable[Chat], max_length: int, dropped: DroppedChats
) -> Iterator[tuple[Chat, Example]]:
    """Yield chats with their examples; a chat of more than `max_length` tokens is dropped whole and counted."""
    written = chat_format(tokenizer)
    rest = iter(chats)
    while batch := list(islice(rest, CHATS_AT_A_TIME)):
        parts = [(chat, pieces) for chat in batch for pieces in _pieces(written, (chat,), dropped)]
        for (chat, _), example in zip(parts, encode_parts(tokenizer, written, parts), strict=True):
            if len(example.input_ids) > max_length:
                # Cutting it off would take the control token from which the model learns to stop.
                dropped.add("too_long", chat.place)
            else:
                yield chat, example
    dropped.say_untaught()


def encode_pairs(
    tokenizer: PreTrainedTokenizerFast, pairs: Iterable[Pair], max_length: int, dropped: DroppedChats
) -> Iterator[tuple[Pair, PairExample]]:
    """Yield pairs whose chats both have at most `max_length` tokens; any other is dropped whole and counted once.

    The loss falls on the last answers alone, each with the control token that ends it.
    """
    written = chat_format(tokenizer)
    rest = iter(pairs)
    while batch := list(islice(rest, CHATS_AT_A_TIME // 2)):
        written_pairs: list[Pair] = []
        parts: list[tuple[Chat, list[Piece]]] = []
        for pair in batch:
            if sides := _pieces(written, (pair.chosen, pair.rejected), dropped):
                written_pairs.append(pair)
                parts += zip((pair.chosen, pair.rejected), sides, strict=True)
        examples = iter(encode_parts(tokenizer, written, parts))
        for pair, better, worse in zip(written_pairs, examples, examples, strict=True):
            if max(len(better.input_ids), len(worse.input_ids)) > max_length:
                dropped.add("too_long", pair.place)
                continue
            (prompt, chosen), (other, rejected) = _last_answer(better), _last_answer(worse)
            assert prompt == other, (
                f"{pair.place}: one question in two forms"
            )  # texts are encoded each by itself
            yield pair, PairExample(prompt_ids=prompt, chosen_ids=chosen, rejected_ids=rejected)
    dropped.say_untaught()


def _last_answer(example: Example) -> tuple[list[int], list[int]]:
    """Return the ids before the last trained span, and those of the span; text that a template adds is dropped."""
    trained = [label != IGNORED_LABEL for label in example.labels]
    end = len(trained) - trained[::-1].index(True)
    start = next((at for at in range(end - 1, -1, -1) if not trained[at]), -1) + 1
    return example.input_ids[:start], example.input_ids[start:end]


def _pieces(written: ChatFormat, chats: Sequence[Chat], dropped: DroppedChats) -> list[list[Piece]]:
    """Return the chats of one row in parts; none, and counted, if the template writes one otherwise than it is served.

    Reasoning is taught where the template writes it: before each answer, or before the last alone.
    """
    variants = [chats]
    if any(message.reasoning for chat in chats for message in chat.messages):
        last, none = ([chat.without_reasoning(but_last=last) for chat in chats] for last in (True, False))
        variants = [chats, last, none] if written.writes_reasoning else [none]
    for variant in variants:
        try:
            pieces = [written.pieces(chat) for chat in variant]
        except UnprovenTemplateError as error:
            fault = error
            continue
        if list(chats) != list(variant):
            dropped.add_untaught(chats[0].place)
        return pieces
    dropped.add("template", f"{chats[0].place} ({fault})")
    return []


def encode_parts(
    tokenizer: PreTrainedTokenizerFast, written: ChatFormat, parts: list[tuple[Chat, list[Piece]]]
) -> Iterator[Example]:
    """Encode chats that are in parts."""
    # One call for all: see `encode_texts`.
    texts = [piece for _, pieces in parts for piece, _ in pieces if isinstance(piece, str)]
    encoded = iter(encode_texts(tokenizer, texts))
    reserved = set(written.control.values())
    for chat, pieces in parts:
        example = Example(input_ids=[], labels=[])
        for piece, trained in pieces:
            tokens = next(encoded) if isinstance(piece, str) else [piece]
            if isinstance(piece, str) and reserved.intersection(tokens):
                raise DataError(
                    f"{chat.place}: the tokenizer reads a control token out of plain text; "
                    "mark its control tokens as special in tokenizer.json"
                )
            example.input_ids.extend(tokens)
            example.labels.extend(tokens if trained else [IGNORED_LABEL] * len(tokens))
        yield example


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
    if untrained := trained.count(0):
        raise DataError(
            f"mask audit: {untrained:,} of {len(trained):,} rows have no trained token, the first is "
            f"row {trained.index(0)}; the chat template must mark the assistant's turns"
        )
    if not all(stopping):
        raise DataError(
            f"mask audit: {stopping.count(False):,} of {len(stopping):,} rows do not train {chats.end} "
            f"at the end of each answer, the first is row {stopping.index(False)}; "
            "the model would not learn to stop"
        )
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
    return row if isinstance(row, Example) else Example(input_ids=row["input_ids"], labels=row["labels"])


def _ends_right(example: Example, end: int) -> bool:
    """True if every trained span ends in `end` and holds it nowhere else."""
    trained = [tokens for is_trained, tokens in _spans(example) if is_trained]
    return bool(trained) and all(span[-1] == end and span.count(end) == 1 for span in trained)


def _spans(example: Example) -> list[tuple[bool, list[int]]]:
    pairs = zip(example.input_ids, example.labels, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1] != IGNORED_LABEL)
    return [(is_trained, [token for token, _ in run]) for is_trained, run in runs]
