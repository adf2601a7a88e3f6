"""Traces of training steps, of a real loss and of names that a GPU gave to its kernels."""

import json
from pathlib import Path

import pytest
import torch

from anadil.model.loss import summed_loss
from anadil.pretrain.metrics.profiler import PROFILE, SUMMARY, TRACE, fused_kernels, profiled
from anadil.pretrain.run import run
from tests.kit.pretraining import SHORT, make_job, make_recipe

CPU = torch.device("cpu")
LIGER = (
    "ProfilerStep#11",
    "aten::mm",
    "_block_rms_norm_forward_kernel",
    "_swiglu_forward_kernel_tiled",
    "_triton_rope",
    "liger_cross_entropy_kernel",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
)
"""Names as in the sources of Liger 0.8.5 and torch 2.13."""
PLAIN = ("aten::mm", "aten::rsqrt", "aten::silu", "aten::_log_softmax", "aten::scaled_dot_product_attention")


def step(z_loss: float = 0.0) -> None:
    weight = torch.ones(30, 8, requires_grad=True)
    labels = torch.zeros(1, 5, dtype=torch.long)
    summed_loss(torch.ones(1, 5, 8), weight, labels, z_loss=z_loss).backward()  # type: ignore[no-untyped-call]


def steps_of(folder: Path) -> set[str]:
    events = json.loads((folder / TRACE).read_text())["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("ProfilerStep")}


def test_ligers_kernels_are_told_from_transformers_own() -> None:
    assert set(fused_kernels(LIGER).values()) == {True}
    assert set(fused_kernels(PLAIN).values()) == {False}


@pytest.mark.parametrize("left_out", LIGER[2:])
def test_a_kernel_that_did_not_run_is_missed(left_out: str) -> None:
    seen = fused_kernels(name for name in LIGER if name != left_out)

    assert list(seen.values()).count(False) == 1


@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_a_trace_on_a_cpu_names_the_fused_loss(tmp_path: Path, z_loss: float) -> None:
    with profiled(tmp_path, 1, 2, CPU) as tracing:
        for _ in range(5):
            step(z_loss)
            tracing.step()

    summary = json.loads((tmp_path / SUMMARY).read_text())
    assert summary["fused"] == {
        "norm": False,
        "swiglu": False,
        "rope": False,
        "loss": True,
        "attention": False,
    }
    assert summary["total_s"] > 0
    shares = [entry["share"] for entry in summary["top"]]
    assert shares == sorted(shares, reverse=True)
    assert any("mm" in entry["name"] for entry in summary["top"])


def test_only_the_steps_that_are_asked_for_are_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 2, 3, CPU) as tracing:
        for _ in range(8):
            step()
            tracing.step()

    assert steps_of(tmp_path) == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}


def test_training_that_ends_early_leaves_what_was_traced(tmp_path: Path) -> None:
    with profiled(tmp_path, 1, 50, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert json.loads((tmp_path / SUMMARY).read_text())["fused"]["loss"]


@pytest.mark.parametrize(("first", "num", "warnings"), [(10, 2, 1), (3, 1, 1)])
def test_where_no_step_is_traced_nothing_is_written_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, num: int, warnings: int
) -> None:
    with profiled(tmp_path, first, num, CPU) as tracing:
        for _ in range(3):
            step()
            tracing.step()

    assert list(tmp_path.iterdir()) == []
    assert caplog.text.count("pretrain.profile_steps: nothing is traced") == warnings


@pytest.mark.slow
def test_of_a_run_with_few_steps_the_last_ones_are_traced(tmp_path: Path, base: Path) -> None:
    job = make_job(tmp_path, make_recipe(base, profile_steps=3, phases=SHORT))

    run(job)

    assert steps_of(job.out / PROFILE) == {"ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"}
