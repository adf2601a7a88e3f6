"""Documents that a base model writes by itself: plain text from its document start, and chats in its own template.

Document `n` follows from the base, the seed and `n`: each has generators of its own, so that neither the batch nor the
shard that it is written in changes it. Matrix products of another shape or device differ in their last bits, though, and
where two tokens are about equally likely such a bit decides.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anadil.model.chat_ids import ControlWords, chat_ids, rendered
from anadil.model.decoding import Continuation, open_decoder, sample_seed, text_of
from anadil.model.load import document_ids
from anadil.model.template_limits import RAISED
from anadil.text.metrics import is_loop

log = logging.getLogger(__name__)

MAX_TOKENS = 1_024
"""Most tokens of a document. Chosen by us: most pages of the web are shorter; arXiv:2605.26097 has 512."""
QUESTION_TOKENS = 256
"""Most tokens of a chat's question; one that does not end by then is none."""
TEMPERATURES = (1.0,)
"""Temperatures, in turn. At 1 all ids may be drawn as often as the base would have them (`TOP_P`), so training on its
text moves it nowhere by itself. Source: sampling in the code of arXiv:2605.26097; questions of arXiv:2406.08464 (Magpie)."""
TOP_P = 1.0
CHAT_EVERY = 2
"""One document of so many is a chat, where the base was taught chats. Chosen by us: text and chats may both be forgotten,
and no one has published a share."""
PROBES = 8
"""Chats that are begun to see whether the base writes chats: many a base has a template that it was never taught."""
CPU_TOKENS = 32_768
"""Tokens that a CPU samples side by side: 32 documents. Their cache takes 2 GiB with a base of 1B in FP32."""
CACHE_SHARE = 0.5
"""Share of a GPU's free memory for the cache. A step copies that of one layer, and draws in FP64 from its logits."""
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
    temperature: float
    text: str
    tokens: int
    """Tokens that were sampled, the end token too."""
    dropped: str = ""
    """Reason why it is of no use: `empty`, `loop`, `control` (it spells a control token), `unended` (a chat)."""

    def as_row(self) -> dict[str, str | int | float]:
        """Row of the artifact."""
        return {"text": self.text, "number": self.number, "kind": self.kind, "temperature": self.temperature}


class Writer:
    """A base that writes."""

    def __init__(self, model: Any, tokenizer: Any, seed: int, name: str) -> None:
        """Take a model on its device, and its tokenizer; `name` is for messages.

        Raises:
            DataError: The tokenizer has no end token, or its chat template takes minutes.
        """
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
        """Write the documents of these numbers, in order.

        Raises:
            DataError: The model gives no numbers.
        """
        by_form: defaultdict[tuple[bool, float], list[int]] = defaultdict(list)
        for number in numbers:
            is_chat = self.writes_chats and number % CHAT_EVERY == CHAT_EVERY - 1
            by_form[is_chat, TEMPERATURES[number // CHAT_EVERY % len(TEMPERATURES)]].append(number)
        written: list[WrittenDocument] = []
        for (is_chat, temperature), some in by_form.items():
            written += (self._chats if is_chat else self._texts)(some, temperature)
        return sorted(written, key=lambda each: each.number)

    def _texts(self, numbers: Sequence[int], temperature: float) -> list[WrittenDocument]:
        prompts = {number: [self._begin] for number in numbers}
        rows = self._continued("text", prompts, temperature, self.max_tokens)
        return [
            self._judged(number, "text", temperature, text_of(self._tokenizer, row.tokens), row)
            for number, row in rows.items()
        ]

    def _chats(self, numbers: Sequence[int], temperature: float) -> list[WrittenDocument]:
        """Write questions behind the beginning of a user's turn, then the answers. Source: arXiv:2406.08464."""
        prompts = dict.fromkeys(numbers, self._prefix)
        questions = self._continued("question", prompts, temperature, self._most_question())
        texts = {number: text_of(self._tokenizer, row.tokens).strip() for number, row in questions.items()}
        judged = {
            number: self._judged(number, "chat", temperature, texts[number], row)
            for number, row in questions.items()
        }
        turns = {
            number: [{"role": "user", "content": texts[number]}]
            for number, each in judged.items()
            if not each.dropped
        }
        prompts = {
            number: chat_ids(self._tokenizer, asked, add_generation_prompt=True)
            for number, asked in turns.items()
        }
        answers = self._continued("answer", prompts, temperature, self.max_tokens - self._most_question())
        for number, row in answers.items():
            answer = text_of(self._tokenizer, row.tokens)
            whole = self._judged(number, "chat", temperature, answer, row, judged[number].tokens)
            judged[number] = whole if whole.dropped else self._in_template(whole, turns[number])
        return list(judged.values())

    def _in_template(self, answer: WrittenDocument, turns: list[dict[str, str]]) -> WrittenDocument:
        """Return a chat as its template writes it, without the BOS that every document gets."""
        turns = [*turns, {"role": "assistant", "content": answer.text}]
        text = str(rendered(self._tokenizer, turns, tokenize=False))
        text = text.removeprefix(self._tokenizer.bos_token or "").strip()
        return WrittenDocument(
            number=answer.number, kind="chat", temperature=answer.temperature, text=text, tokens=answer.tokens
        )

    def _judged(
        self, number: int, kind: str, temperature: float, text: str, row: Continuation, before: int = 0
    ) -> WrittenDocument:
        text = text.rstrip(CUT_OFF).strip()
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
            number=number, kind=kind, temperature=temperature, text=text, dropped=dropped,
            tokens=before + len(row.tokens) + row.ended,
        )  # fmt: skip

    def _continued(
        self, what: str, prompts: Mapping[int, Sequence[int]], temperature: float, most: int
    ) -> dict[int, Continuation]:
        """Return number -> continuation of its prompt, each drawn by a generator of its own."""
        numbers = list(prompts)
        rows: Iterable[tuple[int, list[Continuation]]] = self._decoder.batches(
            list(prompts.values()), [[sample_seed(self._seed, f"{what} {number}")] for number in numbers],
            max_new_tokens=most, batch_tokens=self._batch_tokens, temperature=temperature, top_p=TOP_P,
        )  # fmt: skip
        return {numbers[place]: continuation for place, [continuation] in rows}

    def _most_question(self) -> int:
        return min(QUESTION_TOKENS, self.max_tokens // 2)

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
        rows = self._continued("question", prompts, TEMPERATURES[0], self._most_question()).values()
        return any(row.ended and text_of(self._tokenizer, row.tokens).strip() for row in rows)


def _batch_tokens(model: Any) -> int:
    """Return the tokens that are sampled side by side: more rows a step cost little, as long as their cache fits."""
    if model.device.type != "cuda":
        return CPU_TOKENS
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    cache_bytes = 2 * config.num_hidden_layers * width * model.dtype.itemsize
    # Where layers lie on several GPUs, the first one's memory holds its part of the cache only.
    return max(CPU_TOKENS, int(CACHE_SHARE * torch.cuda.mem_get_info(model.device)[0] / cache_bytes))
