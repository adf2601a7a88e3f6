"""A chat under the tokenizer's own template, as token ids: control tokens come from the template alone."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.model.chat_template import rendered
from anadil.model.load import encode_texts

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that are no characters, for use inside a program. Source: Unicode 15, section 23.7."""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A special token, and whether it swallows blanks beside it."""

    id: int
    lstrip: bool
    rstrip: bool


class ControlWords:
    """A tokenizer's control tokens, and how their letters in a message are kept apart from them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokens = {
            token.content: ControlToken(number, token.lstrip, token.rstrip)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        # The longest first, because one may begin as another does.
        self._names = sorted(self.tokens, key=len, reverse=True)
        # Without any: what matches nowhere.
        self.pattern = re.compile("|".join(map(re.escape, self._names)) or r"(?!)")

    def hide(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], str]:
        """Return the messages with a mark for each control token in their letters, and that mark."""
        texts = "".join(text for message in messages for text in message.values())
        mark = next((mark for mark in MARKS if mark not in texts), None)
        if mark is None:
            raise DataError(f"chat {texts[:80]!a}: holds each of U+FDD0 to U+FDEF; take them out of the text")

        def without(text: str) -> str:
            return self.pattern.sub(lambda at: f"{mark}{self._names.index(at[0])}{mark}", text)

        return [{key: without(text) for key, text in one.items()} for one in messages], mark

    def show(self, text: str, mark: str) -> str:
        """Return a rendered text with the letters that `hide` took out."""
        return re.sub(f"{mark}(\\d+){mark}", lambda at: self._names[int(at[1])], text)

    def split(self, rendered: str) -> Iterator[tuple[str, ControlToken | None, int]]:
        """Yield each text, the control token behind it (None at the end), and where the text begins."""
        start, before = 0, None
        for match in (*self.pattern.finditer(rendered), None):
            token = self.tokens[match[0]] if match else None
            text = rendered[start : match.start() if match else len(rendered)]
            first = start + (len(text) - len(text.lstrip()) if before and before.rstrip else 0)
            text = text.lstrip() if before and before.rstrip else text
            yield text.rstrip() if token and token.lstrip else text, token, first
            before, start = token, match.end() if match else len(rendered)


def chat_ids(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Mapping[str, str]], *,
    add_generation_prompt: bool = False, **variables: Any,
) -> list[int]:  # fmt: skip
    """Return the ids of a chat; `<|eot_id|>` in a message is read as its letters. `variables` are the template's.

    Without such a message they are those of `apply_chat_template`, which finds control tokens in the
    rendered text as a whole, where a message could end its own turn.
    """
    words = ControlWords(tokenizer)
    settings = {"add_generation_prompt": add_generation_prompt, **variables}
    if not any(words.pattern.search(message["content"]) for message in messages):
        encoding = rendered(tokenizer, messages, return_dict=True, **settings)
        return list(encoding["input_ids"])
    hidden, mark = words.hide(messages)
    whole: str = rendered(tokenizer, hidden, tokenize=False, **settings)
    parts = [(words.show(text, mark), token) for text, token, _ in words.split(whole)]
    ids: list[int] = []
    for (_, token), encoded in zip(parts, encode_texts(tokenizer, [text for text, _ in parts]), strict=True):
        ids += [*encoded, *([token.id] if token else [])]
    return ids
