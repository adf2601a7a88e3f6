"""Probabilities of a base for documents in another vocabulary, in the pieces that training reads."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from anadil.core.errors import DataError
from anadil.estimate.stage_memory import BATCH_TOKENS, LOGITS
from anadil.model.attention import use_packed_attention
from anadil.model.family_table import logit_scale_and_cap
from anadil.model.load import document_ids, load_tokenizer
from anadil.model.loss import IGNORED, cap_, summed_loss
from anadil.model.teacher import NONE
from anadil.tokens.packing import Ids, TokenStream, cut_pieces

LEAST_REST = 2.0**-24
"""Least chance of all other tokens, the rounding of an FP32 sum near 1."""
Numbers = npt.NDArray[np.int64]


class Vocabulary:
    """The tokens of a tokenizer as pieces of the base's."""

    def __init__(self, tokenizer: Path, num_base: int) -> None:
        """Read the pieces of each row. `num_base` is the number of the base's rows."""
        rows = json.loads((tokenizer / "embedding_map.json").read_text(encoding="utf-8"))["rows"]
        if rows is None:
            rows = [None] * num_base
        pieces = [[row] if each is None else each for row, each in enumerate(rows)]
        self.sizes = np.array([len(each) for each in pieces], dtype=np.int64)
        self._begins = np.cumsum(self.sizes) - self.sizes
        self._flat = np.array([piece for each in pieces for piece in each], dtype=np.int64)
        alone = np.flatnonzero(self.sizes == 1)
        self.of_base = np.full(num_base, NONE, dtype=np.int64)
        """Row of each token of the base, `NONE` for a token without."""
        # The first of several rows that are made of one token.
        self.of_base[self._flat[self._begins[alone]][::-1]] = alone[::-1]
        self.is_known = np.zeros(len(pieces), dtype=bool)
        """True for a token that is one of the base's."""
        self.is_known[alone] = self.of_base[self._flat[self._begins[alone]]] == alone

    def expand(self, ids: Ids) -> Numbers:
        """Return the pieces of tokens, one after another."""
        sizes = self.sizes[ids]
        before = np.cumsum(sizes) - sizes
        expanded: Numbers = self._flat[np.repeat(self._begins[ids] - before, sizes) + np.arange(sizes.sum())]
        return expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A piece of a document as the base reads it."""

    base_ids: Numbers
    at: Numbers
    """Places in `base_ids` behind which the base's probabilities are asked for."""
    places: Numbers
    """Tokens of the stream that these are."""
    first_target: int
    """Place in `base_ids` from which on training predicts it."""


