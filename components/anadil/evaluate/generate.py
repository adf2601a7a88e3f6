"""What the models write: continuations and answers, greedy and sampled, and how much they loop.

Greedy decoding shows loops that sampling hides, and sampling shows what users get, so both are
made. The seed of a sample is that of its prompt: order and number of prompts change nothing.
"""

import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from anadil.core.progress import progress
from anadil.model.chat_ids import chat_ids
from anadil.model.load import encode_text, end_ids
from anadil.text.metrics import distinct, is_loop

TEMPERATURE = 0.6
"""Source: generation_config.json of Llama 3.2."""
TOP_P = 0.9
"""Source: generation_config.json of Llama 3.2."""

PromptKind = Literal["continuation", "answer"]
Mode = Literal["greedy", "sampled"]
DECODING_MODES: tuple[Mode, ...] = ("greedy", "sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPrompt:
    """What a model gets."""

    text: str
    kind: PromptKind
    """Whether it is a beginning or a question."""
    chat: bool = False
    """Whether it goes through the chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """What a model wrote."""

    prompt: str
    kind: PromptKind
    mode: Mode
    chat: bool
    text: str
    num_tokens: int
    """Without the end token."""
    ended: bool
    """Whether the model ended by itself."""
    loop: bool
    distinct_1: float
    distinct_2: float
    distinct_4: float


def generate_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[GenerationPrompt],
    *,
    max_new_tokens: int,
    seed: int,
    name: str,
) -> list[GeneratedText]:
    """Each prompt continued in each mode, in order."""
    model.eval()
    # Rows that fill the embedding up are no tokens.
    num_ids = max(tokenizer.get_vocab().values()) + 1
    texts = []
    with torch.inference_mode(), progress(f"generate {name}", total=len(prompts)) as bar:
        for prompt in prompts:
            ids = _prompt_ids(tokenizer, prompt)
            for mode in DECODING_MODES:
                choose = partial(_next_token, num_ids, _generator(mode, seed, prompt.text))
                new, ended = _continue(model, ids, _ends(model, tokenizer), max_new_tokens, choose)
                texts.append(_describe(tokenizer, prompt, mode, new, ended=ended))
            bar.advance()
    return texts


def repetition_of(texts: Iterable[GeneratedText]) -> dict[str, dict[str, float | int]]:
    """Means over the generations of each mode; a text too short for an n-gram does not count."""
    table: dict[str, dict[str, float | int]] = {}
    for mode in DECODING_MODES:
        own = [one for one in texts if one.mode == mode]
        if not own:
            continue
        table[mode] = {
            "samples": len(own),
            "distinct_1": _mean(one.distinct_1 for one in own if one.num_tokens >= 1),
            "distinct_2": _mean(one.distinct_2 for one in own if one.num_tokens >= 2),
            "distinct_4": _mean(one.distinct_4 for one in own if one.num_tokens >= 4),
            "loop_rate": _mean(float(one.loop) for one in own),
            "ended_rate": _mean(float(one.ended) for one in own),
            "mean_tokens": _mean(float(one.num_tokens) for one in own),
        }
    return table


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.fmean(listed) if listed else 0.0


def _prompt_ids(tokenizer: Any, prompt: GenerationPrompt) -> list[int]:
    if prompt.chat:
        turns = [{"role": "user", "content": prompt.text}]
        return chat_ids(tokenizer, turns, add_generation_prompt=True)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return [first, *encode_text(tokenizer, prompt.text)]


def _ends(model: Any, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Every id that ends a text: the model's own list and the tokenizer's."""
    listed = getattr(model.generation_config, "eos_token_id", None)
    own = [listed] if isinstance(listed, int) else list(listed or ())
    return frozenset([*own, *end_ids(tokenizer)])


def _generator(mode: Mode, seed: int, prompt: str) -> torch.Generator | None:
    """What samples are drawn with: on the CPU, so that they do not depend on the device."""
    if mode == "greedy":
        return None
    digest = hashlib.sha256(f"{seed} {prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _next_token(num_ids: int, generator: torch.Generator | None, logits: torch.Tensor) -> int:
    logits = logits[:num_ids]
    if generator is None:
        return int(logits.argmax())
    probabilities, order = torch.softmax(logits / TEMPERATURE, 0).sort(descending=True, stable=True)
    before = probabilities.cumsum(0) - probabilities
    kept = probabilities.masked_fill(before >= TOP_P, 0)
    return int(order[torch.multinomial(kept, 1, generator=generator)])


def _continue(
    model: Any,
    ids: Sequence[int],
    ends: frozenset[int],
    max_new_tokens: int,
    choose: Callable[[torch.Tensor], int],
) -> tuple[list[int], bool]:
    """New tokens, and whether an end token followed them."""
    longest = getattr(model.config, "max_position_embeddings", None) or len(ids) + max_new_tokens
    budget = min(max_new_tokens, longest - 1)
    # The end of a prompt says most about what follows, so its beginning is what goes.
    inputs = torch.tensor([list(ids)[-(longest - budget) :]], device=model.device)
    cache = None
    new: list[int] = []
    while len(new) < budget:
        out = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        token = choose(out.logits[0, -1].float().cpu())
        if token in ends:
            return new, True
        new.append(token)
        inputs = torch.tensor([[token]], device=model.device)
    return new, False


def _describe(
    tokenizer: Any, prompt: GenerationPrompt, mode: Mode, new: Sequence[int], *, ended: bool
) -> GeneratedText:
    return GeneratedText(
        prompt=prompt.text,
        kind=prompt.kind,
        mode=mode,
        chat=prompt.chat,
        text=tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        num_tokens=len(new),
        ended=ended,
        loop=is_loop(new),
        distinct_1=distinct(new, 1),
        distinct_2=distinct(new, 2),
        distinct_4=distinct(new, 4),
    )
