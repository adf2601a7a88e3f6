"""Texts of the models: continuations and answers, greedy and sampled, and how much they loop.

Greedy decoding shows loops that sampling hides, and sampling shows what users get, so both are made.
"""

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedTokenizerFast

from anadil.core.errors import PreflightError
from anadil.core.progress import progress
from anadil.evaluate.models import CandidateDecoder
from anadil.model.chat_ids import chat_ids
from anadil.model.decoding import Continuation, Decoder, sample_seed, text_of
from anadil.model.load import document_ids, encode_text
from anadil.text.language_data import Language
from anadil.text.metrics import distinct, is_loop

log = logging.getLogger(__name__)

PromptKind = Literal["continuation", "answer"]
Mode = Literal["greedy", "sampled"]
DECODING_MODES: tuple[Mode, ...] = ("greedy", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPrompt:
    """A beginning to continue, or a question to answer."""

    text: str
    kind: PromptKind
    chat: bool = False
    """It goes through the chat template."""
    ids: tuple[int, ...] | None = None
    """Ids of the whole input, if it is more than the text: a chat of several turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """A text that a model wrote."""

    prompt: str
    kind: PromptKind
    mode: Mode
    chat: bool
    text: str
    num_tokens: int
    """Without the end token."""
    ended: bool
    """The model ended it by itself."""
    loop: bool
    distinct_1: float
    distinct_2: float
    distinct_4: float
    language: str | None = None
    """Code of the language it is in; None if it is too short to tell."""
    seen: bool | None = None
    """Training saw the question; None if unknown."""
    reference: str | None = None
    """The answer that is compared with; None where there is none, as for the next two."""
    exact: bool | None = None
    """It is the reference word for word."""
    chrf: float | None = None
    """Its chrF against the reference, 0 to 100."""
    topics: dict[str, str] | None = None
    """Columns of the question's row that sort questions into groups."""


def generate_texts(
    decoder: Decoder | CandidateDecoder, tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[GenerationPrompt], *, max_new_tokens: int, seed: int, name: str,
    modes: Sequence[Mode] = DECODING_MODES,
) -> list[GeneratedText]:  # fmt: skip
    """Continue each prompt in each mode, in order."""
    batches = decoder.batches(
        [prompt_ids(tokenizer, prompt) for prompt in prompts],
        [[None if mode == "greedy" else sample_seed(seed, each.text) for mode in modes] for each in prompts],
        max_new_tokens=max_new_tokens,
    )
    texts: dict[int, list[GeneratedText]] = {}
    with progress(f"generate {name}", total=len(prompts)) as bar:
        for place, rows in batches:
            pairs = zip(modes, rows, strict=True)
            texts[place] = [_describe(tokenizer, prompts[place], mode, row) for mode, row in pairs]
            bar.advance()
    return [text for place in range(len(prompts)) for text in texts[place]]


def is_of_use(kind: str, *, answers: bool) -> bool:
    """True if a text shows how good a candidate is at its use."""
    # A model that was taught to answer is judged by answers. Any other continues a question as it continues all text.
    return kind == "answer" or not answers


def repetition_of(texts: Iterable[GeneratedText]) -> dict[str, dict[str, float | int]]:
    """Return means over the generations of each mode; a text too short for an n-gram does not count."""
    table: dict[str, dict[str, float | int]] = {}
    for mode in DECODING_MODES:
        rows = [text for text in texts if text.mode == mode]
        if not rows:
            continue
        table[mode] = {
            "samples": len(rows),
            "distinct_1": _mean(text.distinct_1 for text in rows if text.num_tokens >= 1),
            "distinct_2": _mean(text.distinct_2 for text in rows if text.num_tokens >= 2),
            "distinct_4": _mean(text.distinct_4 for text in rows if text.num_tokens >= 4),
            "loop_rate": _mean(float(text.loop) for text in rows),
            "ended_rate": _mean(float(text.ended) for text in rows),
            "mean_tokens": _mean(float(text.num_tokens) for text in rows),
        }
    return table


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.fmean(listed) if listed else 0.0


def prompt_ids(tokenizer: Any, prompt: GenerationPrompt) -> list[int]:
    """Return the ids that a prompt becomes, in a chat by the tokenizer's template."""
    if prompt.ids is not None:
        return list(prompt.ids)
    if prompt.chat:
        turns = [{"role": "user", "content": prompt.text}]
        return chat_ids(tokenizer, turns, add_generation_prompt=True)
    return [document_ids(tokenizer, "tokenizer")[0], *encode_text(tokenizer, prompt.text)]


def _describe(tokenizer: Any, prompt: GenerationPrompt, mode: Mode, row: Continuation) -> GeneratedText:
    new = row.tokens
    return GeneratedText(
        prompt=prompt.text, kind=prompt.kind, mode=mode, chat=prompt.chat, text=text_of(tokenizer, new),
        num_tokens=len(new), ended=row.ended, loop=is_loop(new),
        distinct_1=distinct(new, 1), distinct_2=distinct(new, 2), distinct_4=distinct(new, 4),
    )  # fmt: skip


MIN_LETTERS = 20
"""Letters from which on a language is identified. Our choice; `py3langid` and CLD2 both guess below."""
UNKNOWN = "un"
"""CLD2's code for what it cannot tell; a text of the language's own code that its identifier refuses gets it too."""


def language_of(text: str, language: Language) -> str | None:
    """Return the code of the language that most of a text is in: its own, or CLD2's; None if it is too short."""
    letters = [*filter(str.isalpha, text)]
    if len(letters) < MIN_LETTERS:
        return None
    # A merge decodes by this module in an image without identifiers.
    from anadil.text.language_id import identify_language

    identified = identify_language(language.normalize(text), language)
    # A profile tells nothing of under 40 letters, and lets text pass that is in another script.
    if identified.is_language and 2 * sum(map(language.is_script, letters)) >= len(letters):
        return language.code
    return UNKNOWN if identified.code in language.labels else identified.code


def with_languages(texts: Sequence[GeneratedText], language: Language) -> list[GeneratedText]:
    """Set the language of each text; none where the user's identifier is not there."""
    try:
        return [replace(one, language=language_of(one.text, language)) for one in texts]
    except PreflightError as error:
        log.warning("language of the output: %s", error)
        return list(texts)


def output_language(texts: Iterable[GeneratedText], language: Language) -> dict[str, Any]:
    """Return how many texts could be told, the share in the language itself, and that of each code."""
    counts = Counter(text.language for text in texts if text.language is not None)
    num = counts.total()
    shares = {
        code: count / num for code, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    }
    return {"num": num, "own": shares.get(language.code, 0.0) if num else None, "shares": shares}
