"""Chat format that a merge takes over from a model: its template, and the rows of its control tokens."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import DataError
from anadil.core.json_text import write_indented
from anadil.model.chat_ids import ControlWords, rendered
from anadil.model.load import document_ids, load_tokenizer
from anadil.model.template_limits import RAISED

CHAT = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
)
"""A chat that every template writes; some refuse a system turn."""
TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Template of a model, and its control tokens in two vocabularies."""

    template: str
    is_new: bool
    """True if the model's `minus` has none or another."""
    ids: Mapping[str, tuple[int, int]]
    """Control token -> its id in the merged model, and in the model that brings it."""
    absent: tuple[str, ...]
    """Tokens that the template names and a plain chat does not use, such as those of tools, which the merged model lacks."""


def chat_format_of(model: Path, minus: Path, tokenizer: Path, name: str) -> ChatFormat | None:
    """Read the chat format of a model; None where it has no template.

    The tokens round a document are left out: pre-training has taught them, and their rows are no message of the chat
    format alone.
    """
    its, ours = load_tokenizer(model), load_tokenizer(tokenizer)
    if not its.chat_template:
        return None
    try:
        template = its.get_chat_template()
        chat = str(rendered(its, CHAT, tokenize=False, add_generation_prompt=True))
    except RAISED as error:
        raise DataError(f"{name}: the chat template of {model} cannot be used ({error})") from None
    words, known = ControlWords(its), ControlWords(ours).tokens
    needed, named = (dict.fromkeys(words.pattern.findall(text)) for text in (chat, template))
    if lost := [token for token in needed if token not in known]:
        raise DataError(
            f"{name}: the chat template of {model} writes {', '.join(lost)}, which the tokenizer of the trained model lacks "
            f"({tokenizer}); take a model whose control tokens the base has, or a base that has them"
        )
    frame = document_ids(ours, str(tokenizer))
    ids = {
        token: (known[token].id, words.tokens[token].id)
        for token in {**needed, **named}
        if token in known and known[token].id not in frame
    }
    absent = tuple(token for token in named if token not in known)
    is_new = template != _template_of(load_tokenizer(minus))
    return ChatFormat(template=template, is_new=is_new, ids=ids, absent=absent)


def write_chat_template(folder: Path, template: str) -> None:
    """Put a template in place of that of a model directory."""
    (folder / TEMPLATE).write_text(template, encoding="utf-8")
    settings = folder / SETTINGS
    content = json.loads(settings.read_text(encoding="utf-8"))
    # Two templates would be one for each reader: vLLM and transformers take the file, older ones the key.
    if content.pop("chat_template", None) is not None:
        write_indented(settings, content, 2)


def _template_of(tokenizer: Any) -> str | None:
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
