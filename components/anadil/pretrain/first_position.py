"""The base's need of BOS at position 0: nats of the same targets with BOS before a piece of text, and without.

Some families need it, and their files do not say so.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from anadil.encode.packing import Packed, TokenStream, packed_of
from anadil.model.load import load_tokenizer
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.packing import batch_of
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.resilience.out_of_memory import no_room

log = logging.getLogger(__name__)

MOST_PAIRS = 64
"""Targets of a piece: a missing BOS costs the first tokens of a text most, and the rest would hide it."""
MOST_DOCUMENTS = 1_000_000
"""Documents that pieces are chosen from: the order of a corpus is that of hashes, so the first are a sample."""
LEANS_FROM = 0.1
"""Nats a token from which on a base leans on BOS. Chosen by us: without it Gemma 3 270M loses 5.85 - 3.54."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPosition:
    """Mean nats of the targets of some pieces that begin inside documents."""

    with_bos: float
    without: float
    targets: int


class FirstPositionProbe(Callback):
    """Reports once, before the first step, how much the base leans on BOS at position 0."""

    def pre_train(self) -> None:
        """Probe and report, unless the run resumes."""
        run = self.training
        if run.state.step:
            return
        with no_room(run.job.recipe, "scoring the base's first positions", rank=run.group.rank):
            position = probe_first_position(run.trainer.net, run.trainer.data.first)
        if position is not None and run.group.is_first:
            tell_first_position(position, run.trainer.data.first, run.job.inputs["tokenizer"])


def probe_first_position(net: ParallelModel, packed: Packed) -> FirstPosition | None:
    """Score one sequence twice, a collective; None where no document is long enough."""
    pieces = _pieces(packed.stream, packed.length)
    if not len(pieces):
        return None
    bos = int(packed.stream.ids[:1][0])
    stream = replace(packed.stream, bos=bos)
    targets = int(pieces[:, 1].sum())
    nats_per_target = []
    for lead in (1, 0):
        row = packed_of(
            stream,
            np.concatenate([pieces, np.full((len(pieces), 1), lead)], axis=1),
            np.array([0, len(pieces)]),
            packed.length,
        )
        with torch.no_grad():
            nats = net.nats(batch_of(row, np.zeros(1, dtype=np.int64))).detach().double()
        # Each group of processes scored the same sequence.
        nats_per_target.append(float(net.add_up(nats).item()) / net.mesh.data / targets)
    return FirstPosition(with_bos=nats_per_target[0], without=nats_per_target[1], targets=targets)


def _pieces(stream: TokenStream, length: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Choose pieces from the middle of documents, as many as fit into a sequence: start and pairs of each."""
    pairs = min(MOST_PAIRS, length - 1)
    begins = stream.first_starts(MOST_DOCUMENTS)
    sizes = np.diff(begins)
    # The end token is no target, and a piece begins one behind the document's prefix at the earliest.
    long_enough = np.flatnonzero(sizes >= pairs + 4)
    room = length // (pairs + 1)
    places = np.linspace(0, len(long_enough) - 1, min(room, len(long_enough))).astype(np.int64)
    chosen = long_enough[places]
    starts = begins[chosen] + (sizes[chosen] - pairs) // 2
    return np.stack([starts, np.full(len(chosen), pairs)], axis=1)


def tell_first_position(position: FirstPosition, packed: Packed, tokenizer: Path) -> None:
    """Log the base's need of BOS, and warn where the tokenizer does not set it."""
    name = load_tokenizer(tokenizer).decode(packed.stream.ids[:1].tolist())
    sets_bos = packed.stream.bos is not None
    log.info(
        "text from the middle of documents costs the base %.2f nats a token behind %s and %.2f without it (%s targets); "
        "%s",
        position.with_bos, name, position.without, f"{position.targets:,}",
        "the tokenizer sets it before every text, so every piece and window begins with it"
        if sets_bos else "the tokenizer sets none, so only documents begin with it",
    )  # fmt: skip
    if position.without - position.with_bos > LEANS_FROM and not sets_bos:
        log.warning(
            "the base leans on %s at the beginning of every text, and its tokenizer sets none: give base.model a "
            "tokenizer whose post-processor sets it (add_bos_token in tokenizer_config.json), and run again",
            name,
        )  # fmt: skip
