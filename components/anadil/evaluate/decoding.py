"""Decoding in batches: many prompts go through the model at once, and a finished row leaves its batch.

A step of one row reads every weight for one token, and so does a step of fifty rows: on a CPU and on a
GPU decoding is bound by that. Prompts are padded on the left, where the mask hides it and positions do
not count it. Nothing but rounding in the model's matrix products (1e-6 of a logit in FP32) tells which
other rows a row shared its batch with: each sample draws from a generator of its own, and what is drawn
follows the order of ids, not that of nearly equal probabilities.

Shapes: P prompts of a batch, R rows that are still written, T tokens of the longest prompt, V ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

TEMPERATURE = 0.6
"""Source: generation_config.json of Llama 3.2."""
TOP_P = 0.9
"""Source: generation_config.json of Llama 3.2."""
LIKELIEST = 256
"""Ids that nearly always hold the share `TOP_P`; all are sorted only where they do not."""
BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768}
"""Tokens of a batch by device, prompts and what is written: of an 8B in BF16, with 128 KiB a token, 4 GiB of cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What one row became."""

    tokens: tuple[int, ...]
    """New ones, without the end token."""
    ended: bool
    """Whether an end token followed them."""


def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int | None]],
    *,
    ends: frozenset[int],
    num_ids: int,
    max_new_tokens: int,
    batch_tokens: int | None = None,
    temperature: float = TEMPERATURE,
) -> Iterator[tuple[int, list[Continuation]]]:
    """Each prompt's place and its continuations, the longest prompts first.

    Args:
        model: Causal language model, on its device.
        prompts: Ids of each. The end of a prompt says most about what follows, so one that does not
            leave room in the model's positions loses its beginning.
        seeds: For each prompt the same number of continuations: the seed of each sample, None for greedy.
        ends: Ids that end a text.
        num_ids: Ids that may be written; rows that only fill the embedding up lie behind them.
        max_new_tokens: Most tokens of a continuation.
        batch_tokens: Most tokens of a batch, all continuations counted; by default as the device has room.
            One prompt always goes, however long.
        temperature: Of the samples, above 0.
    """
    longest = getattr(model.config, "max_position_embeddings", None)
    budget = max_new_tokens if longest is None else min(max_new_tokens, longest - 1)
    room = None if longest is None else longest - budget
    cut = [list(ids)[-room:] if room else list(ids) for ids in prompts]
    # The longest first: what does not fit into memory is known at once.
    order = sorted(range(len(cut)), key=lambda place: (-len(cut[place]), place))
    limit = batch_tokens or BATCH_TOKENS.get(model.device.type, BATCH_TOKENS["cpu"])
    while order:
        rows = (len(cut[order[0]]) + budget) * len(seeds[order[0]])
        batch, order = order[: max(1, limit // rows)], order[max(1, limit // rows) :]
        drawn = [seed for place in batch for seed in seeds[place]]
        made = _Batch(model, [cut[place] for place in batch], drawn, budget).run(ends, num_ids, temperature)
        each = len(drawn) // len(batch)
        for number, place in enumerate(batch):
            yield place, made[number * each : (number + 1) * each]


class _Batch:
    """Rows that are written side by side, one token of each at a time."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], seeds: Sequence[int | None], budget: int
    ) -> None:
        self._model, self._budget = model, budget
        self._width = max(map(len, prompts))
        # The mask has its last columns from the start; a step takes those up to its own.
        ids = torch.zeros(len(prompts), self._width, dtype=torch.long)
        mask = torch.ones(len(prompts), self._width + budget, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, self._width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, : self._width - len(prompt)] = 0
        self._repeats = len(seeds) // len(prompts)
        self._ids, self._mask = ids.to(model.device), mask.to(model.device)
        self._padded = bool((mask == 0).any())
        uniform = [uniform_numbers(seed, budget) for seed in seeds]
        self._uniform = torch.from_numpy(np.stack(uniform)).to(model.device)
        self._rows = list(range(len(seeds)))
        """Which row each line of the tensors is."""
        self._new: list[list[int]] = [[] for _ in seeds]
        self._ended = [False] * len(seeds)

    def run(self, ends: frozenset[int], num_ids: int, temperature: float) -> list[Continuation]:
        """Write until every row has ended or used its budget."""
        logits = self._prefill()  # [R, V]
        for step in range(self._budget):
            chosen = choose(logits[:, :num_ids].float(), self._uniform[:, step], temperature)
            kept = self._note(chosen.tolist(), ends)
            if not kept or step == self._budget - 1:
                break
            if len(kept) < len(chosen):
                self._keep(kept)
                chosen = chosen[torch.tensor(kept, device=chosen.device)]
            logits = self._forward(chosen[:, None], step)
        return [
            Continuation(tokens=tuple(new), ended=ended)
            for new, ended in zip(self._new, self._ended, strict=True)
        ]

    def _prefill(self) -> torch.Tensor:
        """Read each prompt once, and make as many rows of it as there are continuations."""
        mask = self._mask[:, : self._width]
        # Padding has no position of its own; what stands there is never read.
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self._model(
            input_ids=self._ids, attention_mask=mask if self._padded else None, position_ids=positions,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        self._cache = out.cache
        logits: torch.Tensor = out.logits[:, -1]
        self._next = positions[:, -1:] + 1
        if self._repeats > 1:
            self._cache.batch_repeat_interleave(self._repeats)
            self._mask, self._next, logits = (
                tensor.repeat_interleave(self._repeats, 0) for tensor in (self._mask, self._next, logits)
            )
        return logits

    def _forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        out = self._model(
            input_ids=inputs,
            attention_mask=self._mask[:, : self._width + step + 1] if self._padded else None,
            position_ids=self._next + step,
            cache=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _note(self, tokens: Sequence[int], ends: frozenset[int]) -> list[int]:
        """Take each row's token; lines of the rows that are not at their end."""
        kept = []
        for line, (row, token) in enumerate(zip(self._rows, tokens, strict=True)):
            if token in ends:
                self._ended[row] = True
            else:
                self._new[row].append(token)
                kept.append(line)
        return kept

    def _keep(self, lines: Sequence[int]) -> None:
        """Let the other rows go."""
        # On the CPU, because the layers of one cache may lie on several devices.
        self._cache.batch_select_indices(torch.tensor(lines))
        chosen = torch.tensor(lines, device=self._mask.device)
        self._mask, self._next, self._uniform = (
            tensor[chosen] for tensor in (self._mask, self._next, self._uniform)
        )
        self._rows = [self._rows[line] for line in lines]


def uniform_numbers(seed: int | None, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a row draws with, a number in [0, 1) for each token; NaN says greedy."""
    if seed is None:
        return np.full(count, np.nan)
    return np.random.default_rng(seed).random(count)


def choose(logits: torch.Tensor, uniform: torch.Tensor, temperature: float = TEMPERATURE) -> torch.Tensor:
    """Next token of each row: the likeliest, or one drawn of the likeliest `TOP_P`.

    Args:
        logits: Float32 [R, V].
        uniform: [R] in [0, 1), NaN for greedy.
        temperature: Of what is drawn, above 0.
    """
    chosen = logits.argmax(1)
    drawn = ~uniform.isnan()
    if drawn.any():
        chosen[drawn] = _sample(logits[drawn] / temperature, uniform[drawn])
    return chosen


def _sample(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """A token of each row, drawn from the smallest set of likeliest ids that holds `TOP_P`."""
    total = logits.logsumexp(1, keepdim=True)
    for count in (LIKELIEST, logits.shape[1]):
        likeliest, ids = logits.topk(min(count, logits.shape[1]), 1)
        # Float64, so that a running sum of 100,000 shares does not round them away.
        shares = (likeliest - total).double().exp()
        sums = shares.cumsum(1)
        if bool((sums[:, -1] >= TOP_P).all()):
            break
    shares = shares.masked_fill(sums - shares >= TOP_P, 0)
    ids, order = ids.sort(1)
    sums = shares.gather(1, order).cumsum(1)
    # The first id whose running sum exceeds the number: an id of share 0 adds nothing and is never it.
    place = torch.searchsorted(sums, (uniform[:, None] * sums[:, -1:]), right=True)
    return ids.gather(1, place.clamp(max=ids.shape[1] - 1))[:, 0]
