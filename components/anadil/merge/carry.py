"""Rows of the base's vocabulary as rows of the model's: kept, moved, or made of their pieces, as pre-training made them.

A difference of two models is carried as the base's table itself is. A new token begins as the mean of its pieces' rows, so
what the pieces learn elsewhere is what it would have learnt.
"""

from collections.abc import Callable
from functools import cached_property

import torch

from anadil.pretrain.embedding_init import BaseTable, VocabularyRows, new_rows

Read = Callable[[int, int], torch.Tensor]
"""Reads rows by the first one and their number."""


class DifferenceTable(BaseTable):
    """A difference of two tables with the base's rows."""

    @cached_property
    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros: a row that no token has differs in nothing."""
        return torch.zeros(self.width), torch.zeros(self.width)


def carried(rows: VocabularyRows, table: BaseTable) -> Read:
    """Let a table with the base's rows be read as one with the model's, in FP32."""
    return lambda first, count: torch.cat([chunk for _, chunk in new_rows(rows, table, first, count)])
