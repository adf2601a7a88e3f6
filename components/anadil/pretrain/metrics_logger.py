"""Lines of metrics: `training.jsonl`, the log, the tracker and Prometheus; and the progress bar."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.core.files import write_atomic
from anadil.core.json_text import json_lines
from anadil.core.processes import resident_bytes
from anadil.core.progress import Progress, progress
from anadil.pretrain.callback import Callback
from anadil.pretrain.state import SourceState, State, Step
from anadil.runtime.metric_table import complete, values_for

log = logging.getLogger(__name__)

FILE = "training.jsonl"
FORMATS = {"step": "d", "phase": "d", "loss": ".4f", "lr": ".3g", "grad_norm": ".3f", "tokens_per_s": ".0f"}
"""First in a line of the log: patterns of HyperPod, of SageMaker and of the launcher look for them."""


class MetricsWriter:
    """`training.jsonl` in the work directory: each logged step once, also after a resume."""

    def __init__(self, folder: Path, num_done: int, saved: str = "") -> None:
        """Resume after optimizer step `num_done`, without later lines; `saved` is `text` of the checkpoint."""
        self._path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        text = self.text if self._path.is_file() else ""
        # The process may have been killed while it wrote the last line.
        by_step = {
            line["step"]: line for each in (saved, text) for line in json_lines(each, may_be_torn=True)
        }
        self.lines = [by_step[step] for step in sorted(by_step) if step <= num_done]
        write_atomic(self._path, "".join(f"{json.dumps(line)}\n" for line in self.lines))

    @property
    def text(self) -> str:
        """All lines, as they are in the file."""
        return self._path.read_text(encoding="utf-8")

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class MetricsLogger(Callback):
    """Writes the metrics of logged steps to all sinks, on the first process."""

    def __init__(self) -> None:
        self._writer: MetricsWriter | None = None
        self._clock, self._tokens = 0.0, 0

    def pre_train(self) -> None:
        """Resume the file, and write the base's metrics."""
        run = self.training
        # A run that begins again scores its base again, which may be another one.
        self._begin(run.state.step or -1, run.state.journal)
        if run.figures and not run.state.step:
            self._write({"step": 0, "tokens": 0, "seconds": round(run.seconds, 3)})

    def post_rollback(self) -> None:
        """Drop the lines of later steps."""
        self._begin(self.training.state.step)

    def post_step(self, step: Step) -> None:
        """Write a line where one is due. Every process comes here, because they compare themselves."""
        run = self.training
        if not run.is_log_due:
            return
        state, peak = run.state, run.trainer.peak_memory()
        now, before = time.monotonic(), self._clock
        tokens, self._clock, self._tokens = state.tokens - self._tokens, now, state.tokens
        trains = run.job.recipe.pretrain.phases[step.phase].trains
        line = {
            "step": state.step, "phase": step.phase + 1, "loss": step.loss, "lr": step.lr,
            "grad_norm": step.grad_norm, "tokens": state.tokens, "seconds": round(state.seconds, 3),
            **_by_source(state), **run.metrics.figures(tokens, now - before, trains),
            **({"rows_unseen": run.trainer.rows_unseen} if trains == "new_rows" else {}),
            **({} if peak is None else {"peak_memory_bytes": peak}),
            "resident_memory_bytes": resident_bytes(),
        }  # fmt: skip
        run.metrics.show_own(peak)
        self._write(line)
        if run.is_phase_end and trains == "new_rows":
            log.info(
                "phase %s: %s of %s rows of new tokens stood in no batch, and learnt only as wrong answers",
                step.phase + 1, f"{run.trainer.rows_unseen:,}", f"{len(run.trainer.new_rows):,}",
            )  # fmt: skip
        sources = {name: SourceState(tokens=each.tokens) for name, each in state.sources.items()}
        run.state = replace(state, sources=sources)

    def pre_save(self, state: State) -> State:
        """Add the lines, for a start on a node that has none."""
        return replace(state, journal="" if self._writer is None else self._writer.text)

    def _begin(self, num_done: int, saved: str = "") -> None:
        run = self.training
        if run.group.is_first:
            self._writer = MetricsWriter(run.job.work, num_done, saved)
            run.lines = self._writer.lines
        self._clock, self._tokens = time.monotonic(), run.state.tokens

    def _write(self, values: Mapping[str, float]) -> None:
        run = self.training
        line = complete({**values, **run.figures})
        run.figures.clear()
        if self._writer is None:
            return
        step = int(line["step"])
        self._writer.add(values_for("jsonl", line))
        if step:
            _log(values_for("log", line))
        # Prometheus gets its part through the tracker.
        run.job.tracker.metrics({**values_for("tracker", line), **run.metrics.time_shares()}, step)


class ProgressBar(Callback):
    """Shows how far the run is."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._bar: Progress | None = None
        self._clock, self._tokens = 0.0, 0

    def pre_train(self) -> None:
        """Start the bar at the steps that are done."""
        run = self.training
        self._bar = self._held.enter_context(progress("pre-training", run.job.recipe.pretrain.steps))
        self._clock, self._tokens = time.monotonic(), run.state.tokens
        self.post_rollback()

    def post_rollback(self) -> None:
        """Set the bar back."""
        assert self._bar is not None
        self._bar.begin(self.training.state.step)

    def post_step(self, step: Step) -> None:
        """Advance the bar."""
        assert self._bar is not None
        tokens = max(0, self.training.state.tokens - self._tokens)
        rate = tokens / max(1e-9, time.monotonic() - self._clock)
        self._bar.advance(note=f"{rate:,.0f} tokens/s, loss {step.loss:.3f}")

    def close(self) -> None:
        """End the bar."""
        self._held.close()


def _by_source(state: State) -> dict[str, float]:
    """Loss of each source since the line before, if it had tokens, and its tokens so far."""
    losses = {name: each.since_line for name, each in state.sources.items() if each.since_line.tokens}
    return {
        **{f"loss/{name}": each.nats / each.tokens for name, each in losses.items()},
        **{f"tokens/{name}": each.tokens for name, each in state.sources.items()},
    }


def _log(line: Mapping[str, float]) -> None:
    # On a terminal the progress bar tells the same.
    level = logging.DEBUG if sys.stderr.isatty() else logging.INFO
    first = [f"{name}={line[name]:{spec}}" for name, spec in FORMATS.items()]
    rest = [
        f"{name}={value if isinstance(value, int) else format(value, '.4g')}"
        for name, value in line.items()
        if name not in FORMATS
    ]
    log.log(level, "%s", " ".join([*first, *rest]))


class BudgetGuard(Callback):
    """Ends a run, saved, when `pretrain.faults.budget_hours` or `budget_usd` is used up."""

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Compare the first process's clock with the budget at each logged step."""
        run = self.training
        if run.is_log_due:
            # One clock decides for all: they would not agree on the step.
            spent = run.metrics.budget.reached(run.metrics.goodput.running_s)
            run.spent = run.group.gather(spent or "")[0]
