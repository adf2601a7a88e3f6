"""CPU seconds and memory of a replayed step with the divergence from the base and without: `python -m benchmarks.mix.teacher_cost BASE [WAY]`.

A step is a forward and a backward pass of two sequences of 512 tokens. Both ways take turns, and the median counts.
"""

import resource
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from anadil.model.load import load_model
from anadil.model.process_group import Group
from anadil.model.teacher import Teacher
from anadil.pretrain.data.batch import Batch
from anadil.pretrain.parallel.mesh import mesh_of
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.recipe.pretrain import Pretrain

ROWS, LENGTH, K, TURNS = 2, 512, 16, 7


def main(base: Path) -> None:
    """Print a line for each way."""
    torch.set_num_threads(1)
    device, settings = torch.device("cpu"), Pretrain(sequence_length=LENGTH, micro_batch_size=ROWS)
    net = parallelize(
        load_model(base), settings, mesh_of(settings.parallelism, Group(rank=0, size=1), "cpu"), device
    )
    random = torch.Generator().manual_seed(0)
    vocabulary = net.model.config.vocab_size
    ids = torch.randint(0, vocabulary, (ROWS, LENGTH), generator=random)
    chances = torch.rand(ROWS, LENGTH, K + 1, generator=random)
    teacher = Teacher(
        ids=torch.randint(0, vocabulary, (ROWS, LENGTH, K), generator=random).sort(-1).values,
        logs=(chances / chances.sum(-1, keepdim=True)).log().half(),
    )
    plain = Batch(
        input_ids=ids, position_ids=torch.arange(LENGTH).expand(ROWS, -1), labels=ids.roll(-1, 1),
        borders=torch.arange(ROWS + 1, dtype=torch.int32) * LENGTH, sources=torch.zeros(ROWS, dtype=torch.int64),
    )  # fmt: skip
    net.objective.by_source, net.objective.teacher_weight = torch.zeros(1, dtype=torch.float64), 1.0
    net.objective.divergence = torch.zeros(2, dtype=torch.float64)
    ways = {"without": plain, "with": replace(plain, teacher=teacher)}
    if sys.argv[2:]:
        ways = {sys.argv[2]: ways[sys.argv[2]]}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, batch in ways.items():
            started = time.process_time()
            net.loss(batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            seconds[name].append(time.process_time() - started)
            net.model.zero_grad()
            print(
                name,
                f"{seconds[name][-1]:.2f} s",
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.3f} GiB",
                flush=True,
            )
    for name, each in seconds.items():
        print(name, "median", f"{statistics.median(each[1:]):.3f} CPU s", net.dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
