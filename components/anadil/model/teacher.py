"""Chances that another model gives to the tokens that may follow, and the divergence of a model from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

NONE = -1
"""Id in place of a token that the model has not."""
LEAST_REST = 1e-5
"""Least chance that the model is taken to leave to all other tokens. Below it, FP32 logarithms of logits cannot tell it, and
dividing by it would leave nothing but rounding. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The teacher's most likely tokens at each position, and how much they weigh."""

    ids: torch.Tensor
    """(..., k) of int64: ids of the model that learns. `NONE` stands for a token that it has not."""
    logs: torch.Tensor
    """(..., k + 1), FP16: log-probabilities of `ids`, -inf for `NONE`, then of all other tokens together. A position
    without a teacher has `NONE` alone, and 0 for the others."""
    weight: float = 1.0
    """Nats of the loss for a nat of divergence."""
    totals: torch.Tensor | None = None
    """(2,) of FP64, on the device: nats of divergence and positions with a teacher are added to it."""

    @classmethod
    def nowhere(cls, shape: Sequence[int], k: int) -> "Teacher":
        """No teacher at any position of sequences in this shape."""
        logs = torch.full((*shape, k + 1), -torch.inf, dtype=torch.float16)
        logs[..., -1] = 0
        return cls(ids=torch.full((*shape, k), NONE), logs=logs)

    @property
    def rows(self) -> torch.Tensor:
        """(sequences,) of bool: those with a teacher anywhere."""
        return (self.ids != NONE).flatten(1).any(1)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Teacher":
        """The same with another form of its tensors, such as on another device."""
        return replace(self, ids=change(self.ids), logs=change(self.logs))

    def at(self, where: slice | torch.Tensor) -> "Teacher":
        """The same of some rows or tokens."""
        return self.changed(lambda each: each[where])

    def pull(
        self, logits: torch.Tensor, log_z: torch.Tensor, scored: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compare the model with its teacher at some positions.

        D = sum_k p_k (log p_k - log q_k) + (1 - P) log((1 - P) / (1 - Q)), p of the teacher, q of the model, P and Q their
        sums over the ids. Its gradient by a logit is q - p at the ids, and q (1 - (1 - P) / (1 - Q)) elsewhere.

        Args:
            logits: Logits of `ids`, (tokens, k), as the softmax takes them.
            log_z: Logarithms of the softmax's sums, (tokens,).
            scored: 1 for a position that counts, else 0, (tokens,).

        Returns:
            The summed divergence times the weight, the factor by which the whole softmax is in the gradient (tokens,),
            and what is added to it at the ids (tokens, k).
        """
        has = self.ids != NONE
        # Rounded to FP16, the chances no longer sum to 1.
        logs = self.logs.float().log_softmax(-1)
        chances = logs.exp()
        log_q = (logits - log_z[:, None]).masked_fill(~has, -torch.inf)
        sum_q = log_q.logsumexp(-1).clamp_max(0)
        rest = (-sum_q.expm1()).clamp_min(LEAST_REST)
        compared = torch.cat([log_q, rest.log()[:, None]], -1)
        terms = torch.where(chances > 0, chances * (logs - compared), 0)
        nats = (terms.sum(-1) * scored).sum()
        if self.totals is not None:
            self.totals.add_(torch.stack([nats.double(), (has.any(-1) * scored).sum().double()]))
        pulled = (self.weight * scored)[:, None]
        ratio = (chances[:, -1] / rest)[:, None]
        at_ids = torch.where(has, log_q.exp() * ratio - chances[:, :-1], 0)
        return self.weight * nats, (pulled * (1 - ratio))[:, 0], pulled * at_ids
