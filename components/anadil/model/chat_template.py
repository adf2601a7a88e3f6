"""A tokenizer's chat template: what it writes, and the tokens that end its turns and texts."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from anadil.artifacts.base_model import CHAT_TEMPLATE
from anadil.artifacts.base_vocabulary import declared_ends, ends_of
from anadil.core.errors import DataError
from anadil.model.template_limits import RAISED, check_limits

log = logging.getLogger(__name__)

FIRST, LAST = "Birinci", "Sonuncu"
"""Answers of a sample chat."""
TURNS = tuple(
    {"role": role, "content": content}
    for role, content in (("user", "Bir"), ("assistant", FIRST), ("user", "Son"), ("assistant", LAST))
)
SYSTEM = {"role": "system", "content": "Salam"}
"""Turn that some templates ask for, and others refuse."""


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], **settings: Any) -> Any:
    """Return the result of `apply_chat_template`, with a template that was checked to take little for a short chat."""
    template = tokenizer.get_chat_template()
    if template != CHAT_TEMPLATE.read_text(encoding="utf-8"):
        check_limits(template, tokenizer.name_or_path or "the model")
    return tokenizer.apply_chat_template(messages, **settings)


def end_ids(
    tokenizer: PreTrainedTokenizerFast, model: Path | None = None, tokens: Sequence[str] = ()
) -> list[int]:
    """Return the ids that end a generation: the first ends a document, the others may end a turn.

    They are those of the vocabulary, of the chat template, of the files of `model`, and `tokens`.
    """
    vocabulary = tokenizer.get_vocab()
    named = [turn_end(tokenizer), *(declared_ends(model) if model else ()), *tokens]
    ids = [vocabulary[token] for token in named if token in vocabulary]
    return list(dict.fromkeys([*ends_of(vocabulary, tokenizer.eos_token), *ids]))


def turn_end(tokenizer: Any) -> str:
    """Return the token behind an answer in the tokenizer's chat template; empty where none stands there."""
    if not tokenizer.chat_template:
        return ""
    names = sorted(
        (token.content for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True
    )
    behind = re.compile(rf"\s*({'|'.join(map(re.escape, names)) or '(?!)'})")
    for turns in (TURNS, (SYSTEM, *TURNS)):
        try:
            text = str(rendered(tokenizer, turns, tokenize=False))
        except (*RAISED, DataError) as error:
            log.debug("%s: %s", tokenizer.name_or_path, error)
            continue
        # Where nothing closes the last answer, the beginning of the next turn ends those before it.
        for answer in (LAST, FIRST):
            if match := behind.match(text.rpartition(answer)[2]):
                return match[1]
    return ""
