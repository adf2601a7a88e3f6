"""Which choices of made items a model takes, and by how much."""

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.made.items import Item
from anadil.evaluate.models import CandidateModel
from anadil.model.load import encode_texts

Margins = NDArray[np.float64]


def margins_of(loaded: CandidateModel, kinds: Mapping[str, Sequence[Item]]) -> dict[str, Margins]:
    """Return by kind and item the bits per byte by which the right choice is likelier than the likeliest other."""
    items = [item for listed in kinds.values() for item in listed]
    choices = [choice for item in items for choice in item.choices]
    contexts = [
        context
        for item in items
        for _, context in itertools.zip_longest(item.choices, item.contexts, fillvalue=item.contexts[0])
    ]
    tokenizer, prefix = loaded.candidate.tokenizer, loaded.candidate.prefix
    prompts = [(prefix, *ids) for ids in encode_texts(tokenizer, contexts)]
    nats = loaded.answer_nats(prompts, encode_texts(tokenizer, choices))
    # For each byte: else a model would seem to prefer whatever is short.
    bits = nats / math.log(2) / np.array([len(choice.encode()) for choice in choices])
    ends = np.cumsum([0, *(len(item.choices) for item in items)])
    margins = np.array([bits[a + 1 : b].min() - bits[a] for a, b in zip(ends[:-1], ends[1:], strict=True)])
    cuts = np.cumsum([len(listed) for listed in kinds.values()])[:-1]
    return dict(zip(kinds, np.split(margins, cuts), strict=True))
