"""Documents that a base model writes by itself: plain text from its document start, and chats in its own template.

Document `n` follows from the base, the seed and `n`: each has generators of its own, so that neither the batch nor the
shard that it is written in changes it. Matrix products of another shape or device differ in their last bits, though, and
where two tokens are about equally likely such a bit decides.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from anadil.model.chat_ids import ControlWords, chat_ids, rendered
from anadil.model.decoding import TEMPERATURE, TOP_P, Continuation, open_decoder, sample_seed, text_of
from anadil.model.load import document_ids
from anadil.model.template_limits import RAISED
from anadil.plan.stage_memory import MAX_TOKENS, batch_tokens, cache_bytes
from anadil.text.metrics import is_loop

log = logging.getLogger(__name__)

QUESTION_TOKENS, ANSWER_TOKENS = 256, 1_024
"""Most tokens of a chat's question and answer. A chat that does not end by then is dropped: it would teach to break off."""
SAMPLING = {"text": (1.0, 1.0), "question": (1.0, 1.0), "answer": (TEMPERATURE, TOP_P)}
"""Temperature and top-p of each part. At 1 and 1 every id is drawn as often as the base would have it, so that training on
the text moves the base nowhere by itself. Source: sampling in the code of arXiv:2605.26097, questions of arXiv:2406.08464
(Magpie). Answers are drawn as people get them: at 1, a base of 135M ended none of 4 within 1,024 tokens. Magpie's are greedy,
which lets small bases loop."""
CHAT_EVERY = 2
"""One document of so many is a chat, where the base was taught chats. Chosen by us: text and chats may both be forgotten,
and no one has published a share."""
PROBES = 8
"""Chats that are begun to see whether the base writes chats: many a base has a template that it was never taught."""
PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the user's words while a template is cut in two."""
CUT_OFF = "\N{REPLACEMENT CHARACTER}"
"""Ends a text whose last token is a part of a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenDocument:
    """A text that the base wrote."""

    number: int
    kind: str
    """`text` or `chat`."""
    text: str
    tokens: int
    """Tokens that were sampled, the end token too."""
    dropped: str = ""
    """Reason why it is of no use: `empty`, `loop`, `control` (it spells a control token), `unended` (a chat)."""

    def as_row(self) -> dict[str, str | int]:
        """Row of the artifact."""
        return {"text": self.text, "number": self.number, "kind": self.kind}


class Writer:
    """A base that writes."""

    def __init__(self, model: Any, tokenizer: Any, seed: int, name: str) -> None:
        """Take a model on its device, and its tokenizer; `name` is for messages."""
        self._decoder, self._tokenizer, self._seed = open_decoder(model, tokenizer), tokenizer, seed
        self._begin = document_ids(tokenizer, name)[0]
        self._words = ControlWords(tokenizer)
        longest = getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS + 1
        # One token begins the document.
        self.max_tokens = min(MAX_TOKENS, longest - 1)
        self._batch_tokens = _batch_tokens(model)
        self._prefix = self._question_prefix()
        if self._prefix and not self._asks():
            log.info(
                "%s: has a chat template, and ends none of %d questions: it writes no chats", name, PROBES
            )
            self._prefix = []

    @property
    def writes_chats(self) -> bool:
        """True if some of its documents are chats."""
        return bool(self._prefix)

    def write(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        """Write the documents of these numbers, in order."""
        chats = [number for number in numbers if self.writes_chats and number % CHAT_EVERY == CHAT_EVERY - 1]
        texts = [number for number in numbers if number not in {*chats}]
        written = [*self._texts(texts), *self._chats(chats)]
        return sorted(written, key=lambda each: each.number)

    def _texts(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        rows = self._continued("text", {number: [self._begin] for number in numbers}, self.max_tokens)
        return [self._judged(number, "text", row) for number, row in rows.items()]

    def _chats(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        """Write questions behind the beginning of a user's turn, then the answers. Source: arXiv:2406.08464."""
        asked = self._continued("question", dict.fromkeys(numbers, self._prefix), QUESTION_TOKENS)
        chats = {number: self._judged(number, "chat", row) for number, row in asked.items()}
        turns = {
            number: [{"role": "user", "content": each.text}]
            for number, each in chats.items()
            if not each.dropped
        }
        prompts = {
            number: chat_ids(self._tokenizer, each, add_generation_prompt=True)
            for number, each in turns.items()
        }
        for number, row in self._continued("answer", prompts, ANSWER_TOKENS).items():
            answer = self._judged(number, "chat", row)
            whole = replace(answer, tokens=answer.tokens + chats[number].tokens)
            chats[number] = whole if whole.dropped else self._in_template(whole, turns[number])
        return list(chats.values())

    def _in_template(self, answer: WrittenDocument, turns: list[dict[str, str]]) -> WrittenDocument:
        """Return a chat as its template writes it, without the BOS that every document gets."""
        turns = [*turns, {"role": "assistant", "content": answer.text}]
        text = str(rendered(self._tokenizer, turns, tokenize=False))
        return replace(answer, text=text.removeprefix(self._tokenizer.bos_token or "").strip())

    def _judged(self, number: int, kind: str, row: Continuation) -> WrittenDocument:
        """Return a text with the reason to drop it, if there is one."""
        text = text_of(self._tokenizer, row.tokens).rstrip(CUT_OFF).strip()
        dropped = ""
        if not text:
            dropped = "empty"
        elif kind == "chat" and not row.ended:
            dropped = "unended"
        elif is_loop(row.tokens):
            dropped = "loop"
        elif self._words.pattern.search(text):
            # `encode` reads such letters as the token in all that the base wrote: only templates may write them.
            dropped = "control"
        return WrittenDocument(
            number=number, kind=kind, text=text, dropped=dropped, tokens=len(row.tokens) + row.ended
        )  # fmt: skip

    def _continued(
        self, part: str, prompts: Mapping[int, Sequence[int]], most: int
    ) -> dict[int, Continuation]:
        """Return number -> continuation of its prompt, each drawn by a generator of its own."""
        numbers, (temperature, top_p) = list(prompts), SAMPLING[part]
        rows: Iterable[tuple[int, list[Continuation]]] = self._decoder.batches(
            list(prompts.values()), [[sample_seed(self._seed, f"{part} {number}")] for number in numbers],
            max_new_tokens=most, batch_tokens=self._batch_tokens, temperature=temperature, top_p=top_p,
        )  # fmt: skip
        return {numbers[place]: continuation for place, [continuation] in rows}

    def _question_prefix(self) -> list[int]:
        """Return the ids before a user's first words in the template; nothing where the base has no template."""
        if self._tokenizer.chat_template is None:
            return []
        turns = [{"role": "user", "content": PLACE}]
        try:
            before, place, _ = str(rendered(self._tokenizer, turns, tokenize=False)).partition(PLACE)
        except RAISED as error:
            log.warning("the chat template refuses a question (%s), so the base writes no chats", error)
            return []
        return list(self._tokenizer.encode(before, add_special_tokens=False)) if place else []

    def _asks(self) -> bool:
        """Return whether the base ends one of a few questions, and not as a document ends alone."""
        # Numbers of their own: no document is one of them.
        prompts = dict.fromkeys(range(-PROBES, 0), self._prefix)
        rows = self._continued("question", prompts, QUESTION_TOKENS).values()
        return any(row.ended and text_of(self._tokenizer, row.tokens).strip() for row in rows)


def _batch_tokens(model: Any) -> int | None:
    """Return the tokens that are written side by side; None: as many as the decoder takes by itself."""
    if model.device.type != "cuda":
        return None
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    # Where layers lie on several GPUs, the first one's memory holds its part of the cache only.
    free, _ = torch.cuda.mem_get_info(model.device)
    return batch_tokens(free, cache_bytes(config.num_hidden_layers, width, model.dtype.itemsize))
