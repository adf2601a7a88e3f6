"""Talk to a finished model: chats within its context, answers piece by piece or in batches."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils import logging as transformers_logging

from anadil.artifacts.base_model import CHAT_TEMPLATE, model_config
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.core.format import human_bytes
from anadil.estimate.instances import CPU, this_machine
from anadil.estimate.model_shape import NotPlannedError, shape_from
from anadil.estimate.stage_memory import scoring_memory
from anadil.evaluate.models import load_for_scoring
from anadil.model.chat_ids import chat_ids
from anadil.model.decoding import TEMPERATURE, open_decoder, sample_seed, text_of
from anadil.model.load import document_ids, encode_text, load_tokenizer
from anadil.release.model_source import find_model

log = logging.getLogger(__name__)

# Default limit in tokens of a chat: 1 GiB of cache for an 8B in BF16, at 128 KiB a token.
MAX_CONTEXT = 8_192
MAX_TOKENS = 512
"""Default limit of an answer. Our choice."""
NO_CHARACTER = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Settings of a chat."""

    system: str = ""
    """System turn; empty for none."""
    complete: bool = False
    """Continue a text instead of answering."""
    seed: int = 0
    temperature: float = TEMPERATURE
    """Sampling temperature; 0 is greedy."""
    max_tokens: int = MAX_TOKENS
    context: int | None = None
    """Tokens of chat and answer together; left out, the model's, at most `MAX_CONTEXT`."""


