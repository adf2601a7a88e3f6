"""Chat templates of tokenizers, each proven on sample chats before it is used.

A tokenizer with Llama 3's control tokens uses our own template, which writes no date. Any other keeps its base's
template, or TRL's training copy of it. A base without a template gets that of its family's control tokens. An answer
is trained from behind the opened turn of the assistant to the control token that closes it. A template for which that
fails would teach nothing, would never stop, or would be served otherwise than it was taught.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from transformers import PreTrainedTokenizerFast
from trl import chat_template_utils

from anadil.artifacts.base_model import BEGIN, CHAT_TEMPLATE, OTHER_CHAT_TOKENS
from anadil.artifacts.base_vocabulary import END_OF_TEXT, END_OF_TURN
from anadil.core.errors import DataError
from anadil.model.chat_ids import MARKS, ControlWords
from anadil.model.chat_template import SYSTEM
from anadil.model.load import encode_texts
from anadil.model.template_limits import PLACES, RAISED, SAMPLES, bounded_time, check_limits
from anadil.recipe.finetune import NO_SYSTEM, Finetune
from anadil.text.chat_columns import REASONINGS
from anadil.text.chats import Chat, Message

START_HEADER = "<|start_header_id|>"
END_HEADER = "<|end_header_id|>"
CONTROL = (BEGIN, START_HEADER, END_HEADER, END_OF_TURN, END_OF_TEXT)
"""Control tokens of the Llama 3 chat format."""
AFTER_HEADER = "\n\n"
FAMILIES = dict(
    zip(
        OTHER_CHAT_TOKENS,
        (
            chat_template_utils.gemma3_training_chat_template,
            chat_template_utils.qwen3_instruct_2507_training_chat_template,
        ),
        strict=True,
    )
)
"""Control tokens of a base without a template that can be trained on -> TRL's training copy of its family's.

Gemma 3's writes what Gemma 1 and 2's do, and takes a system turn, which those refuse."""
DATE = "strftime_now"
"""Function of a template that writes today's date: other training data every day."""
FIXED_DATE = f"{{% macro {DATE}(format) %}}{MARKS[2]}{{% endmacro %}}\n"
"""Before a template: it writes a mark instead of the date. Jinja drops the line end."""

Piece = tuple[str | int, bool]
"""A text or the id of a control token, and whether it is trained."""


ChatFormat: TypeAlias = "Llama3Format | TemplateFormat"


class UnprovenTemplateError(Exception):
    """A template of which a sample chat cannot be trained."""


def chat_format(tokenizer: PreTrainedTokenizerFast, name: str = "model") -> ChatFormat:
    """Return the format of a tokenizer's chats."""
    vocabulary = tokenizer.get_vocab()
    if all(token in vocabulary for token in CONTROL):
        return Llama3Format({token: vocabulary[token] for token in CONTROL})
    # A template that writes a system turn is preferred. With another, such as Mistral's, chats with one are dropped.
    for samples in (SAMPLES, SAMPLES[:-1]):
        faults = []
        for which, template in _templates(tokenizer, name):
            try:
                return _proven(tokenizer, template, samples, which)
            except UnprovenTemplateError as error:
                faults.append(f"{which} {error}")
    missing = ", ".join(token for token in CONTROL if token not in vocabulary)
    if isinstance(named := tokenizer.chat_template, Mapping):
        faults.append(f"none of its named templates ({', '.join(named)}) is called default: call one so")
    if any("date" in fault for fault in faults):
        faults.append(f"replace {DATE}(...) by a text in {PLACES}")
    raise DataError(
        f"{name}: its tokenizer has no {missing}, and no chat template of its own that can be trained on "
        f"({'; '.join(faults) or 'it has none'}); take the Instruct model of this base, another base.model, or leave "
        "finetune.inputs out"
    )


@dataclass(frozen=True, slots=True)
class Llama3Format:
    """Our own template, put together without rendering it."""

    control: Mapping[str, int]
    end: str = END_OF_TURN
    origin: str = "Llama 3's template"
    default_system: str = ""
    writes_reasoning: bool = False
    writes_date: bool = False

    @property
    def template(self) -> str:
        """Jinja template that is shipped with the model."""
        return CHAT_TEMPLATE.read_text(encoding="utf-8")

    def pieces(self, chat: Chat) -> list[Piece]:
        """Return header, text and end of each turn; the texts are encoded each by itself."""
        pieces: list[Piece] = [(self.control[BEGIN], False)]
        for message in chat.messages:
            # While it serves, the model reads the header with its blank line, and writes only what
            # follows; so an answer's text is cut off there, and a question's is not.
            is_answer = message.role == "assistant"
            head = AFTER_HEADER if is_answer else AFTER_HEADER + message.content
            pieces += [(self.control[START_HEADER], False), (message.role, False)]
            pieces += [(self.control[END_HEADER], False), (head, False)]
            pieces += [(message.content, message.trained)] if is_answer else []
            pieces.append((self.control[END_OF_TURN], is_answer and message.trained))
        return pieces


