"""The closed form of memory beside runs of the real model on fake tensors, as a Markdown table.

OMP_NUM_THREADS=1 python -m benchmarks.plan.memory
"""

import logging
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from tests.kit.fake_run import exact_peak
from tests.plan.memory.test_fake_run import all_logits

from anadil.core.format import GIB
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import KNOWN, Shape, shape_from
from anadil.model.loss import summed_loss
from anadil.pretrain.parallel import parallelize

MODELS = {"1B": "meta-llama/Llama-3.2-1B", "8B": "meta-llama/Llama-3.1-8B", "70B": "meta-llama/Llama-3.1-70B"}
LENGTH = 2_048
BF16 = Work(sequence_length=LENGTH, state="bf16")
FP32 = Work(sequence_length=LENGTH)
FROZEN = Work(sequence_length=LENGTH, trains="embeddings")
TORCH = Work(sequence_length=LENGTH, kernels="torch")
TORCH_BF16 = Work(sequence_length=LENGTH, state="bf16", kernels="torch")
LOGITS_BF16 = Work(sequence_length=LENGTH, state="bf16", kernels="torch", loss="logits")
LOGITS_FP32 = Work(sequence_length=LENGTH, kernels="torch", loss="logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A configuration."""

    model: str
    layout: Layout
    work: Work

    @property
    def shape(self) -> Shape:
        """Sizes of the whole model."""
        name = MODELS[self.model]
        return shape_from(KNOWN[name], name)

    def name(self) -> str:
        """The cells of the table that say what it is."""
        layout, work = self.layout, self.work
        batch = f"{layout.micro_batch_size} x {layout.micro_batches}"
        kernels = f"{work.kernels}, {'all logits' if work.loss == 'logits' else 'fused loss'}"
        cells = (layout.name(), batch, layout.recompute, work.trains, kernels, work.state)
        return " | ".join((self.model, *cells))


def one_billion() -> Iterator[Row]:
    """Rows of the 1B model."""

    def row(layout: Layout, work: Work) -> Row:
        return Row(model="1B", layout=layout, work=work)

    for work in (BF16, FP32, FROZEN, LOGITS_BF16, LOGITS_FP32):
        yield row(Layout(micro_batch_size=4), work)
    for work in (FP32, FROZEN, TORCH, LOGITS_BF16):
        yield row(Layout(micro_batch_size=8, recompute="selective"), work)
        yield row(Layout(micro_batch_size=8, recompute="full"), work)
    yield row(Layout(micro_batch_size=2, micro_batches=4), FP32)
    yield row(Layout(micro_batch_size=2, micro_batches=4, recompute="full"), BF16)
    for work in (BF16, FP32, FROZEN, LOGITS_FP32):
        yield row(Layout(data=8, shard=8, micro_batch_size=14), work)
    yield row(Layout(data=8, shard=8, micro_batch_size=14, recompute="selective"), FP32)
    yield row(Layout(data=8, shard=8, micro_batch_size=1, recompute="full"), FROZEN)
    yield row(Layout(data=8, shard=8, micro_batch_size=4, micro_batches=2), FP32)
    yield row(Layout(data=16, shard=8, micro_batch_size=8), FP32)


def eight_billion() -> Iterator[Row]:
    """Rows of the 8B model."""

    def row(layout: Layout, work: Work) -> Row:
        return Row(model="8B", layout=layout, work=work)

    yield row(Layout(micro_batch_size=1, recompute="full"), BF16)
    yield row(Layout(data=8, shard=8, micro_batch_size=2), FP32)
    yield row(Layout(data=8, shard=8, micro_batch_size=4, recompute="selective"), FROZEN)
    yield row(Layout(data=8, shard=8, micro_batch_size=4, recompute="full"), TORCH)
    yield row(Layout(data=16, shard=8, micro_batch_size=2, recompute="full"), FP32)
    yield row(Layout(tensor=8, micro_batch_size=1), TORCH_BF16)
    yield row(Layout(tensor=8, micro_batch_size=4, recompute="selective"), TORCH_BF16)
    yield row(Layout(data=4, shard=4, tensor=2, micro_batch_size=2), TORCH)
    yield row(Layout(data=4, shard=4, tensor=2, micro_batch_size=4, recompute="full"), TORCH_BF16)
    yield row(Layout(pipeline=4, micro_batches=8), BF16)
    yield row(Layout(pipeline=4, micro_batches=8, recompute="full"), FP32)
    yield row(Layout(data=8, shard=8, pipeline=2, micro_batches=4), LOGITS_FP32)


def seventy_billion() -> Iterator[Row]:
    """Rows of the 70B model, of which each takes most of a minute."""
    yield Row(model="70B", layout=Layout(data=256, shard=256, recompute="full"), work=FP32)
    hybrid = Layout(data=32, shard=32, tensor=8, micro_batch_size=2, recompute="selective")
    yield Row(model="70B", layout=hybrid, work=TORCH)
    piped = Layout(data=64, shard=64, pipeline=4, micro_batches=8, recompute="full")
    yield Row(model="70B", layout=piped, work=BF16)


def main() -> None:
    """Print the table, then the largest difference."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # Liger names back ends that are not installed
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text file
    print("| model | layout | batch | recompute | trains | kernels | state | fake GiB | closed GiB | % |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    worst, rows, start = 0.0, 0, time.perf_counter()
    for row in (*one_billion(), *eight_billion(), *seventy_billion()):
        loss = all_logits if row.work.loss == "logits" else summed_loss
        with mock.patch.object(parallelize, "summed_loss", loss):
            fake = exact_peak(row.shape, row.layout, row.work)
        closed = peak_memory(row.shape, row.layout, row.work).allocated
        percent = 100 * (closed / fake - 1)
        worst, rows = max(worst, abs(percent)), rows + 1
        print(f"| {row.name()} | {fake / GIB:.3f} | {closed / GIB:.3f} | {percent:+.2f} |")
    print(f"\n{rows} rows, largest difference {worst:.2f} %, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
