"""An Ollama Modelfile: the chat template in Go's language, and the words that end an answer.

Ollama does not read Jinja. Its template is derived from renderings of sample chats, and checked on others. A template that
is not a sequence of turns is skipped, and Ollama uses the GGUF file's.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from anadil.model.chat_template import end_ids, rendered
from anadil.model.load import load_tokenizer

log = logging.getLogger(__name__)

ROLES = ("system", "user", "assistant")
SAMPLES: Sequence[Sequence[tuple[str, str]]] = (
    (("user", "Salam!"),),
    (("system", "Qısa."), ("user", "1 + 1?"), ("assistant", "2."), ("user", "3?")),
    (("user", "Bir"), ("assistant", "iki"), ("user", "üç"), ("assistant", "dörd"), ("user", "beş")),
)
"""Chats for the check of the derived template."""
Chat = Sequence[tuple[str, str]]


class UnusualTemplateError(Exception):
    """A chat template that is not a sequence of turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Text of a chat template around each turn."""

    begin: str
    """BOS, if the template writes it."""
    before: Mapping[str, str]
    after: Mapping[str, str]
    prompt: str

    def render(self, chat: Chat) -> str:
        """A chat and the beginning of its answer."""
        turns = (f"{self.before[role]}{content}{self.after[role]}" for role, content in chat)
        return f"{self.begin}{''.join(turns)}{self.prompt}"


def modelfile(model: str, directory: Path, *, adds_bos: bool) -> str:
    """The text of a Modelfile for a GGUF file beside it; with `adds_bos` the template writes no BOS."""
    tokenizer: Any = load_tokenizer(directory)
    lines = [f"FROM ./{model}"]
    try:
        turns = read_turns(tokenizer)
        lines.append(f'TEMPLATE """{go_template(turns, adds_bos=adds_bos)}"""')
    except (UnusualTemplateError, TemplateError) as error:
        log.warning("%s: no TEMPLATE in the Modelfile: %s; write one by hand", directory, error)
    stops = [tokenizer.convert_ids_to_tokens(index) for index in end_ids(tokenizer, directory)]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    return "\n".join(lines) + "\n"


def read_turns(tokenizer: Any) -> Turns:
    """Read the text around each turn from the tokenizer's chat template."""
    if not tokenizer.chat_template:
        raise UnusualTemplateError("the model has no chat template")

    def render(chat: Chat, *, answer: bool = False) -> str:
        messages = [{"role": role, "content": content} for role, content in chat]
        text: str = rendered(tokenizer, messages, tokenize=False, add_generation_prompt=answer)
        return text

    opened, closed = _parted(render([("user", "USER")]), "USER")
    bos = tokenizer.bos_token or ""
    begin = bos if bos and opened.startswith(bos) else ""
    both = render([("user", "USER"), ("assistant", "ANSWER")])
    between, end = _parted(_parted(both, "USER")[1], "ANSWER")
    first, rest = _parted(render([("system", "SYSTEM"), ("user", "USER")]), "SYSTEM")
    opened = opened.removeprefix(begin)
    turns = Turns(
        begin=begin,
        before={
            "system": first.removeprefix(begin),
            "user": opened,
            "assistant": between.removeprefix(closed),
        },
        after={"system": _parted(rest, "USER")[0].removesuffix(opened), "user": closed, "assistant": end},
        prompt=render([("user", "USER")], answer=True).removeprefix(f"{begin}{opened}USER{closed}"),
    )
    for chat in SAMPLES:
        if turns.render(chat) != render(chat, answer=True):
            raise UnusualTemplateError("its chats are not turns one after the other, each with its own words")
    return turns


def _parted(text: str, word: str) -> tuple[str, str]:
    before, separator, after = text.partition(word)
    if not separator:
        raise UnusualTemplateError(f"it leaves out the content of a turn ({word.lower()})")
    return before, after


def go_template(turns: Turns, *, adds_bos: bool) -> str:
    """The same chats in Go's text/template, which Ollama calls with `.Messages`."""
    cases = [
        f'if eq .Role "{role}" }}}}{_literal(turns.before[role])}{{{{ .Content }}}}{_literal(turns.after[role])}'
        for role in ROLES
    ]
    begin = "" if adds_bos else _literal(turns.begin)
    return f"{begin}{{{{ range .Messages }}}}{{{{ {'{{ else '.join(cases)}{{{{ end }}}}{{{{ end }}}}{_literal(turns.prompt)}"


def _literal(text: str) -> str:
    """Text as Go's template and the Modelfile's quotes give it back."""
    return text.replace("{{", '{{ "{{" }}').replace('"""', '{{ "\\"\\"\\"" }}')
