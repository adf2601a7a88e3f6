"""A chat under the tokenizer's own template, as token ids: control tokens come from the template alone."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.model.load import encode_texts

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that are no characters, for use inside a program. Source: Unicode 15, section 23.7."""


def chat_ids(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = False,
) -> list[int]:
    """Ids of a chat; `<|eot_id|>` in a message is read as its letters.

    Without such a message they are those of `apply_chat_template`, which finds control tokens in the
    rendered text as a whole, where a message could end its own turn.

    Args:
        tokenizer: With a chat template.
        messages: Texts `role` and `content` of each turn.
        add_generation_prompt: Open the assistant's next turn.

    Raises:
        DataError: The messages use all code points that could stand for control text.
    """
    any_tokenizer: Any = tokenizer
    special = {token.content: token for token in any_tokenizer.added_tokens_decoder.values() if token.special}
    names = sorted(special, key=len, reverse=True)
    control = re.compile("|".join(map(re.escape, names)))
    said = "".join(message["content"] for message in messages)
    settings = {"add_generation_prompt": add_generation_prompt}
    if not names or not control.search(said):
        found = any_tokenizer.apply_chat_template(messages, return_dict=True, **settings)
        return list(found["input_ids"])
    mark = next((mark for mark in MARKS if mark not in said), None)
    if mark is None:
        raise DataError(f"chat {said[:80]!a}: holds each of U+FDD0 to U+FDEF; take them out of the text")
    hidden = [
        {**one, "content": control.sub(lambda at: f"{mark}{names.index(at[0])}{mark}", one["content"])}
        for one in messages
    ]
    rendered: str = any_tokenizer.apply_chat_template(hidden, tokenize=False, **settings)
    tokens = [special[name] for name in control.findall(rendered)]
    texts = control.split(rendered)
    for place, token in enumerate(tokens):
        texts[place] = texts[place].rstrip() if token.lstrip else texts[place]
        texts[place + 1] = texts[place + 1].lstrip() if token.rstrip else texts[place + 1]
    shown = [re.sub(f"{mark}(\\d+){mark}", lambda at: names[int(at[1])], text) for text in texts]
    first, *rest = encode_texts(tokenizer, shown)
    ids = list(first)
    for token, following in zip(tokens, rest, strict=True):
        ids += [any_tokenizer.convert_tokens_to_ids(token.content), *following]
    return ids
