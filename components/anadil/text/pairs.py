"""Pairs of answers to one question, one of which is preferred, from rows of the usual layouts.

`chosen` and `rejected` are each a text, a message, or a list of messages. A list that begins with the user or a system
turn is the whole chat (UltraFeedback, Capybara). Else the question is in a column of questions, or in `conversations`
(LLaMA-Factory). Texts with turns of `Human:` and `Assistant:` (hh-rlhf) are whole chats, too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from anadil.text.chat_columns import LISTS, SIDES, SYSTEMS, role_of, turns_of
from anadil.text.chats import Chat, Message, Refusal, RefusedRowError, question_turns, read_messages

SPEAKERS = {"Human": "user", "Assistant": "assistant"}
TURN = re.compile(r"\n\n(Human|Assistant):")
"""Beginning of a turn in a text. Source: Anthropic's hh-rlhf, README."""
OPENED = "\n\nAssistant:"
"""End of a question there: the answer follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two chats that differ in their last answer alone."""

    chosen: Chat
    rejected: Chat

    @property
    def place(self) -> str:
        """`file:line` that it came from."""
        return self.chosen.place


def pair_of(row: Mapping[str, object]) -> tuple[tuple[Message, ...], tuple[Message, ...]] | Refusal:
    """The messages of the chosen and of the rejected chat of a row, or why there are none."""
    try:
        return _read_pair(row)
    except RefusedRowError as error:
        return error.refusal


def _read_pair(row: Mapping[str, object]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    listed = next((turns for key in LISTS if isinstance(turns := turns_of(row.get(key)), list)), None)
    asked = listed or _asked(row)
    sides: list[tuple[Message, ...]] = []
    for name in SIDES:
        turns = _turns(turns_of(row.get(name)), asked)
        if turns is None:
            raise RefusedRowError("no_pair", "" if row.get(name) is not None else f"no {name}")
        system = {key: row[key] for key in SYSTEMS if key in row}
        sides.append(read_messages({**system, "messages": turns}))
    chosen, rejected = sides
    if chosen[:-1] != rejected[:-1]:
        raise RefusedRowError("other_question")
    if chosen[-1].content == rejected[-1].content:
        raise RefusedRowError("same_answer")
    # The question would be learnt as a part of the answer.
    if all(side[-1].content.startswith(chosen[-2].content) for side in sides):
        raise RefusedRowError("question_in_answer")
    return chosen, rejected


def _asked(row: Mapping[str, object]) -> list[object] | None:
    """Question of a row. A text with turns of `Human:` ends in an opened turn of the assistant (Dahoas/rm-static)."""
    asked = question_turns(row)
    text = asked[-1].get("content") if asked and isinstance(asked[-1], Mapping) else None
    turns = _transcript(text.rstrip().removesuffix(OPENED)) if isinstance(text, str) else []
    return turns or asked


def _transcript(text: str) -> list[object]:
    """Turns of a text that is a chat as hh-rlhf writes it; else none."""
    parts = TURN.split(text)
    if len(parts) == 1 or parts[0].strip() or parts[1] != "Human":
        return []
    return [
        {"role": SPEAKERS[speaker], "content": said}
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _turns(side: object, asked: list[object] | None) -> list[object] | None:
    """All turns of one side, not checked yet; None if nothing says what it answers."""
    if isinstance(side, str):
        if turns := _transcript(side):
            return turns
        answer: list[object] = [{"role": "assistant", "content": side}]
    elif isinstance(side, Mapping):
        answer = [side]
    elif isinstance(side, list) and side:
        if role_of(side[0]) != "assistant":
            return side
        answer = side
    else:
        return None
    return None if asked is None else [*asked, *answer]