class ChatModel:
    """A model in memory with the settings of its chats."""

    def __init__(self, model: Any, tokenizer: Any, settings: ChatSettings, name: str) -> None:
        self.model, self.settings, self.name = model, settings, name
        self._tokenizer = tokenizer
        self._longest = getattr(model.config, "max_position_embeddings", None) or MAX_CONTEXT
        self.context = min(self._longest, settings.context or MAX_CONTEXT)
        self.reserve = max(1, min(settings.max_tokens, self.context // 2))
        """Tokens reserved for an answer."""
        self.writer = open_decoder(model, tokenizer)
        self._prompt([], "?")

    def answers(self, questions: Sequence[str]) -> list[str | DataError]:
        """Answer each question in a new chat, or return its error; a blank question gets a blank answer."""
        answers: list[str | DataError] = [""] * len(questions)
        prompts: dict[int, list[int]] = {}
        for place, question in enumerate(questions):
            try:
                if question.strip():
                    prompts[place] = self._prompt([], question)[0]
            except DataError as error:
                answers[place] = error
        places = list(prompts)
        batches = self.writer.batches(
            list(prompts.values()),
            [[self.seed_of(questions[place])] for place in places],
            max_new_tokens=self.reserve,
            temperature=self.settings.temperature or TEMPERATURE,
        )
        for number, rows in batches:
            answers[places[number]] = text_of(self._tokenizer, rows[0].tokens)
        return answers

    def stream(
        self, history: Sequence[dict[str, str]], question: str, *, seed: int | None
    ) -> tuple[Iterator[str], int]:
        """Pieces of an answer, and the number of the oldest turns that it skips."""
        ids, left_out = self._prompt(history, question)
        tokens = self.writer.stream(
            ids,
            seed=seed,
            temperature=self.settings.temperature or TEMPERATURE,
            most=min(self.settings.max_tokens, self.context - len(ids)),
        )
        return text_pieces(self._tokenizer, tokens), left_out

    def seed_of(self, question: str, turn: int = 0) -> int | None:
        """Seed of an answer: the same question gets another answer in another turn; None for greedy."""
        if not self.settings.temperature:
            return None
        return sample_seed(self.settings.seed + turn, question)

    def _prompt(self, history: Sequence[dict[str, str]], question: str) -> tuple[list[int], int]:
        """Ids of a question with as many of the latest turns as there is room for, and the number of the others."""
        room = self.context - self.reserve
        for left_out in range(0, len(history) + 1, 2):
            ids = self._encode([*history[left_out:], {"role": "user", "content": question}])
            if len(ids) <= room:
                return ids, left_out
        system = " with the system turn" if self.settings.system else ""
        raise DataError(
            f"{question[:40]!a}{'...' if len(question) > 40 else ''}: {len(ids):,} tokens{system}, and {self.name} has "
            f"room for {room:,} of {self.context:,} beside an answer; shorten it, or set --max-tokens lower"
            f"{' or --context higher' if self.context < self._longest else ''}"
        )

    def _encode(self, turns: list[dict[str, str]]) -> list[int]:
        tokenizer, settings = self._tokenizer, self.settings
        if settings.complete:
            bos, end = document_ids(tokenizer, self.name)
            return [end if bos is None else bos, *encode_text(tokenizer, turns[-1]["content"])]
        if settings.system:
            turns = [{"role": "system", "content": settings.system}, *turns]
        try:
            return chat_ids(tokenizer, turns, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise DataError(f"{self.name}: its chat template does not write this chat ({error})") from None


class Chat:
    """A chat of several turns with a model."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self._history: list[dict[str, str]] = []
        self._turns = 0
        self.left_out = 0
        """Messages that the model no longer sees."""

    def reset(self) -> None:
        """Forget all turns; a chat with the same beginning gets other answers."""
        self._history, self.left_out = [], 0

    def ask(self, question: str) -> Iterator[str]:
        """Pieces of the answer; those that were read become part of the chat."""
        seed = self.model.seed_of(question, self._turns)
        history = [] if self.model.settings.complete else self._history[self.left_out :]
        pieces, left_out = self.model.stream(history, question, seed=seed)
        self._turns += 1
        self.left_out += left_out

        def pieces_into_history() -> Iterator[str]:
            answer = ""
            try:
                for piece in pieces:
                    answer += piece
                    yield piece
            finally:
                turns = (("user", question), ("assistant", answer))
                self._history += [{"role": role, "content": content} for role, content in turns]

        return pieces_into_history()


def open_chat(uri: str, settings: ChatSettings, tracking: str | None = None) -> ChatModel:
    """Find a model by any name that `find_model` takes, check it against the settings, and load it."""
    source = find_model(uri, tracking=tracking)
    if source.directory is None:
        raise RecipeError(
            f"{uri}: is a {source.kind}; make a model of it first: "
            f"anadil export {uri} --recipe RECIPE --tokenizer URI --out DIR"
        )
    transformers_logging.set_verbosity_error()  # our errors replace its warnings about length
    tokenizer: Any = load_tokenizer(source.directory)
    if not settings.complete:
        _check_answers(
            uri, tokenizer.chat_template, adapted=source.candidate is not None and not source.answers
        )
    _check_memory(source.directory, uri)
    return ChatModel(load_for_scoring(source.directory, uri), tokenizer, settings, uri)


def _check_answers(uri: str, template: object, *, adapted: bool) -> None:
    # Tokenizers made for a base without a template get ours, which only finetune teaches a model.
    why = "has no chat template" if template is None else "is a model of a base that knows no chats"
    if template is None or (adapted and template == CHAT_TEMPLATE.read_text(encoding="utf-8")):
        raise RecipeError(
            f"{uri}: {why}, so it continues texts and answers none; add --complete, and give it the beginning of "
            "a text, or name the adapter that finetune made of it"
        )


def _check_memory(directory: Path, name: str) -> None:
    """Refuse a model that this machine's memory cannot hold; GPUs are asked when it is loaded."""
    machine = this_machine()
    if machine.device != CPU:
        return
    try:
        need = scoring_memory(shape_from(model_config(directory), name), machine, 1, "evaluate")
    except (NotPlannedError, DataError):  # an unknown shape; loading it says more
        return
    if need.verdict == "no":
        raise PreflightError(
            f"{name}: needs {human_bytes(need.total_bytes)} of memory, and this machine has "
            f"{human_bytes(machine.memory_bytes)}; take a machine with more, or serve a smaller export: anadil export "
            f"{name} --format gguf --quantize q8_0"
        )


def text_pieces(tokenizer: Any, tokens: Iterator[int]) -> Iterator[str]:
    """Yield the text of tokens in whole characters: a character of several tokens comes with its last one.

    The pieces together are `text_of` all tokens.
    """
    known: list[int] = []
    # Decoding starts at `begin`, a token before the new ones: some tokenizers drop a text's first blank.
    begin = read = shown = 0
    for token in tokens:
        known.append(token)
        text = text_of(tokenizer, known[begin:])
        # The bytes of an unfinished character are one such sign at the end; invalid bytes stay as they are.
        whole = len(text) - text.endswith(NO_CHARACTER)
        if whole > shown:
            yield text[shown:whole]
            shown = whole
        if whole == len(text):
            begin, read = read, len(known)
            shown = len(text_of(tokenizer, known[begin:]))
    text = text_of(tokenizer, known[begin:])
    if len(text) > shown:
        yield text[shown:]
