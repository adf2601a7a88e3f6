"""Nats of each held-out document under a trained model, however it is spread over processes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.core.errors import RecipeError
from anadil.core.progress import progress
from anadil.encode.packing import cut_pieces, packed_of
from anadil.encode.token_stream import stream_of
from anadil.model.loss import IGNORED
from anadil.pretrain.data.packing import batch_of
from anadil.pretrain.parallel.parallelize import ParallelModel


def document_nats(
    net: ParallelModel,
    encoded: Sequence[NDArray[np.int32]],
    *,
    prefix: int,
    bos: int | None,
    length: int,
    name: str,
) -> NDArray[np.float64]:
    """Sum -ln p over the tokens of each document, equal on every process.

    Documents are `[prefix] + ids`, each alone in its sequences. A document longer than a sequence is cut
    into pieces that do not see each other, as in the validation of training.

    Args:
        net: The model.
        encoded: Token ids of each document, without special tokens.
        prefix: Token before each document; not scored.
        bos: Token before each later piece; None for none.
        length: Tokens of a sequence.
        name: Name for progress and messages.
    """
    documents = [np.concatenate(([prefix], ids)).astype(np.int32) for ids in encoded]
    stream = stream_of(documents, bos)
    pieces = cut_pieces(stream, length)
    packed = packed_of(stream, pieces, np.arange(len(pieces) + 1), length)
    begins = stream.first_starts(len(documents))
    document_of = np.searchsorted(begins, pieces[:, 0], side="right") - 1
    mesh = net.mesh
    mine = np.arange(mesh.data_rank, len(pieces), mesh.data)
    nats = torch.zeros(len(documents), dtype=torch.float64, device=net.device)
    net.model.eval()
    # Equally many passes in all processes, since a sharded model is gathered in each.
    passes = -(-len(pieces) // mesh.data)
    with torch.no_grad(), progress(f"score {name}", total=passes) as bar:
        for number in range(passes):
            if number < len(mine):
                document = int(document_of[mine[number]])
                nats[document] += net.nats(batch_of(packed, mine[number : number + 1])).double()
            else:  # without labels it counts for nothing
                batch = batch_of(packed, np.zeros(1, dtype=np.int64))
                net.nats(replace(batch, labels=torch.full_like(batch.labels, IGNORED)))
            bar.advance()
    summed: NDArray[np.float64] = net.add_up(nats).cpu().numpy()
    if not np.isfinite(summed).all():
        raise RecipeError(
            f"{name}: the held-out loss is not a number; lower the learning rate in pretrain.phases"
        )
    return summed
