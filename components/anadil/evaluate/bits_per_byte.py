"""Cross-entropy of whole documents, each token scored once, however long the document.

A document is `[prefix] + ids`; the prefix (BOS, else EOS) is context only and adds no bytes.
Windows are those of lm-evaluation-harness with stride = context: disjoint, but the last one is
filled up with earlier context. A smaller stride gives later tokens more context. Unlike there, a
window that begins inside a document begins with BOS where the tokenizer sets BOS before every text.

Shapes: B windows of a batch, T tokens of the longest, N scored tokens, H hidden.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from anadil.core.errors import DataError
from anadil.core.progress import progress
from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.shared_context import SharedRow, shared_hidden, shared_rows
from anadil.text.corpus import Document
from anadil.text.domains import domains_of, sources_of
from anadil.text.metrics import SURE_DOCUMENTS, bits_per_byte

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [N, H] -> logits [N, vocabulary]."""
LOGITS_PER_CHUNK = 2**25
"""Float32 logits held at a time: 128 MiB, 260 positions of a vocabulary of 128k."""
HEAD_TOLERANCE = 1e-2

Ids = Sequence[int] | NDArray[np.int32]


class Window(NamedTuple):
    """A slice of `[prefix] + ids` that goes through the model at once."""

    document: int
    start: int
    """First input token."""
    last: int
    """Last scored token; the input ends one before it."""
    first: int
    """First scored token."""
    lead: int
    """Tokens set before the slice: 1 for BOS, else 0."""

    @property
    def length(self) -> int:
        """Input tokens."""
        return self.lead + self.last - self.start


Row = TypeVar("Row", Window, SharedRow)


def windows(
    num_tokens: int, context: int, stride: int, begin: int = 1, *, bos: bool = False
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, last, first): feed `full[start:last]`, score `full[first:last + 1]`.

    Tokens before `begin` are context only. BOS takes the first place of each window that does not begin with the text.

    Source: get_rolling_token_windows of lm-evaluation-harness for `stride == context`.
    """
    first = begin
    room = context - bos
    while first <= num_tokens:
        last = min(num_tokens, max(context, first + min(stride, room) - 1))
        yield 0 if last <= context else last - room, last, first
        first = last + 1


def score(
    model: PreTrainedModel, pairs: Sequence[tuple[Ids, Ids]], *, bos: int | None = None, context: int,
    stride: int, batch_tokens: int, name: str,
) -> NDArray[np.float64]:  # fmt: skip
    """Sum -ln p over the tokens of each text, in nats, given the tokens before it.

    Where both are longer than the context, the beginning of the tokens before goes, but not BOS.
    """
    full = [np.concatenate(pair).astype(np.int64) for pair in pairs]
    _check_ids(model, full, name)
    rows = shared_rows(model, full, [len(before) for before, _ in pairs], context)
    is_shared = {place for row in rows for place, _ in row.members}
    # Longest first, so that running out of memory shows at once.
    todo = sorted(
        (
            Window(i, *window, lead=int(bos is not None and window[0] > 0))
            for i, (before, _) in enumerate(pairs)
            if i not in is_shared
            for window in windows(len(full[i]) - 1, context, stride, len(before), bos=bos is not None)
        ),
        key=lambda window: (-window.length, window.document, window.start),
    )
    nats = np.zeros(len(full), dtype=np.float64)
    left = np.bincount([window.document for window in todo], minlength=len(full))
    model.eval()
    with torch.inference_mode(), progress(f"score {name}", total=len(full)) as bar:
        # A text without tokens has no nats, and a model is not asked about it.
        if not todo and not rows:
            return nats
        head = _head(model, max(full, key=len)[: min(context, 16)], name)
        for shared in _batches(rows, batch_tokens):
            hidden, scored = shared_hidden(model, shared)
            np.add.at(nats, scored[0], _losses_at(model, head, hidden, *scored[1:]))
            bar.advance(sum(len(row.members) for row in shared))
        for batch in _batches(todo, batch_tokens):
            documents, losses = _batch_nats(model, head, full, batch, bos or 0)
            np.add.at(nats, documents, losses)
            members = [window.document for window in batch]
            np.subtract.at(left, members, 1)
            bar.advance(sum(1 for document in set(members) if left[document] == 0))
    _check_finite(bool(np.isfinite(nats).all()), name)
    return nats


def _batches(rows: Sequence[Row], batch_tokens: int) -> Iterator[Sequence[Row]]:
    """Yield rows, the longest first, as many at a time as `batch_tokens` hold once they are padded."""
    start = 0
    while start < len(rows):
        batch = rows[start : start + max(1, batch_tokens // rows[start].length)]
        start += len(batch)
        yield batch


def _batch_nats(
    model: Any, head: Head, full: Sequence[NDArray[np.int64]], batch: Sequence[Window], bos: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    width = batch[0].length
    # Padding stands right of every scored token, where a causal model cannot see it.
    inputs = np.zeros((len(batch), width), dtype=np.int64)
    rows, columns, targets = [], [], []
    for row, window in enumerate(batch):
        ids = full[window.document]
        inputs[row, : window.lead] = bos
        inputs[row, window.lead : window.length] = ids[window.start : window.last]
        positions = np.arange(window.first, window.last + 1)
        rows.append(np.full(len(positions), row))
        columns.append(window.lead + positions - 1 - window.start)
        targets.append(ids[positions])
    at = np.concatenate(rows)
    hidden = _hidden(model, torch.from_numpy(inputs).to(model.device))  # [B, T, H]
    losses = _losses_at(model, head, hidden, at, np.concatenate(columns), np.concatenate(targets))
    return np.array([window.document for window in batch])[at], losses


def _losses_at(
    model: Any, head: Head, hidden: torch.Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64],
    targets: NDArray[np.int64],
) -> NDArray[np.float64]:  # fmt: skip
    """Return -ln p of the targets, each from the hidden state at its row and column."""
    place, column, target = (torch.from_numpy(each).to(hidden.device) for each in (rows, columns, targets))
    # The logits of a large vocabulary are never there all at once.
    scored = hidden[place, column]
    size = max(1, LOGITS_PER_CHUNK // model.get_output_embeddings().weight.shape[0])
    chunks = []
    for start in range(0, len(target), size):
        chunk = target[start : start + size]
        logits = head(scored[start : start + size]).to(target.device).float()
        # `cross_entropy` writes the logarithm of every probability beside the logits. One matrix is all there is here,
        # which on a CPU took 40 % of the time beside the head's product (50k ids, 256 positions at once).
        largest = logits.amax(dim=-1, keepdim=True)
        of_target = logits.gather(1, chunk[:, None]) - largest
        chunks.append(logits.sub_(largest).exp_().sum(dim=-1).log_() - of_target[:, 0])
    losses: NDArray[np.float64] = torch.cat(chunks).cpu().double().numpy()
    return losses


def _hidden(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
    return hidden.to(inputs.device)  # the last layer may lie on another device


def _check_ids(model: Any, full: Sequence[NDArray[np.int64]], name: str) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    largest = max((int(ids.max()) for ids in full), default=0)
    if largest >= rows:
        raise DataError(
            f"{name}: tokenizer gives token {largest}, but the model has {rows} embeddings; "
            "give a model with its own tokenizer"
        )


def _head(model: Any, ids: NDArray[np.int64], name: str) -> Head:
    """Choose what turns hidden states into logits: the head, or the forward pass where that does more."""
    # Gemma 2 caps logits, Granite and Cohere scale them. The forward pass is compared with each way on a few tokens.
    inputs = torch.from_numpy(ids)[None].to(model.device)
    expected = model(input_ids=inputs, use_cache=False).logits[0].float()
    _check_finite(bool(torch.isfinite(expected).all()), name)
    hidden = _hidden(model, inputs)[0]
    heads: list[Head] = [model.get_output_embeddings(), partial(_own_logits, model)]
    # The nearer one, and the head alone where both are equal: a cap hardly changes logits that are small by chance.
    given = {each: each(hidden).to(expected.device).float() for each in heads}
    head = min(heads, key=lambda each: float((given[each] - expected).abs().max()))
    if torch.allclose(given[head], expected, rtol=HEAD_TOLERANCE, atol=HEAD_TOLERANCE):
        return head
    raise DataError(
        f"{name}: model type {model.config.model_type!r} makes its logits of more than its last hidden states; "
        "such models cannot be scored, use a Llama"
    )


def _own_logits(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return logits [N, vocabulary] by the model's forward pass, whose layers give these hidden states [N, H]."""
    ready: Any = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden[None])
    ready.router_logits = None  # which mixtures of experts hand on
    # Only so can a vocabulary of 256k be scored in pieces: the whole pass holds the logits of all positions.
    layers, no_ids = model.base_model, torch.zeros((1, len(hidden)), dtype=torch.long, device=model.device)
    forward = layers.forward
    layers.forward = lambda *_, **__: ready
    try:
        logits: torch.Tensor = model(input_ids=no_ids, use_cache=False).logits[0]
    finally:
        layers.forward = forward
    return logits


