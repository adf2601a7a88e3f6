"""TRL's trainer with batches of chats of one length, and a model that all processes share (FSDP2 of accelerate).

Checkpoints of several processes hold the adapter, or all weights, and the optimizer's state whole, whatever the number
of processes; the first of them writes.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.constants import FSDP_MODEL_NAME
from datasets import Dataset
from numpy.typing import NDArray
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from trl.trainer import utils as trl_utils
from trl.trainer.base_trainer import _BaseTrainer
from trl.trainer.sft_trainer import SFTTrainer

from anadil.finetune.encode import IGNORED_LABEL

POOL_BATCHES = 512
"""Batches' worth of chats, drawn at random, that are sorted by length together: of a large set other chats meet in each
epoch, and padding stays under 1 %. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Times that an epoch shows the chats of each source."""

    sources: tuple[tuple[NDArray[np.int64], float], ...]
    """Places of a source's chats, and their weight: 2 shows each twice, 0.5 half of them."""
    names: tuple[str, ...] = ()
    """Names of the sources."""

    @property
    def size(self) -> int:
        """Chats of an epoch; each epoch has as many."""
        return sum(int(weight) * len(chats) + _rest(chats, weight) for chats, weight in self.sources)

    def places(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the chats of an epoch, in order; a fraction shows others than the epoch before."""
        chosen = [np.empty(0, dtype=np.int64)]
        for number, (chats, weight) in enumerate(self.sources):
            chosen += [chats] * int(weight)
            rest = _rest(chats, weight)
            order = np.random.default_rng([seed, number]).permutation(chats)
            chosen += [order.take(range(epoch * rest, (epoch + 1) * rest), mode="wrap")] if rest else []
        return np.sort(np.concatenate(chosen))


def _rest(chats: NDArray[np.int64], weight: float) -> int:
    return round(weight % 1 * len(chats))


class LengthBatches(Sampler[list[int]]):
    """The chats of one process for each step of an epoch; `set_epoch` says which."""

    def __init__(
        self, lengths: Sequence[int], batch_size: int, *, seed: int, rank: int = 0, processes: int = 1,
        mix: Mix | None = None,
    ) -> None:  # fmt: skip
        """Prepare the batches of one process: `batch_size` chats for all of them together, as the mix shows them, or each once."""
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size, self.seed, self.rank, self.processes = batch_size, seed, rank, processes
        self.mix = mix or Mix(sources=((np.arange(len(lengths)), 1.0),))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(self.mix.size / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches():
            yield np.array_split(batch, self.processes)[self.rank].tolist()

    def batches(self) -> list[NDArray[np.int64]]:
        """Return the chats of each batch of the epoch, for all processes, in training order."""
        random = np.random.default_rng([self.seed, self.epoch])
        shuffled = random.permutation(self.mix.places(self.seed, self.epoch))
        pool = POOL_BATCHES * self.batch_size
        batches = []
        for start in range(0, len(shuffled), pool):
            drawn = shuffled[start : start + pool]
            # Stable, so that equal lengths keep the order of the seed.
            drawn = drawn[np.argsort(self.lengths[drawn], kind="stable")]
            batches += [drawn[at : at + self.batch_size] for at in range(0, len(drawn), self.batch_size)]
        return [batches[number] for number in random.permutation(len(batches))]


class FullBatches(LengthBatches):
    """Batches that are all full: where pairs are missing, some of about that length come twice in the epoch.

    Processes then have equally many pairs of each, and the mean of their means is that of the batch.
    """

    def batches(self) -> list[NDArray[np.int64]]:
        """Return the same number of chats in every batch, in training order."""
        by_length = np.argsort(self.lengths, kind="stable")
        filled = []
        for batch in super().batches():
            missing = self.batch_size - len(batch)
            if missing:
                others = by_length[~np.isin(by_length, batch)][-missing:]
                batch = np.resize(np.concatenate([batch, others]), self.batch_size)  # noqa: PLW2901
            filled.append(batch)
        return filled


class SourcedRows(TorchDataset[Any]):
    """Rows that know the number of their source, for a loader."""

    def __init__(self, rows: Dataset, mix: Mix) -> None:
        """Take rows, and the places of each source among them."""
        self._rows, self._source_of = rows, np.zeros(len(rows), dtype=np.int64)
        for number, (chats, _) in enumerate(mix.sources):
            self._source_of[chats] = number

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        rows = self._rows.__getitems__(places)
        return [row | {"source": source} for row, source in zip(rows, self._source_of[places], strict=True)]


class ChatLoader(DataLoader[Any]):
    """A loader whose batches know the epoch, which the trainer tells its loader alone."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, from 0."""
        batches: Any = self.batch_sampler
        batches.set_epoch(epoch)


Row = dict[str, list[int]]

# Compute the head at trained positions alone. TRL does so where it has Triton. Elsewhere it computes all positions and
# throws most away, since Neuron would recompile each batch; a CPU compiles nothing. There it took half of the time of
# a step, and at a vocabulary of 100,000 most of the memory.
trl_utils._use_triton = lambda device: device.type in ("cpu", "cuda")  # noqa: SLF001  no setting says it; TRL is pinned


class SharedModel(_BaseTrainer):  # type: ignore[misc]  # TRL is not followed by mypy
    """TRL's trainers for several processes that share a model, with batches of one length."""

    control: Any  # of transformers, which mypy does not follow
    batch_size: int
    """Rows of a batch, of all processes together."""

    def length_loader(
        self, rows: Dataset | SourcedRows, kind: type[LengthBatches], lengths: Sequence[int], collate: Callable[[Any], Any],
        mix: Mix | None = None,
    ) -> ChatLoader:  # fmt: skip
        """Return this process's part of every batch."""
        batches = kind(
            lengths, self.batch_size, seed=self.args.seed, rank=self.args.process_index,
            processes=self.args.world_size, mix=mix,
        )  # fmt: skip
        # Not prepared by accelerate: each process takes its own part already.
        return ChatLoader(
            rows, batch_sampler=batches, collate_fn=collate, pin_memory=self.args.dataloader_pin_memory
        )

    def create_accelerator_and_postprocess(self) -> None:
        """Let accelerate shard the model on CPUs too, as torch can; it asks for GPUs."""
        super().create_accelerator_and_postprocess()
        if not self.args.fsdp:
            return
        state = self.accelerator.state
        if state.distributed_type != DistributedType.FSDP:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled: bool = True
        if self.args.bf16:
            # Sums of gradients over processes in FP32, as pre-training has them; accelerate's are BF16.
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            state.fsdp_plugin.mixed_precision_policy = policy

    def create_optimizer(self, *given: Any) -> torch.optim.Optimizer:
        """Give parameters that are not sharded groups of their own: one kernel takes a group, and no mixed ones."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*given)
        apart = {id(each) for each in _row_parameters(self.model)} if self.is_fsdp_enabled else set()
        for group in list(optimizer.param_groups):
            rows = [each for each in group["params"] if id(each) in apart]
            if rows:
                group["params"] = [each for each in group["params"] if id(each) not in apart]
                optimizer.add_param_group({**group, "params": rows})
        return optimizer

    def _prepare_for_training(self, *given: Any, **more: Any) -> Any:
        """Leave embeddings with rows that learn on every device: PEFT writes the rows into the whole table."""
        rows = _row_parameters(self.model) if self.is_fsdp_enabled else []
        if rows:
            whole = _row_modules(self.model)
            for module in whole:
                module.to(self.args.device)
            self.accelerator.state.fsdp_plugin.ignored_modules = whole
            for parameter in rows:
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(self._average)
        return super()._prepare_for_training(*given, **more)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Take the weights of a checkpoint, which the first process reads."""
        if not self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        shared = self.model if model is None else model
        # Rows of tied embeddings have two names in the file, and torch asks for one of each parameter.
        names = {name for name, _ in shared.named_parameters()}
        state: dict[str, Any] = {}
        if self.args.process_index == 0:
            file = Path(resume_from_checkpoint, f"{FSDP_MODEL_NAME}.bin")
            read = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            state = {name: each for name, each in read.items() if name in names}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        set_model_state_dict(shared, state, options=options)

    def _average(self, parameter: torch.Tensor) -> None:
        """Take the mean of a gradient over all processes, once all batches of a step have added theirs."""
        if self.accelerator.sync_gradients:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.args.world_size


class ChatTrainer(SharedModel, SFTTrainer):  # type: ignore[misc]
    """An SFTTrainer for rows of `input_ids` and `labels`, which logs the loss of each source of a mix."""

    def __init__(self, *, batch_size: int, mix: Mix | None = None, **settings: Any) -> None:
        self.batch_size, self.mix = batch_size, mix
        self._names = mix.names if mix else ()
        self._by_source = torch.zeros(len(self._names), 2, dtype=torch.float64)
        super().__init__(**settings)

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
        """Return the loss of a batch, and add up the losses of its sources."""
        # Batches hold chats of one length, so mostly of one source: the loss of a step tells which one, not how it learns.
        sources = inputs.pop("sources", None)
        if sources is None:
            return super().compute_loss(model, inputs, *given, **more)
        outputs: list[Any] = []
        hook = model.register_forward_hook(lambda _module, _given, output: outputs.append(output))
        try:
            loss = super().compute_loss(model, inputs, *given, **more)
        finally:
            hook.remove()
        sums = torch.stack([-outputs[-1].log_probs.detach().sum(1), outputs[-1].label_mask.sum(1)], dim=1)
        self._by_source.index_add_(0, sources.cpu(), sums.cpu().double())
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log figures, for a step also the loss of each source."""
        if "loss" in logs and self._names:
            if self.args.world_size > 1:
                dist.all_reduce(self._by_source)
            for name, (nats, tokens) in zip(self._names, self._by_source.tolist(), strict=True):
                logs |= {f"loss/{name}": nats / tokens} if tokens else {}
            self._by_source.zero_()
        super().log(logs, start_time)

    def get_train_dataloader(self) -> ChatLoader:
        """Return this process's part of every batch."""
        return self._loader(self.train_dataset, self.mix)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the mean loss over all trained tokens of the validation chats."""
        # The trainer's own is the mean of its batches' means, which differ with the number of processes.
        self.model.eval()
        nats = torch.zeros((), dtype=torch.float64)
        tokens = 0
        for batch in self._loader(self.eval_dataset):
            inputs = self._prepare_inputs(batch)
            tokens += int((inputs["labels"][:, 1:] != IGNORED_LABEL).sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                one = torch.ones((), device=self.args.device)
                loss = self.compute_loss(self.model, inputs, num_items_in_batch=one)
            nats += loss.detach().cpu().double() / self.args.world_size
        summed = torch.tensor([float(nats), float(tokens)], dtype=torch.float64)
        if self.args.world_size > 1:
            dist.all_reduce(summed)
        metrics = {"eval_loss": float(summed[0] / summed[1])}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _loader(self, dataset: Dataset, mix: Mix | None = None) -> ChatLoader:
        rows: Dataset = self._remove_unused_columns(dataset, description="Training")
        read = SourcedRows(rows, mix) if mix and mix.names else rows
        return self.length_loader(read, LengthBatches, token_counts(rows), collator(self.data_collator), mix)


def load_in_first_process(*, only: bool) -> None:
    """Say, before a model is loaded to be shared, whether the first process of a node alone reads its weights."""
    # Else each process holds them all for a moment, in main memory.
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = str(only).lower()


def _row_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if isinstance(module, AuxiliaryTrainingWrapper)]


def _row_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    rows = [each for module in _row_modules(model) for each in module.parameters() if each.requires_grad]
    return list(dict.fromkeys(rows))


def token_counts(rows: Dataset) -> list[int]:
    """Tokens of each row, without its ids in memory."""
    table = rows.select_columns("input_ids").with_format("arrow")[:]
    return [count for chunk in table["input_ids"].chunks for count in chunk.value_lengths().to_pylist()]


def collator(collate: Callable[[Sequence[Row]], Any]) -> Callable[[Sequence[Row]], Any]:
    """Collate rows. A process that no chat of a small batch is left for gets a row without loss, to take part."""
    nothing: Row = {"input_ids": [0, 0], "labels": [IGNORED_LABEL, IGNORED_LABEL]}

    def collated(rows: Sequence[Row]) -> Any:
        sources = [row.pop("source") for row in rows if "source" in row]
        batch = collate(rows or [nothing])
        return {**batch, "sources": torch.tensor(sources)} if sources else batch

    return collated
