"""Bits per byte by kind of text: one figure of a mixed text says little about each kind in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import paired_difference
from anadil.text.corpus import Document
from anadil.text.domains import domains_of, sources_of
from anadil.text.metrics import SURE_DOCUMENTS, bits_per_byte


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
