"""TRL's trainer of preferences for rows of ids; the reference is computed once, before the first step.

The reference is the model as it begins, so one forward pass over all pairs replaces a second model: 16 bytes a pair
instead of a copy of the weights to the end. Dropout is off, so all rewards begin at 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import distributed as dist
from trl.trainer.dpo_trainer import DPOTrainer

from anadil.finetune.batches import ChatLoader, FullBatches
from anadil.finetune.encode import IGNORED_LABEL
from anadil.finetune.pairs import IDS, PLACE
from anadil.finetune.trainer import SharedModel

LogProbabilities = NDArray[np.float64]
"""Chosen and rejected answer of each pair, in nats; shape (pairs, 2)."""
REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")
"""TRL's names of their columns."""
HELDOUT = ("heldout_margin", "heldout_accuracy")
"""Names in the trainer's log."""
LOGGED = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
    "reward_chosen": "rewards/chosen",
    "reward_rejected": "rewards/rejected",
    "logp_chosen": "logps/chosen",
    "logp_rejected": "logps/rejected",
    **{name: name for name in HELDOUT},
}
"""Our names of figures -> TRL's. Source: trl 1.16, dpo_trainer.py."""


class PairTrainer(SharedModel, DPOTrainer):  # type: ignore[misc]
    """A DPOTrainer for rows of `prompt_ids`, `chosen_ids`, `rejected_ids` and `pair`."""

    def __init__(
        self,
        *,
        batch_size: int,
        reference_of: Callable[[Callable[[], LogProbabilities]], LogProbabilities],
        rows: Dataset,
        **settings: Any,
    ) -> None:
        """Prepare to train; `reference_of` loads the reference of an earlier start, or computes and stores it by the given function."""
        self.batch_size, self.reference_of, self.rows = batch_size, reference_of, rows
        self.reference: LogProbabilities = np.zeros((0, 2))
        super().__init__(**settings)
        self.ref_model, self.precompute_ref_logps = None, True

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        """Return rows of ids as they are; TRL's preparation would read control words in a text as control tokens."""
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_: object) -> Dataset:
        """Compute nothing yet: the model is not where it is trained."""
        return dataset

    def _prepare_for_training(self, *given: Any, **more: Any) -> Any:
        """Compute the reference with the model as it will be trained: same devices, same precision."""
        prepared = super()._prepare_for_training(*given, **more)
        self.reference = self.reference_of(lambda: self.log_probabilities(self.rows))
        return prepared

    def log_probabilities(self, rows: Dataset) -> LogProbabilities:
        """Score each answer of some pairs; all processes take part."""
        computed = np.zeros((len(rows), 2))
        order = np.argsort(pair_lengths(rows), kind="stable")
        self.model.eval()
        for start in range(0, len(order), self.batch_size):
            batch = np.resize(order[start : start + self.batch_size], self.batch_size)
            part = np.array_split(batch, self.args.world_size)[self.args.process_index]
            sums = self._sums([rows[place] for place in part.tolist()])
            if self.args.world_size > 1:
                parts = [torch.empty_like(sums) for _ in range(self.args.world_size)]
                dist.all_gather(parts, sums)
                sums = torch.cat(parts)
            computed[batch] = sums.cpu().double().numpy()
        return computed

    def _sums(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        """Return the log-probabilities of both answers of each row; shape (rows, 2)."""
        inputs = self._prepare_inputs(self.data_collator(rows))
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        labels = ids.masked_fill(inputs["completion_mask"] == 0, IGNORED_LABEL)
        with torch.no_grad(), self.accelerator.autocast():
            output = self.model(
                input_ids=ids, attention_mask=mask, use_cache=False, labels=labels, fused_lm_head=True
            )
        return torch.stack(output.log_probs.float().sum(dim=1).chunk(2), dim=1)

    def get_train_dataloader(self) -> ChatLoader:
        """Return this process's part of every batch, with the reference of each pair."""
        lengths = pair_lengths(self.train_dataset).tolist()
        return self.length_loader(self.train_dataset, FullBatches, lengths, self._with_reference)

    def _with_reference(self, rows: list[dict[str, Any]]) -> Any:
        return self.data_collator(
            [row | dict(zip(REFERENCE, self.reference[row[PLACE]].tolist(), strict=True)) for row in rows]
        )

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the mean margin of rewards of held-out pairs, and the share whose chosen answer has the higher."""
        rows = self.eval_dataset
        gained = self.log_probabilities(rows) - self.reference[np.asarray(rows[PLACE])]
        margins = self.beta * (gained[:, 0] - gained[:, 1])
        metrics = dict(zip(HELDOUT, (float(margins.mean()), float((margins > 0).mean())), strict=True))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def pair_lengths(rows: Dataset) -> NDArray[np.int64]:
    """Return the tokens of the longer chat of each pair, without its ids in memory."""
    table = rows.select_columns(list(IDS)).with_format("arrow")[:]
    counts = [
        np.concatenate([chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in table[name].chunks])
        for name in IDS
    ]
    lengths: NDArray[np.int64] = counts[0].astype(np.int64) + np.maximum(counts[1], counts[2])
    return lengths
