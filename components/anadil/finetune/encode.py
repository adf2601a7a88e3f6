"""Chats as token ids, with the loss on what the assistant says and on its `<|eot_id|>`.

The ids are those that `chat_template.jinja` gives, the same file that serves the model. They
are put together here, control tokens by their ids and messages as plain text, and not by
tokenizing the rendered template: there a message that holds the letters `<|eot_id|>` would
end its own turn.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from anadil.artifacts.base_model import BEGIN
from anadil.core.errors import DataError
from anadil.model.load import END_OF_TEXT, END_OF_TURN, encode_texts
from anadil.text.chats import Chat, DroppedChats

TEMPLATE = Path(__file__).parents[1] / "builtin/chat_template.jinja"
START_HEADER = "<|start_header_id|>"
END_HEADER = "<|end_header_id|>"
CONTROL = (BEGIN, START_HEADER, END_HEADER, END_OF_TURN, END_OF_TEXT)
"""Control tokens of the Llama 3 chat format."""
AFTER_HEADER = "\n\n"
IGNORED_LABEL = -100
"""Label of a token without loss: `ignore_index` of torch's cross_entropy."""
CHATS_AT_A_TIME = 256
"""In memory while they are encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One chat for the trainer; both lists have a number for every token."""

    input_ids: list[int]
    labels: list[int]
    """The id again where the model is trained, else `IGNORED_LABEL`."""


def encode_chats(
    tokenizer: PreTrainedTokenizerFast, chats: Iterable[Chat], max_length: int, dropped: DroppedChats
) -> Iterator[tuple[Chat, Example]]:
    """Chats with their examples of at most `max_length` tokens; a longer chat is left out whole and counted.

    Cutting one off would take the end of its answer, and with it the `<|eot_id|>` from which
    the model learns to stop.

    Raises:
        DataError: The tokenizer lacks a control token, or reads one out of plain text.
    """
    control = control_ids(tokenizer)
    rest = iter(chats)
    while batch := list(islice(rest, CHATS_AT_A_TIME)):
        # One call for all: see `encode_texts`.
        encoded = iter(encode_texts(tokenizer, [text for chat in batch for text in _texts(chat)]))
        for chat in batch:
            example = _example(chat, encoded, control)
            if len(example.input_ids) > max_length:
                dropped.add("too_long", chat.place)
            else:
                yield chat, example


def control_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Ids of the control tokens, by their text.

    Raises:
        DataError: The tokenizer lacks one.
    """
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in CONTROL if token not in vocabulary]
    if missing:
        raise DataError(
            f"model: its tokenizer has no {', '.join(missing)}, which chats need; "
            "make the tokenizer with the tokenizer stage, or add them"
        )
    return {token: vocabulary[token] for token in CONTROL}


def encode_chat(tokenizer: PreTrainedTokenizerFast, chat: Chat, control: dict[str, int]) -> Example:
    """The ids of one chat, message by message."""
    return _example(chat, iter(encode_texts(tokenizer, _texts(chat))), control)


def _texts(chat: Chat) -> list[str]:
    """What of a chat is text, between its control tokens."""
    texts: list[str] = []
    for message in chat.messages:
        # While it serves, the model reads the header with its blank line, and writes only what
        # follows; so an answer's text is cut off there, and a question's is not.
        is_answer = message.role == "assistant"
        texts += [message.role, AFTER_HEADER if is_answer else AFTER_HEADER + message.content]
        texts += [message.content] if is_answer else []
    return texts


def _example(chat: Chat, encoded: Iterator[list[int]], control: dict[str, int]) -> Example:
    """A chat's ids out of those of its texts, which are next in `encoded`."""
    ids = [control[BEGIN]]
    labels = [IGNORED_LABEL]
    reserved = set(control.values())
    for message in chat.messages:
        head = [control[START_HEADER], *next(encoded), control[END_HEADER], *next(encoded)]
        answer = next(encoded) if message.role == "assistant" else []
        if reserved.intersection(answer) or len(reserved.intersection(head)) > 2:
            raise DataError(
                f"{chat.place}: the tokenizer reads a control token out of plain text; "
                "mark its control tokens as special in tokenizer.json"
            )
        ids += [*head, *answer, control[END_OF_TURN]]
        labels += [IGNORED_LABEL] * len(head)
        labels += [*answer, control[END_OF_TURN]] if answer else [IGNORED_LABEL]
    return Example(input_ids=ids, labels=labels)