class BaseTeacher:
    """A base that says what follows."""

    def __init__(self, model: Any, base: Path, vocabulary: Vocabulary, k: int) -> None:
        """Take a model on its device. `base` has its tokenizer, `k` is the number of likeliest tokens."""
        use_packed_attention(model)
        self._model, self._vocabulary, self._k = model, vocabulary, k
        self._scale, self._cap = logit_scale_and_cap(model.config.to_dict())
        self._begin = document_ids(load_tokenizer(base), str(base))[0]
        self._longest = getattr(model.config, "max_position_embeddings", None) or 2**31
        self._of_base = torch.from_numpy(vocabulary.of_base)
        self._batch_tokens = BATCH_TOKENS[model.device.type]

    @torch.inference_mode()
    def probabilities(
        self, stream: TokenStream, length: int, name: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16], Counter[str]]:
        """Return ids and log-probabilities behind each token of some documents, and other targets by reason.

        Args:
            stream: The documents.
            length: Tokens of a sequence of training, which decides where documents are cut.
            name: Name of the documents for messages.
        """
        num = len(stream.ids)
        ids = np.full((num, self._k), NONE, dtype=np.int64)
        logs = np.full((num, self._k + 1), -np.inf, dtype=np.float16)
        logs[:, -1] = 0
        left_out = Counter[str]()
        rows = [row for row in self._rows(stream, length, left_out) if len(row.at)]
        for batch in _batches(rows, self._batch_tokens):
            begins = np.cumsum([0, *(len(row.base_ids) for row in batch)])
            at = np.concatenate([row.at + begin for row, begin in zip(batch, begins[:-1], strict=True)])
            places = np.concatenate([row.places for row in batch])
            hidden = self._hidden(batch)[torch.from_numpy(at).to(self._model.device)]
            size = max(1, LOGITS // len(self._of_base))
            for start in range(0, len(at), size):
                some = slice(start, start + size)
                known, chances, is_number = self._likeliest(hidden[some])
                if not is_number.all():
                    place = int(places[some][int((~is_number).nonzero()[0])])
                    document = int(np.searchsorted(stream.starts[:], place, side="right")) - 1
                    raise DataError(
                        f"{name}: document {document} (from 0): the base gives NaN or Inf as logits. Its weights are "
                        "damaged or overflow in this precision; fetch base.model again, or leave `teacher` out"
                    )
                ids[places[some]], logs[places[some]] = known.numpy(), chances.numpy()
        return ids, logs, left_out

    @torch.inference_mode()
    def nats(self, stream: TokenStream, length: int) -> float:
        """Return the base's loss on some documents, in its own tokens."""
        total, head = 0.0, self._model.get_output_embeddings().weight
        for batch in _batches(self._rows(stream, length, Counter()), self._batch_tokens):
            labels = []
            for row in batch:
                labels.append(np.append(row.base_ids[1:], IGNORED))
                labels[-1][: row.first_target - 1] = IGNORED
            hidden = self._hidden(batch).to(head.device)
            targets = torch.from_numpy(np.concatenate(labels)).to(head.device)
            total += summed_loss(hidden[None], head, targets[None], kernels="torch", cap=self._cap).item()
        return total

    def _rows(self, stream: TokenStream, length: int, left_out: Counter[str]) -> list[_Row]:
        begins = frozenset(stream.starts[:].tolist())
        return [
            self._row(stream, *piece, is_first=piece[0] in begins, left_out=left_out)
            for piece in cut_pieces(stream, length).tolist()
        ]

    def _row(
        self, stream: TokenStream, start: int, num: int, lead: int, *, is_first: bool, left_out: Counter[str]
    ) -> _Row:
        tokens = stream.ids[start : start + num + 1]
        sizes = self._vocabulary.sizes[tokens]
        base_ids = self._vocabulary.expand(tokens)
        if is_first:
            # The base's own beginning, whatever the tokenizer has in its place.
            base_ids = np.concatenate([[self._begin], base_ids[sizes[0] :]])
        elif lead and stream.bos is not None:
            base_ids = np.concatenate([self._vocabulary.expand(np.array([stream.bos])), base_ids])
        # Counted from the end: what stands in front differs.
        firsts = len(base_ids) - np.cumsum(sizes[:0:-1])[::-1]
        is_known, is_within = self._vocabulary.is_known[tokens[1:]], firsts <= self._longest
        left_out["the base has other tokens"] += int((~is_known).sum())
        left_out["behind the base's longest text"] += int((is_known & ~is_within).sum())
        asked = is_known & is_within & (firsts > 0)
        return _Row(
            base_ids=base_ids[: self._longest], at=firsts[asked] - 1, places=start + np.flatnonzero(asked),
            first_target=int(firsts[0]),
        )  # fmt: skip

    def _hidden(self, batch: Sequence[_Row]) -> torch.Tensor:
        """Return the last states of pieces side by side, scaled for the head, (tokens, width)."""
        device = self._model.device
        ids = torch.from_numpy(np.concatenate([row.base_ids for row in batch]))[None].to(device)
        sizes = [len(row.base_ids) for row in batch]
        positions = torch.cat([torch.arange(size) for size in sizes])[None].to(device)
        borders = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32)
        states: torch.Tensor = self._model.base_model(
            input_ids=ids, position_ids=positions, borders=borders, use_cache=False
        ).last_hidden_state[0]
        return states.to(device) if self._scale == 1 else states.to(device) * self._scale

    def _likeliest(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the likeliest tokens' ids, their log-probabilities and of all others, and whether all are numbers."""
        logits = cap_(self._model.get_output_embeddings()(hidden).float(), self._cap)
        best = logits.topk(self._k)
        log_z = logits.logsumexp(-1, keepdim=True)
        ids = self._of_base.to(best.indices.device)[best.indices]
        logs = (best.values - log_z).masked_fill(ids == NONE, -torch.inf)
        rest = (1 - logs.exp().sum(-1, keepdim=True)).clamp_min(LEAST_REST).log()
        return ids.cpu(), torch.cat([logs, rest], -1).half().cpu(), log_z[:, 0].isfinite().cpu()


def _batches(rows: Sequence[_Row], most: int) -> Iterator[list[_Row]]:
    """Group rows in order into batches of up to `most` tokens of the base, one row at least."""
    borders, size = [0], 0
    for number, row in enumerate(rows):
        if size and size + len(row.base_ids) > most:
            borders.append(number)
            size = 0
        size += len(row.base_ids)
    for first, last in pairwise([*borders, len(rows)]):
        if last > first:
            yield list(rows[first:last])
