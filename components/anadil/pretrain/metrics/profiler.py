"""A trace of some optimizer steps.

`trace.json` opens in https://ui.perfetto.dev. `profile.json` names the operators and kernels that
took the most time, and says which fused kernels ran: Liger's replace parts of transformers silently,
so that a slow run looks like a fast one.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType  # torch.autograd has it without a type
from torch.profiler import ProfilerActivity, profile, schedule

from anadil.core.format import counted
from anadil.pretrain.callback import Callback
from anadil.pretrain.trainer import Step

log = logging.getLogger(__name__)

PROFILE = "profile"
"""Directory of the trace that `pretrain.profile_steps` asks for."""
TRACED_AFTER = 10
"""Steps before a trace, in which kernels are chosen and memory is taken; fewer where fewer are left."""
TRACE = "trace.json"
SUMMARY = "profile.json"
NUM_TOP = 20
"""Operators and kernels in the summary. Assumption."""
KERNELS: Mapping[str, tuple[str, ...]] = {
    "norm": ("_rms_norm_forward_kernel",),
    "swiglu": ("_swiglu_forward_kernel", "_swiglu_fused_gate_up_forward_kernel"),
    "rope": ("_triton_rope",),
    "loss": ("liger_cross_entropy_kernel", "_ChunkedLoss"),
    "attention": ("flash_fwd", "_varlen_attn", "anadil::packed_attention"),
}
"""Parts of the names of fused kernels and operators. Source: Liger 0.8.5, ops/{rms_norm,swiglu,rope,
cross_entropy}.py; torch 2.13, nn/attention/varlen.py; our own."""


class Profiler(Callback):
    """Traces `pretrain.profile_steps` steps of the first process."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._profile: profile | None = None

    def pre_train(self) -> None:
        """Start to count steps."""
        run = self.training
        settings = run.job.recipe.pretrain
        num_steps = settings.profile_steps if run.group.is_first else 0
        if num_steps:
            first_step = max(1, min(TRACED_AFTER, settings.steps - run.state.step - num_steps))
            tracing = profiled(run.job.work / PROFILE, first_step, num_steps, run.trainer.device)
            self._profile = self._held.enter_context(tracing)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Count a step."""
        if self._profile is not None:
            self._profile.step()

    def close(self) -> None:
        """Write the trace, also of a run that fails."""
        self._held.close()


@contextmanager
def profiled(folder: Path, first_step: int, num_steps: int, device: torch.device) -> Iterator[profile]:
    """Trace optimizer steps inside and write `TRACE` and `SUMMARY`; call `.step()` after each.

    A block that ends early writes the steps until then, or warns where there were none.

    Args:
        folder: Directory of the files.
        first_step: Steps before the trace, at least 1, in which the profiler starts.
        num_steps: Traced steps, at least 1.
        device: Device of the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    first_step = max(first_step, 1)

    def write(ready: Any) -> None:
        if ready.step_num > first_step:  # else a step was awaited that did not come
            _write(ready, folder, device)

    with profile(
        activities=activities,
        schedule=schedule(wait=first_step - 1, warmup=1, active=num_steps, repeat=1),
        on_trace_ready=write,
    ) as tracing:
        yield tracing
    if tracing.step_num <= first_step:
        log.warning(
            "pretrain.profile_steps: nothing is traced of %s, since training ended within the %s before them; "
            "train more steps, or set it to 0",
            counted(num_steps, "step"), first_step,
        )  # fmt: skip


def fused_kernels(events: Iterable[str]) -> dict[str, bool]:
    """Tell which parts of a step ran as fused kernels, by a trace's names of operators and kernels."""
    names = set(events)
    return {
        part: any(known in name for known in kernels for name in names) for part, kernels in KERNELS.items()
    }


def _write(ready: Any, folder: Path, device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    averages = ready.key_averages()
    # On a GPU the kernels themselves: an operator's time is that of the kernels it started, once more.
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    taken = [
        (entry.key, entry.self_device_time_total if on_gpu else entry.self_cpu_time_total, entry.count)
        for entry in averages
        if entry.device_type == kind and not entry.key.startswith("ProfilerStep")
    ]
    taken.sort(key=lambda entry: entry[1], reverse=True)
    total = sum(microseconds for _, microseconds, _ in taken)
    fused = fused_kernels(entry.key for entry in averages)
    summary = {
        "device": device.type,
        "total_s": round(total / 1e6, 6),
        "fused": fused,
        "top": [
            {
                "name": name,
                "share": round(spent / max(total, 1e-9), 4),
                "s": round(spent / 1e6, 6),
                "calls": calls,
            }
            for name, spent, calls in taken[:NUM_TOP]
        ],
    }
    draft = folder / f"{TRACE}.partial"
    ready.export_chrome_trace(str(draft))
    # Renamed whole: a viewer must not open half a trace.
    draft.rename(folder / TRACE)
    draft = folder / f"{SUMMARY}.partial"
    draft.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draft.rename(folder / SUMMARY)
    parts = ", ".join(part for part, seen in fused.items() if seen) or "nothing"
    log.info("profile: %s; fused: %s", folder / TRACE, parts)