def _check_finite(finite: bool, name: str) -> None:
    if not finite:
        raise DataError(f"{name}: the model gives logits that are not finite; its training diverged")


def domain_figures(
    documents: Sequence[Document], num_bytes: NDArray[np.int64], nats: NDArray[np.float64], seed: int
) -> dict[str, Any]:
    """Return bits per byte by domain and by source, and how much text each domain's figure rests on."""
    domains = domains_of(documents, num_bytes.tolist())
    return {
        "domains": bits_by_group(num_bytes, nats, domains),
        "sources": bits_by_group(num_bytes, nats, sources_of(documents, num_bytes.tolist())),
        "domain_figures": {
            name: _domain(nats[chosen], num_bytes[chosen], seed) for name, chosen in _groups(domains).items()
        },
    }


def bits_by_group(
    num_bytes: NDArray[np.int64], nats: NDArray[np.float64], groups: Sequence[str]
) -> dict[str, float]:
    """Return bits per byte of each group's documents, the largest group first."""
    members = _groups(groups)
    sizes = {name: int(num_bytes[chosen].sum()) for name, chosen in members.items()}
    largest_first = sorted(members, key=lambda name: (-sizes[name], name))
    return {name: bits_per_byte(float(nats[members[name]].sum()), sizes[name]) for name in largest_first}


def _domain(nats: NDArray[np.float64], num_bytes: NDArray[np.int64], seed: int) -> dict[str, Any]:
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    return {
        "num_documents": len(nats),
        "num_bytes": int(num_bytes.sum()),
        "interval": [alone.low, alone.high],
        "unsure": len(nats) < SURE_DOCUMENTS,
    }


def _groups(names: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    listed = np.array(names)
    return {name: listed == name for name in dict.fromkeys(names)}