class TemplateFormat:
    """A base's template, rendered; the trained spans are located in the rendered text."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, template: str, end: str = "", origin: str = ""
    ) -> None:
        self.template, self.end, self.origin = template, end, origin
        self._words = ControlWords(tokenizer)
        self._tokenizer: Any = tokenizer
        self.control = {
            name: token.id for name, token in self._words.tokens.items() if name in template or name == end
        }

    @cached_property
    def writes_date(self) -> bool:
        """True if the template writes today's date into a chat without a system turn."""
        return MARKS[2] in self._render([{"role": "user", "content": MARKS[0]}])

    @property
    def default_system(self) -> str:
        """System turn that the template writes in a chat without one; empty for none, or for one with today's date."""
        if self.writes_date:
            return ""
        question = {"role": "user", "content": MARKS[0]}
        try:
            with_system = self.render([{"role": "system", "content": MARKS[1]}, question])
        except UnprovenTemplateError:
            return ""
        # A chat with a system turn shows the text before and after it.
        before, _, after = with_system.partition(MARKS[1])
        plain = self.render([question])
        middle = plain.removeprefix(before).removesuffix(after)
        return middle.strip() if len(plain) == len(before) + len(middle) + len(after) else ""

    @cached_property
    def _reasoning_key(self) -> str | None:
        """Key of the reasoning of a turn; None if the template writes none."""
        question, answer = ({"role": role, "content": MARKS[0]} for role in ("user", "assistant"))
        with suppress(UnprovenTemplateError):
            for key in REASONINGS:
                if MARKS[1] in self._render([question, {**answer, key: MARKS[1]}]):
                    return key
        return None

    @property
    def writes_reasoning(self) -> bool:
        """True if the template writes the reasoning before an answer."""
        return self._reasoning_key is not None

    def pieces(self, chat: Chat) -> list[Piece]:
        """Return a chat in parts; reasoning before an answer is trained with it."""
        turns = [
            {"role": message.role, "content": message.content}
            | ({key: message.reasoning} if (key := self._reasoning_key) and message.reasoning else {})
            for message in chat.messages
        ]
        hidden, mark = self._words.hide(turns)
        whole = self.render(hidden)
        spans = [
            self._span(hidden, whole, turn)
            for turn, each in enumerate(chat.messages)
            if each.role == "assistant" and each.trained
        ]

        def is_trained(place: int) -> bool:
            return any(begin <= place < end for begin, end in spans)

        pieces: list[Piece] = []
        for text, token, start in self._words.split(whole):
            cuts = [begin - start for begin, _ in spans if 0 < begin - start < len(text)]
            for begin, end in pairwise([0, *cuts, len(text)]):
                if begin < end:
                    pieces.append((self._words.show(text[begin:end], mark), is_trained(start + begin)))
            if token is not None:
                pieces.append((token.id, is_trained(start + len(text))))
        return pieces

    def _span(self, hidden: Sequence[Mapping[str, str]], whole: str, turn: int) -> tuple[int, int]:
        opened = self.render(hidden[:turn], add_generation_prompt=True)
        if not whole.startswith(opened):
            raise UnprovenTemplateError("opens an answer in a generation prompt differently than in a chat")
        reasoning = hidden[turn].get(self._reasoning_key or "", "")
        # Reasoning may stand between control tokens of its own.
        ends = re.compile(re.escape(self.end)) if reasoning and self.end else self._words.pattern
        close = ends.search(whole, len(opened))
        if close is None or (self.end and close[0] != self.end):
            raise UnprovenTemplateError(f"does not close an answer with {self.end or 'a control token'}")
        before, answer, _ = whole[len(opened) : close.start()].rpartition(hidden[turn]["content"])
        if not answer:
            raise UnprovenTemplateError("does not write an answer as it is")
        if reasoning not in before:
            raise UnprovenTemplateError("does not write the reasoning of each answer before it")
        if not self.render(hidden[: turn + 1]).startswith(whole[: close.end()]):
            raise UnprovenTemplateError("writes an answer differently when the chat continues")
        return len(opened), close.end()

    def render(self, messages: Sequence[Mapping[str, str]], **settings: bool) -> str:
        """Return some turns as the template writes them, without today's date."""
        text = self._render(messages, **settings)
        if MARKS[2] in text:
            plain = (
                ""
                if messages[0]["role"] == "system"
                else " into a chat without a system turn; set finetune.system"
            )
            raise UnprovenTemplateError(f"writes today's date{plain}")
        return text

    def _render(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> str:
        settings |= {"tokenize": False}
        template = FIXED_DATE + self.template if DATE in self.template else self.template
        try:
            with bounded_time():
                return str(
                    self._tokenizer.apply_chat_template(list(messages), chat_template=template, **settings)
                )
        except RAISED as error:
            raise UnprovenTemplateError(f"cannot be rendered ({error})") from None


def _templates(tokenizer: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the templates that may do, and what to call them: the tokenizer's own, TRL's copy of it, its family's."""
    template = tokenizer.chat_template
    # The tokenizer stage writes our template where a base has none.
    if isinstance(template, str) and template != CHAT_TEMPLATE.read_text(encoding="utf-8"):
        check_limits(template, name)
        yield "its own template", template
        with suppress(ValueError):  # TRL has none of this template
            training_copy = chat_template_utils.get_training_chat_template(tokenizer) or template
            yield "TRL's training copy of its template", training_copy
    vocabulary = tokenizer.get_vocab()
    for tokens, family_template in FAMILIES.items():
        if all(token in vocabulary for token in tokens):
            yield f"the template of {tokens[0]}", family_template


def _proven(
    tokenizer: Any, template: str, samples: Sequence[Sequence[tuple[str, str]]], origin: str
) -> TemplateFormat:
    """Return the format of a template that writes the sample chats so that each answer can be trained."""
    unproven = TemplateFormat(tokenizer, template)
    system = (("system", SYSTEM["content"]),) if unproven.writes_date else ()
    chats = [
        Chat(messages=tuple(Message(role=role, content=content) for role, content in turns), place="sample")
        for turns in ((*(system if turns[0][0] != "system" else ()), *turns) for turns in samples)
    ]
    pieces = [piece for chat in chats for piece in unproven.pieces(chat)]
    ends = {piece for piece, trained in pieces if trained and isinstance(piece, int)}
    if len(ends) != 1:
        raise UnprovenTemplateError("closes answers with different control tokens")
    proven = TemplateFormat(tokenizer, template, str(tokenizer.convert_ids_to_tokens(ends.pop())), origin)
    for chat in chats:
        messages = [{"role": message.role, "content": message.content} for message in chat.messages]
        served = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True)
        parts = [piece for piece, _ in proven.pieces(chat)]
        encoded = iter(encode_texts(tokenizer, [piece for piece in parts if isinstance(piece, str)]))
        ids = [token for piece in parts for token in (next(encoded) if isinstance(piece, str) else [piece])]
        if ids != list(served["input_ids"]):
            raise UnprovenTemplateError("is read in other tokens as a whole than in parts")
    return proven


def recipe_format(
    tokenizer: PreTrainedTokenizerFast, settings: Finetune, name: str = "model"
) -> tuple[ChatFormat, str]:
    """Return the format of a run's chats, and the base's default system turn, empty for none.

    With `finetune.system: none` the tokenizer gets a template without that turn, which is trained and shipped.
    """
    written = chat_format(tokenizer, name)
    if settings.system == NO_SYSTEM and isinstance(written, TemplateFormat) and written.writes_date:
        # The turn that is taken out must be the same every day.
        tokenizer.chat_template = FIXED_DATE.replace(MARKS[2], "today") + written.template
        written = chat_format(tokenizer, name)
    default = written.default_system
    if settings.system != NO_SYSTEM or not default:
        return written, default
    assert isinstance(written, TemplateFormat)
    tokenizer.chat_template = _without_turn(written.template, _default_turn(written, tokenizer))
    plain = chat_format(tokenizer, name)
    if plain.default_system or plain.template != tokenizer.chat_template:
        raise DataError(
            f"{name}: finetune.system is none, and the default system turn of its chat template ({default[:80]!a}) "
            "cannot be told from the rest of a chat; set finetune.system to a text, or leave it out"
        )
    return plain, default


def system_turn(default: str, settings: Finetune) -> str:
    """Return the system turn of chats that have none, in training and where the model is served; empty for none."""
    return settings.system_text or ("" if settings.system == NO_SYSTEM else default)


def with_system(template: str, system: str | None) -> str:
    """Return a template that writes this system turn in a chat without one."""
    if not system:
        return template
    turn = json.dumps({"role": "system", "content": system.strip()}, ensure_ascii=False)
    return f"{{%- if messages[0]['role'] != 'system' %}}{{%- set messages = [{turn}] + messages %}}{{%- endif %}}{template}"


def _without_turn(template: str, turn: str) -> str:
    return (
        f"{{%- set written %}}{template.removesuffix(chr(10))}{{% endset %}}"
        f"{{%- if messages[0]['role'] == 'system' %}}{{{{- written }}}}"
        # llama.cpp knows no number of replacements, and refuses a template that gives it.
        f"{{%- else %}}{{{{- written.split({json.dumps(turn, ensure_ascii=False)}, 1) | join }}}}{{%- endif %}}"
    )


def _default_turn(written: TemplateFormat, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the default system turn as it is written: a chat's first question has it, and its second has not."""
    question = {"role": "user", "content": MARKS[0]}
    answered = [question, {"role": "assistant", "content": MARKS[1]}]
    first = written.render([question])
    later = written.render([*answered, question]).removeprefix(written.render(answered))
    bos = str(tokenizer.bos_token or "")
    if not later.startswith(bos):
        first = first.removeprefix(bos)
    # The turn stands before the question, or within it, behind its opening.
    shared = next((place for place, (a, b) in enumerate(zip(first, later, strict=False)) if a != b), 0)
    begin = 0 if first.endswith(later) else shared
    return first[begin:].removesuffix(later[begin:])
