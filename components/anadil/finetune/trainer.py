"""TRL's trainer with batches of chats of one length, shared by all processes."""

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from trl.trainer.sft_trainer import SFTTrainer

from anadil.finetune.batches import ChatLoader, LengthBatches
from anadil.finetune.encode import IGNORED_LABEL

Row = dict[str, list[int]]


class ChatTrainer(SFTTrainer):  # type: ignore[misc]  # TRL is not followed by mypy
    """An SFTTrainer for rows of `input_ids` and `labels`."""

    def __init__(self, *, batch_size: int, **settings: Any) -> None:
        """Prepare to train.

        Args:
            batch_size: Chats of a batch, of all processes together.
            settings: Of the SFTTrainer.
        """
        self.batch_size = batch_size
        super().__init__(**settings)

    def get_train_dataloader(self) -> ChatLoader:
        """This process's part of every batch."""
        rows: Dataset = self._remove_unused_columns(self.train_dataset, description="Training")
        batches = LengthBatches(
            token_counts(rows),
            self.batch_size,
            seed=self.args.seed,
            rank=self.args.process_index,
            processes=self.args.world_size,
        )
        # Not prepared by accelerate: each process takes its own part already.
        return ChatLoader(
            rows,
            batch_sampler=batches,
            collate_fn=collator(self.data_collator),
            pin_memory=self.args.dataloader_pin_memory,
        )


def token_counts(rows: Dataset) -> list[int]:
    """Tokens of each row, without its ids in memory."""
    table = rows.select_columns("input_ids").with_format("arrow")[:]
    return [count for chunk in table["input_ids"].chunks for count in chunk.value_lengths().to_pylist()]


def collator(collate: Callable[[Sequence[Row]], Any]) -> Callable[[Sequence[Row]], Any]:
    """`collate`, and for a process that no chat of a small batch is left for, a row without loss.

    It must take part in the step, or the others would wait for it.
    """
    nothing: Row = {"input_ids": [0, 0], "labels": [IGNORED_LABEL, IGNORED_LABEL]}
    return lambda rows: collate(rows or [nothing])
