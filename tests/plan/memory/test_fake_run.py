import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import Shape
from anadil.model.loss import summed_loss
from anadil.pretrain.parallel import parallelize
from tests.kit.fake_run import exact_peak
from tests.kit.marks import matrix
from tests.kit.plans import EIGHT, ONE, SEVENTY

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

WORST = 0.005
"""Most that the closed form may be off, of the run of the real model."""
LIGER = {"kernels": "liger", "loss": "fused"}
TORCH = {"kernels": "torch", "loss": "fused"}
LOGITS = {"kernels": "torch", "loss": "logits"}
HAS_LIGER = all(importlib.util.find_spec(name) for name in ("liger_kernel", "triton"))
QUICK = ("selective", "FSDP", "PP, the last stage is the worst")
"""One of a device, of several, and of stages; the others are of the matrix."""


def one(layers: int) -> Shape:
    return replace(ONE, layers=layers)


def eight(layers: int) -> Shape:
    return replace(EIGHT, layers=layers)


def seventy(layers: int) -> Shape:
    return replace(SEVENTY, layers=layers)


def work(kernels: Mapping[str, Any], **settings: Any) -> Work:
    return Work(sequence_length=2_048, **(dict(kernels) | settings))


def all_logits(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """The loss of transformers, which the engine never makes and published runs have."""
    logits = torch.nn.functional.linear(hidden, weight).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def assert_close(shape: Shape, layout: Layout, work: Work) -> None:
    if work.kernels == "liger" and not HAS_LIGER:
        pytest.skip("liger-kernel and triton are not installed")

    loss = all_logits if work.loss == "logits" else summed_loss
    with mock.patch.object(parallelize, "summed_loss", loss):
        exact = exact_peak(shape, layout, work)
    closed = peak_memory(shape, layout, work)

    assert abs(closed.allocated / exact - 1) < WORST, f"{closed.allocated:,} against {exact:,}: {closed}"


REDUCED = {
    "one device, torch, bf16": (one(2), Layout(), work(LOGITS, state="bf16")),
    "one device, autocast": (one(2), Layout(micro_batch_size=4), work(LOGITS)),
    "one device, Liger": (one(2), Layout(micro_batch_size=4), work(LIGER)),
    "one device, torch's fused loss": (one(2), Layout(micro_batch_size=4), work(TORCH, state="bf16")),
    "selective": (one(2), Layout(micro_batch_size=4, recompute="selective"), work(LIGER)),
    "full": (one(2), Layout(micro_batch_size=4, recompute="full"), work(TORCH)),
    "full, untied": (eight(2), Layout(recompute="full"), work(LIGER, state="bf16")),
    "embeddings": (one(2), Layout(micro_batch_size=4), work(LIGER, trains="embeddings")),
    "embeddings, full": (one(2), Layout(micro_batch_size=4, recompute="full"), work(TORCH, trains="embeddings")),
    "accumulation": (one(2), Layout(micro_batch_size=2, micro_batches=3), work(LIGER)),
    "FSDP": (one(3), Layout(data=8, shard=8, micro_batch_size=4), work(LIGER, state="bf16")),
    "FSDP, selective": (eight(2), Layout(data=8, shard=8, micro_batch_size=4, recompute="selective"), work(LIGER)),
    "FSDP, embeddings": (one(2), Layout(data=8, shard=8, recompute="full"), work(LIGER, trains="embeddings")),
    "FSDP, accumulation": (one(2), Layout(data=8, shard=8, micro_batch_size=2, micro_batches=2), work(LIGER)),
    "FSDP, two tables, accumulation": (eight(2), Layout(data=8, shard=8, recompute="full", micro_batches=2), work(LIGER)),
    "FSDP, two tables, embeddings": (eight(2), Layout(data=8, shard=8, recompute="full"), work(LIGER, trains="embeddings")),
    "FSDP, two shards": (eight(2), Layout(data=2, shard=2, recompute="full"), work(LIGER)),
    "HSDP": (one(2), Layout(data=8, shard=4, recompute="full"), work(LIGER)),
    "FSDP, few tokens": (seventy(3), Layout(data=256, shard=256, recompute="full"), work(LIGER)),
    "FSDP, few layers ahead": (seventy(4), Layout(data=256, shard=256, recompute="full", prefetch=2), work(LIGER)),
    "FSDP, no layer ahead": (seventy(2), Layout(data=256, shard=256, recompute="full", prefetch=0), work(LIGER)),
    "FSDP, kept": (eight(2), Layout(data=8, shard=8, recompute="full", reshard=False), work(LIGER)),
    "FSDP, kept, logits": (one(2), Layout(data=8, shard=8, prefetch=2, reshard=False), work(LOGITS)),
    "TP": (eight(2), Layout(tensor=8), work(LIGER, state="bf16")),
    "FSDP x TP": (eight(2), Layout(data=4, shard=4, tensor=2, micro_batch_size=2, recompute="full"), work(LIGER)),
    "FSDP x PP": (eight(2), Layout(data=2, shard=2, pipeline=2, micro_batches=2), work(LIGER)),
    "FSDP x PP, several layers": (eight(8), Layout(data=8, shard=8, pipeline=2, micro_batches=4, recompute="full"), work(LIGER)),
    "PP, the last stage is the worst": (eight(4), Layout(pipeline=4, micro_batches=4), work(LOGITS, state="bf16")),
    "PP, the first stage is the worst": (eight(6), Layout(pipeline=3, micro_batch_size=4, micro_batches=4), work(LIGER, state="bf16")),
    "context": (one(2), Layout(context=2, shard=2, micro_batch_size=2), work(LIGER)),
}  # fmt: skip


@pytest.mark.parametrize("name", [name if name in QUICK else matrix(name) for name in REDUCED])
def test_the_closed_form_is_what_a_small_model_holds(name: str) -> None:
    assert_close(*REDUCED[name])


@pytest.mark.parametrize(("name", "stage"), [("last", 3), ("first", 0)])
def test_pipeline_cases_have_their_worst_moment_where_they_say(name: str, stage: int) -> None:
    case = REDUCED[f"PP, the {name} stage is the worst"]

    assert peak_memory(*case).stage == stage
