"""A trace of some optimizer steps, which opens in https://ui.perfetto.dev."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from anadil.core.format import counted
from anadil.pretrain.callback import Callback
from anadil.pretrain.state import Step

log = logging.getLogger(__name__)

PROFILE = "profile"
"""Directory of the trace that `pretrain.profile_steps` asks for."""
TRACED_AFTER = 10
"""Steps before a trace, in which kernels are chosen and memory is taken; fewer where fewer are left."""
TRACE = "trace.json"


class Profiler(Callback):
    """Traces `pretrain.profile_steps` steps of the first process."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._profile: profile | None = None

    def pre_train(self) -> None:
        """Start to count steps."""
        run = self.training
        settings = run.job.recipe.pretrain
        num_steps = settings.profile_steps if run.group.is_first else 0
        if num_steps:
            first_step = max(1, min(TRACED_AFTER, settings.steps - run.state.step - num_steps))
            tracing = profiled(run.job.work / PROFILE, first_step, num_steps, run.trainer.device)
            self._profile = self._stack.enter_context(tracing)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Count a step."""
        if self._profile is not None:
            self._profile.step()

    def close(self) -> None:
        """Write the trace, also of a run that fails."""
        self._stack.close()


@contextmanager
def profiled(folder: Path, first_step: int, num_steps: int, device: torch.device) -> Iterator[profile]:
    """Trace `num_steps` optimizer steps after `first_step` (at least 1) into `TRACE`; call `.step()` after each.

    A block that ends early writes the steps until then, or warns where there were none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def write(ready: Any) -> None:
        if ready.step_num > first_step:  # the block did not end before
            draft = folder / f"{TRACE}.partial"
            ready.export_chrome_trace(str(draft))
            # Renamed whole: a viewer must not open half a trace.
            draft.rename(folder / TRACE)
            log.info("profile: %s", folder / TRACE)

    steps = schedule(wait=first_step - 1, warmup=1, active=num_steps, repeat=1)
    with profile(activities=activities, schedule=steps, on_trace_ready=write) as tracing:
        yield tracing
    if tracing.step_num <= first_step:
        log.warning(
            "pretrain.profile_steps: nothing is traced of %s, since training ended within the %s before them; "
            "train more steps, or set it to 0",
            counted(num_steps, "step"), first_step,
        )  # fmt: skip
