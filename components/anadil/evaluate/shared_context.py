"""Nats of several continuations of one context, which goes through the model once.

The continuations stand in one row behind their context. Each has the places that it would have alone, and its tokens see
the context and their own continuation only.

Shapes: B rows of a batch, T tokens of the longest.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.model.family_table import families

MIN_SHARED = 4
"""Tokens of a context that is worth sharing. All documents share their first token."""
MAX_ROW = 1_024
"""Most tokens of a row: its mask has their square."""
Tokens = NDArray[np.int64]


class SharedRow(NamedTuple):
    """A context and its continuations."""

    context: Tokens
    members: tuple[tuple[int, Tokens], ...]
    """Place of a text in the list of all, and its tokens behind the context."""

    @property
    def length(self) -> int:
        """Input tokens: the last one of each continuation is only scored."""
        return len(self.context) + sum(len(ids) - 1 for _, ids in self.members)


def shared_rows(
    model: Any, full: Sequence[Tokens], num_before: Sequence[int], context: int
) -> list[SharedRow]:
    """Return the texts that begin with the same context, as rows, the longest first."""
    room = min(context, MAX_ROW, _reach(model))
    groups: dict[bytes, list[int]] = defaultdict(list)
    for place, (ids, before) in enumerate(zip(full, num_before, strict=True)):
        if MIN_SHARED <= before < len(ids) <= room:
            groups[ids[:before].tobytes()].append(place)
    rows = []
    for places in groups.values():
        before, members, length = num_before[places[0]], list[tuple[int, Tokens]](), 0
        for place in places:
            ids = full[place][before:]
            if members and before + length + len(ids) - 1 > room:
                rows.append(SharedRow(full[members[0][0]][:before], tuple(members)))
                members, length = [], 0
            members.append((place, ids))
            length += len(ids) - 1
        rows.append(SharedRow(full[members[0][0]][:before], tuple(members)))
    # A row of one member is scored as every other text is.
    return sorted((row for row in rows if len(row.members) > 1), key=lambda row: -row.length)


def _reach(model: Any) -> int:
    """Tokens within which each of a model's layers sees all that the mask lets it see. 0 for layers that read in order."""
    family = families().get(model.config.model_type)
    if family is None or family.recurrent:
        return 0
    window: int | None = getattr(model.config, "sliding_window", None)
    return window or MAX_ROW


def shared_hidden(model: Any, rows: Sequence[SharedRow]) -> tuple[torch.Tensor, Tokens]:
    """Return the hidden states [B, T, H] of rows, and four numbers of each scored token: text, row, column and id."""
    width = max(row.length for row in rows)
    inputs, places, parts = (np.zeros((len(rows), width), dtype=np.int64) for _ in range(3))
    scored: list[tuple[int, int, int, int]] = []
    for number, row in enumerate(rows):
        before = at = len(row.context)
        inputs[number, :before] = row.context
        places[number, :before] = np.arange(before)
        for part, (text, ids) in enumerate(row.members, start=1):
            rest = slice(at, at + len(ids) - 1)
            inputs[number, rest] = ids[:-1]
            places[number, rest] = np.arange(before, before + len(ids) - 1)
            parts[number, rest] = part
            columns = [before - 1, *range(rest.start, rest.stop)]
            scored += [
                (text, number, column, token) for column, token in zip(columns, ids.tolist(), strict=True)
            ]
            at = rest.stop
        # Padding stands right of all, and nothing but padding sees it.
        parts[number, at:] = -1
    seen = torch.from_numpy(parts).to(model.device)
    sees = (seen[:, None, :] == 0) | (seen[:, None, :] == seen[:, :, None])
    sees &= torch.ones(width, width, dtype=torch.bool, device=model.device).tril()
    # A mask of booleans is read by one attention kernel only.
    mask = torch.zeros(sees.shape, dtype=model.dtype, device=model.device).masked_fill_(
        ~sees, torch.finfo(model.dtype).min
    )
    hidden = model.base_model(
        input_ids=torch.from_numpy(inputs).to(model.device), position_ids=torch.from_numpy(places).to(model.device),
        attention_mask=mask[:, None], use_cache=False,
    ).last_hidden_state  # fmt: skip
    return hidden.to(model.device), np.array(scored).T.copy()
