"""The one decoder: batches of many prompts for the scores, one answer token by token for a chat.

A step of fifty rows reads every weight once, as a step of one row does, and that bounds decoding on CPUs and GPUs. So
prompts share batches, and a row that has ended leaves its batch. Prompts are padded on the left, where the mask hides
it and positions skip it. A row's text does not depend on the other rows, but for rounding in matrix products (1e-6 of a
logit in FP32): each sample has a generator of its own, and draws follow the order of ids, not of nearly equal shares.

Shapes: P prompts of a batch, R rows that are still written, T tokens of the longest prompt, V ids.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from anadil.core.errors import DataError
from anadil.model.chat_template import end_ids

TEMPERATURE = 0.6
TOP_P = 0.9
"""Both from generation_config.json of Llama 3.2."""
LIKELIEST = 256
"""Number of ids that nearly always hold the share `TOP_P`; else all ids are sorted."""
BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Most tokens of a batch by device, prompt and answer: 4 GiB of cache for an 8B in BF16 (128 KiB a token)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """New tokens of one row, without the end token."""

    tokens: tuple[int, ...]
    ended: bool
    """An end token followed."""


class Decoder:
    """A model that writes; it keeps the cache of its last streamed answer."""

    def __init__(self, model: Any, *, ends: frozenset[int], num_ids: int) -> None:
        """Take a causal language model, on its device, the ids that end a text, and the number of ids to write."""
        # Padding rows of the embedding lie behind the ids.
        self.model, self._ends, self._num_ids = model, ends, num_ids
        self._cache: Any = None
        self._cached: list[int] = []
        """Ids that the cache holds."""
        self.ended = False
        """The last streamed text ended by itself."""

    def batches(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int | None]], *, max_new_tokens: int,
        batch_tokens: int | None = None, temperature: float = TEMPERATURE, top_p: float = TOP_P,
    ) -> Iterator[tuple[int, list[Continuation]]]:  # fmt: skip
        """Yield each prompt's place and its continuations, the longest prompts first.

        Each continuation of a prompt has a seed, None for greedy; all prompts have the same number of them. A batch has at
        most `batch_tokens` over all continuations, but one prompt always goes.
        """
        longest = getattr(self.model.config, "max_position_embeddings", None)
        budget = max_new_tokens if longest is None else min(max_new_tokens, longest - 1)
        room = None if longest is None else longest - budget
        cut = [list(ids)[-room:] if room else list(ids) for ids in prompts]
        # Longest first, so that running out of memory shows at once.
        order = sorted(range(len(cut)), key=lambda place: (-len(cut[place]), place))
        limit = batch_tokens or BATCH_TOKENS.get(self.model.device.type, BATCH_TOKENS["cpu"])
        while order:
            rows = (len(cut[order[0]]) + budget) * len(seeds[order[0]])
            batch, order = order[: max(1, limit // rows)], order[max(1, limit // rows) :]
            drawn = [seed for place in batch for seed in seeds[place]]
            written = _Rows(self.model, [cut[place] for place in batch], drawn, budget)
            for _ in written.steps(self._ends, self._num_ids, temperature, top_p):
                pass
            continuations, each = written.continuations(), len(drawn) // len(batch)
            for number, place in enumerate(batch):
                yield place, continuations[number * each : (number + 1) * each]

    def stream(
        self, prompt: Sequence[int], *, seed: int | None, temperature: float, most: int
    ) -> Iterator[int]:
        """Yield the tokens of one continuation, without the end token; only what the cache lacks is read. Seed None is greedy."""
        self.ended = False
        num_cached = self._rewind(prompt)
        self._cached = list(prompt[:num_cached])
        rows = _Rows(self.model, [prompt[num_cached:]], [seed], most, self._cache, num_cached)
        self._cache = None  # a pass that is broken off leaves a cache of no use
        for new in rows.steps(self._ends, self._num_ids, temperature):
            [continuation] = rows.continuations()
            self.ended = continuation.ended
            tokens = continuation.tokens
            self._cache, self._cached = rows.cache, [*prompt, *(tokens if self.ended else tokens[:-1])]
            if self.ended:
                return
            yield new[0]
            self._cache = None
        self._cache = rows.cache

    def _rewind(self, prompt: Sequence[int]) -> int:
        """Crop the cache to what it shares with a prompt; return the number of ids that it then holds."""
        pairs = zip(prompt[:-1], self._cached, strict=False)  # the last id is always read, for its logits
        same = next((place for place, (new, old) in enumerate(pairs) if new != old), None)
        same = min(len(prompt) - 1, len(self._cached)) if same is None else same
        if self._cache is not None and same < len(self._cached):
            # A sliding window or a recurrent state cannot go back, nor can a convolution, which says that it could.
            if (
                any(self._cache.is_sliding)
                or not self._cache.is_croppable
                or any(isinstance(each, LinearAttentionCacheLayerMixin) for each in self._cache.layers)
            ):
                self._cache = None
            else:
                self._cache.crop(same - len(self._cached))
        return 0 if self._cache is None else same


def open_decoder(
    model: Any, tokenizer: PreTrainedTokenizerFast, ends: Sequence[int] | None = None
) -> Decoder:
    """Make the decoder of a model: `ends` end a text, or its own end ids and the tokenizer's."""
    if ends is None:
        listed = getattr(model.generation_config, "eos_token_id", None)
        ends = [*([listed] if isinstance(listed, int) else listed or ()), *end_ids(tokenizer)]
    model.eval()
    num_ids = max(tokenizer.get_vocab().values()) + 1
    return Decoder(model, ends=frozenset(ends), num_ids=num_ids)


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Decode tokens without special ones."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def sample_seed(seed: int, prompt: str) -> int:
    """Derive a prompt's seed from its text: order and number of other prompts change nothing."""
    digest = hashlib.sha256(f"{seed} {prompt}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


class _Rows:
    """Rows that are written side by side, one token of each at a time."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[int | None], budget: int,
        cache: Any = None, num_cached: int = 0,
    ) -> None:  # fmt: skip
        """Pad the prompts; `cache` holds `num_cached` ids that come before the one prompt."""
        self._model, self._budget = model, budget
        self.cache, self._num_cached = cache, num_cached
        self._width = max(map(len, prompts))
        # The mask is as wide as it will be; a step takes the columns up to its own.
        ids = torch.zeros(len(prompts), self._width, dtype=torch.long)
        mask = torch.ones(len(prompts), self._width + budget, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, self._width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, : self._width - len(prompt)] = 0
        self._repeats = len(seeds) // len(prompts)
        self._ids, self._mask = ids.to(model.device), mask.to(model.device)
        self._padded = bool((mask == 0).any())
        # NaN stands for greedy.
        uniform = [
            np.full(budget, np.nan) if seed is None else np.random.default_rng(seed).random(budget)
            for seed in seeds
        ]
        self._uniform = torch.from_numpy(np.stack(uniform)).to(model.device)
        self._rows = list(range(len(seeds)))
        """Row of each line of the tensors."""
        self._new: list[list[int]] = [[] for _ in seeds]
        self._ended = [False] * len(seeds)

    def steps(
        self, ends: frozenset[int], num_ids: int, temperature: float, top_p: float = TOP_P
    ) -> Iterator[list[int]]:
        """Yield the tokens of each step until every row has ended or used its budget."""
        chosen: torch.Tensor | None = None
        for step in range(self._budget):
            # Not around the `yield`: the mode would leak to whoever reads.
            with torch.inference_mode():
                logits = self._prefill() if chosen is None else self._forward(chosen[:, None], step - 1)
                chosen = choose(logits[:, :num_ids].float(), self._uniform[:, step], temperature, top_p)
                tokens = chosen.tolist()
                going_on = self._note(tokens, ends)
                if 0 < len(going_on) < len(tokens):
                    self._keep(going_on)
                    chosen = chosen[torch.tensor(going_on, device=chosen.device)]
            yield tokens
            if not going_on:
                return

    def continuations(self) -> list[Continuation]:
        """Return the text of each row so far."""
        pairs = zip(self._new, self._ended, strict=True)
        return [Continuation(tokens=tuple(new), ended=ended) for new, ended in pairs]

    def _prefill(self) -> torch.Tensor:
        """Read each prompt once, then repeat its row for each continuation."""
        mask = self._mask[:, : self._width]
        # Padding gets a position too, but nothing reads it.
        positions = (mask.cumsum(1) - 1).clamp(min=0) + self._num_cached
        out = self._model(
            input_ids=self._ids, attention_mask=mask if self._padded else None, position_ids=positions,
            cache=self.cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        self.cache = out.cache
        logits: torch.Tensor = out.logits[:, -1]
        self._next = positions[:, -1:] + 1
        if self._repeats > 1:
            # Recurrent states have `reorder_cache` alone.
            self.cache.reorder_cache(torch.arange(len(logits)).repeat_interleave(self._repeats))
            self._mask, self._next, logits = (
                tensor.repeat_interleave(self._repeats, 0) for tensor in (self._mask, self._next, logits)
            )
        return logits

    def _forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        output = self._model(
            input_ids=inputs, attention_mask=self._mask[:, : self._width + step + 1] if self._padded else None,
            position_ids=self._next + step, cache=self.cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _note(self, tokens: Sequence[int], ends: frozenset[int]) -> list[int]:
        """Append each row's token; return the lines of the rows that go on."""
        going_on = []
        for line, (row, token) in enumerate(zip(self._rows, tokens, strict=True)):
            if token in ends:
                self._ended[row] = True
            else:
                self._new[row].append(token)
                going_on.append(line)
        return going_on

    def _keep(self, lines: Sequence[int]) -> None:
        """Drop all other rows."""
        # An index on the CPU, since the layers of a cache may lie on several devices.
        self.cache.reorder_cache(torch.tensor(lines))
        chosen = torch.tensor(lines, device=self._mask.device)
        self._mask, self._next, self._uniform = (
            tensor[chosen] for tensor in (self._mask, self._next, self._uniform)
        )
        self._rows = [self._rows[line] for line in lines]


def choose(
    logits: torch.Tensor, uniform: torch.Tensor, temperature: float = TEMPERATURE, top_p: float = TOP_P
) -> torch.Tensor:
    """Choose the next token of each row [R, V]: the likeliest where `uniform` is NaN, or one drawn from the likeliest `top_p`."""
    # Argmax and running sums take NaN for a number, and would go on with an id of no meaning.
    if bool(logits.isnan().any()):
        raise DataError(
            "the model's logits are NaN, so it writes nothing; its weights are damaged, or too large for the precision "
            "that it runs in: make or fetch the model again"
        )
    chosen = logits.argmax(1)
    drawn = ~uniform.isnan()
    if drawn.any():
        chosen[drawn] = _sample(logits[drawn] / temperature, uniform[drawn], top_p)
    return chosen


def _sample(logits: torch.Tensor, uniform: torch.Tensor, top_p: float) -> torch.Tensor:
    """Draw a token of each row from the smallest set of likeliest ids that holds `top_p`; 1 is all of them."""
    total = logits.logsumexp(1, keepdim=True)
    if top_p >= 1:
        # Nothing is cut off, so no id has to be sorted: a fifth of the time with 49,152 ids on a CPU.
        return _drawn((logits - total).double().exp(), uniform)
    for count in (LIKELIEST, logits.shape[1]):
        likeliest, ids = logits.topk(min(count, logits.shape[1]), 1)
        # Float64, so that a running sum of 100,000 shares does not round them away.
        shares = (likeliest - total).double().exp()
        sums = shares.cumsum(1)
        if bool((sums[:, -1] >= top_p).all()):
            break
    shares = shares.masked_fill(sums - shares >= top_p, 0)
    ids, order = ids.sort(1)
    return ids.gather(1, _drawn(shares.gather(1, order), uniform)[:, None])[:, 0]


def _drawn(shares: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the column of each row that a number between 0 and 1 falls on."""
    sums = shares.cumsum(1)
    # The first id whose running sum exceeds the number: an id of share 0 adds nothing and is never it.
    place = torch.searchsorted(sums, (uniform[:, None] * sums[:, -1:]), right=True)
    return place.clamp(max=shares.shape[1] - 1)[:, 0]
