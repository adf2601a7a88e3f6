"""Probabilities of a base for documents in another vocabulary, in the pieces that training reads."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from anadil.artifacts.base_vocabulary import read_embedding_map
from anadil.core.errors import DataError
from anadil.estimate.stage_memory import BATCH_TOKENS, LOGITS
from anadil.model.attention import use_packed_attention
from anadil.model.family_table import logit_scale_and_cap
from anadil.model.load import document_ids, load_tokenizer
from anadil.model.loss import cap_, summed_loss
from anadil.model.teacher import NONE
from anadil.text.encoder import Encoder
from anadil.tokens.packing import Ids, TokenStream, cut_pieces, stream_of

LEAST_REST = 2.0**-24
"""Least chance of all other tokens, the rounding of an FP32 sum near 1."""
Numbers = npt.NDArray[np.int64]


class Vocabulary:
    """The tokens of a tokenizer as pieces of the base's."""

    def __init__(self, tokenizer: Path, num_base: int, num_ids: int) -> None:
        """Read the pieces of each of `num_ids` tokens. `num_base` is the number of the base's rows."""
        rows = (read_embedding_map(tokenizer)[0] or [[row] for row in range(num_ids)])[:num_ids]
        # A base may lack rows for special tokens of its own tokenizer.
        pieces = [[piece for piece in each if piece < num_base] for each in rows]
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


class BaseTeacher:
    """A base that says what follows."""

    def __init__(self, model: Any, base: Path, vocabulary: Vocabulary, k: int) -> None:
        """Take a model on its device. `base` has its tokenizer, `k` is the number of likeliest tokens."""
        use_packed_attention(model)
        self._model, self._k, self.vocabulary = model, k, vocabulary
        self._scale, self._cap = logit_scale_and_cap(model.config.to_dict())
        self._tokenizer = load_tokenizer(base)
        self._begin = document_ids(self._tokenizer, str(base))[0]
        self._longest = getattr(model.config, "max_position_embeddings", None) or 2**31
        self._of_base = torch.from_numpy(vocabulary.of_base)
        self._batch_tokens = BATCH_TOKENS[model.device.type]

    @torch.inference_mode()
    def probabilities(
        self, stream: TokenStream, length: int, name: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16], Counter[str]]:
        """Return ids and log-probabilities behind each token of some documents, and other targets by reason.

        Documents are cut at `length`, the sequence length of training. `name` stands for them in messages.
        """
        num = len(stream.ids)
        ids = np.full((num, self._k), NONE, dtype=np.int64)
        logs = np.full((num, self._k + 1), -np.inf, dtype=np.float16)
        logs[:, -1] = 0
        left_out = Counter[str]()
        size = max(1, LOGITS // len(self._of_base))
        for hidden, all_places in self._states(self._rows(stream, length, left_out)):
            for start in range(0, len(hidden), size):
                places = all_places[start : start + size]
                known, chances, is_number = self._likeliest(hidden[start : start + size])
                if not is_number.all():
                    place = int(places[int((~is_number).nonzero()[0])])
                    document = int(np.searchsorted(stream.starts[:], place, side="right")) - 1
                    raise _not_numbers(f"{name}: document {document} (from 0)")
                ids[places], logs[places] = known.numpy(), chances.numpy()
        return ids, logs, left_out

    def encode(self, texts: Sequence[str], *, reads_special: bool = False) -> list[Ids]:
        """Return texts in the base's own tokens, each behind its own beginning."""
        encoder = Encoder(self._tokenizer.backend_tokenizer, reads_special=reads_special)
        return [np.concatenate([[self._begin], ids]) for ids in encoder.encode(texts)]

    @torch.inference_mode()
    def nats(self, documents: Sequence[Ids], length: int, name: str, *, sets_bos: bool) -> float:
        """Return the base's loss on documents in its own tokens, cut as training cuts them."""
        stream = stream_of(documents, self._begin if sets_bos else None)
        total, rows = 0.0, []
        for start, num, lead in cut_pieces(stream, min(length, self._longest)).tolist():
            base_ids = np.concatenate([[self._begin] * lead, stream.ids[start : start + num]]).astype(
                np.int64
            )
            rows.append(_Row(base_ids=base_ids, at=lead + np.arange(num), places=start + np.arange(num)))
        for hidden, places in self._states(rows):
            labels = torch.from_numpy(stream.ids[places + 1].astype(np.int64)).to(hidden.device)
            head = self._model.get_output_embeddings().weight.to(hidden.device)
            total += summed_loss(hidden[None], head, labels[None], kernels="torch", cap=self._cap).item()
        if not math.isfinite(total):
            raise _not_numbers(f"held-out text of {name}")
        return total

    def _states(self, rows: Iterable[_Row]) -> Iterator[tuple[torch.Tensor, Numbers]]:
        """Yield the base's last states where they are asked for, scaled for the head, and these places of the stream."""
        for batch in _batches(rows, self._batch_tokens):
            begins = np.cumsum([0, *(len(row.base_ids) for row in batch)])
            at = np.concatenate([row.at + begin for row, begin in zip(batch, begins[:-1], strict=True)])
            hidden = self._hidden(batch)
            yield (
                hidden[torch.from_numpy(at).to(hidden.device)],
                np.concatenate([row.places for row in batch]),
            )

    def _rows(self, stream: TokenStream, length: int, left_out: Counter[str]) -> Iterator[_Row]:
        """Yield the pieces of training in tokens of the base, and count targets without probabilities."""
        vocabulary, pieces = self.vocabulary, cut_pieces(stream, length)
        are_first = np.isin(pieces[:, 0], stream.starts[:])
        for (start, num, lead), is_first in zip(pieces.tolist(), are_first.tolist(), strict=True):
            tokens = stream.ids[start : start + num + 1]
            sizes, base_ids = vocabulary.sizes[tokens], vocabulary.expand(tokens)
            if is_first or lead:
                # The base's own beginning, whatever the tokenizer has in its place.
                base_ids = np.concatenate([[self._begin], base_ids[sizes[0] * is_first :]])
            # Counted from the end: what stands in front differs.
            firsts = len(base_ids) - np.cumsum(sizes[:0:-1])[::-1]
            is_known, is_within = vocabulary.is_known[tokens[1:]], firsts <= self._longest
            left_out["the base has other tokens"] += int((~is_known).sum())
            left_out["behind the base's longest text"] += int((is_known & ~is_within).sum())
            asked = is_known & is_within & (firsts > 0)
            places = start + np.flatnonzero(asked)
            if len(places):
                yield _Row(base_ids=base_ids[: self._longest], at=firsts[asked] - 1, places=places)

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


def _batches(rows: Iterable[_Row], most: int) -> Iterator[list[_Row]]:
    """Group rows in order into batches of up to `most` tokens of the base, one row at least."""
    batch: list[_Row] = []
    size = 0
    for row in rows:
        if batch and size + len(row.base_ids) > most:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.base_ids)
    if batch:
        yield batch


def _not_numbers(place: str) -> DataError:
    return DataError(
        f"{place}: the base gives NaN or Inf as logits. Its weights are damaged or overflow in this precision; fetch base.model "
        "again, or leave `teacher` out"
    )
