"""Batches of chats of about one length, so that little of each is padding.

The order follows from seed and epoch alone, and the chats of a step are the same whatever the number of processes
that share them. So a run that resumes, and one on more devices, has the losses of one that nothing changed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Sampler

POOL_BATCHES = 512
"""Batches' worth of chats, drawn at random, that are sorted by length together: of a large set other chats meet in each
epoch, and padding stays under 1 %. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Times that an epoch shows the chats of each source."""

    sources: tuple[tuple[NDArray[np.int64], float], ...]
    """Places of a source's chats, and their weight: 2 shows each twice, 0.5 half of them."""

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
        self,
        lengths: Sequence[int],
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        processes: int = 1,
        mix: Mix | None = None,
    ) -> None:
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


class ChatLoader(DataLoader[Any]):
    """A loader whose batches know the epoch, which the trainer tells its loader alone."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, from 0."""
        batches: Any = self.batch_sampler
        batches.set_epoch(epoch)
