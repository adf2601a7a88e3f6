"""One answer, token by token, as text: what a person reads while it is written.

What the last answer left in the cache is used again, so that a turn reads only what is new of its chat.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anadil.evaluate.decoding import choose, uniform_numbers

NO_CHARACTER = "\ufffd"
"""What stands for bytes that are no text."""


class TokenWriter:
    """A model that writes one row."""

    def __init__(self, model: Any, *, ends: frozenset[int], num_ids: int) -> None:
        """Take a model.

        Args:
            model: Causal language model, on its device.
            ends: Ids that end a text.
            num_ids: Ids that may be written; rows that only fill the embedding up lie behind them.
        """
        self._model, self._ends, self._num_ids = model, ends, num_ids
        self._cache: Any = None
        self._cached: list[int] = []
        """The ids that the cache holds."""
        self.ended = False
        """Whether the last text ended by itself."""

    def write(
        self, prompt: Sequence[int], *, seed: int | None, temperature: float, most: int
    ) -> Iterator[int]:
        """Tokens that follow a prompt, without the end token.

        Args:
            prompt: Ids; with `most`, no more than the model's positions.
            seed: Of the sample; None for greedy.
            temperature: Of the sample, above 0.
            most: Most tokens.
        """
        self.ended = False
        uniform = torch.from_numpy(uniform_numbers(seed, most)).to(self._model.device)
        inputs = self._unread(prompt)
        for step in range(most):
            with torch.inference_mode():
                logits = self._forward(inputs)[:, : self._num_ids].float()
                token = int(choose(logits, uniform[step : step + 1], temperature))
            if token in self._ends:
                self.ended = True
                return
            yield token
            inputs = [token]

    def _unread(self, prompt: Sequence[int]) -> list[int]:
        """What the cache does not hold of a prompt; what it holds of another text goes."""
        pairs = zip(prompt[:-1], self._cached, strict=False)  # the last id has to be read, for its logits
        same = next((place for place, (new, old) in enumerate(pairs) if new != old), None)
        same = min(len(prompt) - 1, len(self._cached)) if same is None else same
        if self._cache is not None and same < len(self._cached):
            # A window of attention, or a state, cannot go back.
            if any(self._cache.is_sliding) or not self._cache.is_croppable:
                self._cache = None
            else:
                self._cache.crop(same - len(self._cached))
        if self._cache is None:
            same = 0
        self._cached = self._cached[:same]
        return list(prompt[same:])

    def _forward(self, inputs: list[int]) -> torch.Tensor:
        """Logits [1, V] of what follows."""
        cache, self._cache = self._cache, None  # broken off in the middle it is of no use
        first = len(self._cached)
        out = self._model(
            input_ids=torch.tensor([inputs], device=self._model.device),
            position_ids=torch.arange(first, first + len(inputs), device=self._model.device)[None],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.cache
        self._cached += inputs
        logits: torch.Tensor = out.logits[:, -1]
        return logits


def text_pieces(tokenizer: Any, tokens: Iterator[int]) -> Iterator[str]:
    """The text of tokens, as far as it is whole after each: a letter of several tokens comes when its last one does.

    Together the pieces are what `decode` gives of all tokens at once, without special tokens.
    """
    known: list[int] = []
    # Decoded again is what follows `begin`, a token before what is new: some tokenizers drop a text's first blank.
    begin = read = shown = 0

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    for token in tokens:
        known.append(token)
        text = decode(known[begin:])
        # Bytes that begin a letter are one such sign, the last; those that can be of none stay what they are.
        whole = len(text) - text.endswith(NO_CHARACTER)
        if whole > shown:
            yield text[shown:whole]
            shown = whole
        if whole == len(text):
            begin, read = read, len(known)
            shown = len(decode(known[begin:]))
    text = decode(known[begin:])
    if len(text) > shown:
        yield text[shown:]
