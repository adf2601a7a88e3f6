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
from anadil.model.template_limits import MAX_KEPT, RAISED, check_limits

log = logging.getLogger(__name__)

FIRST, LAST = "Birinci", "Sonuncu"
"""Answers of a sample chat."""
TURNS = tuple(
    {"role": role, "content": content}
    for role, content in (("user", "Bir"), ("assistant", FIRST), ("user", "Son"), ("assistant", LAST))
)
SYSTEM = {"role": "system", "content": "Salam"}
"""Turn that some templates ask for, and others refuse."""
_RENDERED: dict[tuple[Any, ...], tuple[str, ...]] = {}
"""Sample chats by template, added tokens and roles, which decide them: each caller asks again, and rendering takes a process.
The oldest of `MAX_KEPT` goes."""


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
    token, texts = _samples(tokenizer)
    for text in texts:
        # Where nothing closes the last answer, the beginning of the next turn ends those before it.
        for answer in (LAST, FIRST):
            if match := token.match(text.rpartition(answer)[2]):
                return match[1]
    return ""


def turn_begin(tokenizer: Any) -> str:
    """Return the token that the tokenizer's chat template writes first; empty where it writes none."""
    token, texts = _samples(tokenizer)
    return next((match[1] for text in texts if (match := token.match(text))), "")


def _samples(tokenizer: Any) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return what finds a special token, and the sample chats that the chat template writes."""
    if not tokenizer.chat_template:
        return re.compile("(?!)"), ()
    names = tuple(
        sorted((each.content for each in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    )
    roles = (tokenizer.bos_token, tokenizer.eos_token)
    key = (tokenizer.get_chat_template(), names, roles)
    if key not in _RENDERED:
        while len(_RENDERED) >= MAX_KEPT:
            del _RENDERED[next(iter(_RENDERED))]
        _RENDERED[key] = tuple(
            filter(None, (_sample(tokenizer, turns) for turns in (TURNS, (SYSTEM, *TURNS))))
        )
    return re.compile(rf"\s*({'|'.join(map(re.escape, names)) or '(?!)'})"), _RENDERED[key]


def _sample(tokenizer: Any, turns: Sequence[Mapping[str, str]]) -> str:
    try:
        return str(rendered(tokenizer, turns, tokenize=False))
    except (*RAISED, DataError) as error:
        log.debug("%s: %s", tokenizer.name_or_path, error)
        return ""
