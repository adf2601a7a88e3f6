"""Loss spikes: the judgement of each step before the optimizer uses it.

Loss and norm are sums over all processes, so each process judges alone and all agree.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from anadil.artifacts.base_model import read_tokenizer
from anadil.core.errors import RecipeError
from anadil.core.json_text import write_indented
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.order import TrainingData
from anadil.pretrain.state import State, Step
from anadil.recipe.pretrain import Faults
from anadil.tokens.packing import Packed, Sequences

log = logging.getLogger(__name__)

WINDOW = 100
"""Losses whose median a step is compared with."""
WARM_UP = 20
"""Steps of a phase that are not compared, because a new phase may change the usual loss. The standard
error of the median of 20 is 1.25 / sqrt(20) = 28 % of one standard deviation of the noise. The largest
ratio in the recipe `smoke`, logged at each step, is 1.11 (batches of 1,024 tokens), far from 2."""
MOST_CHARS = 200
"""Characters shown of each document."""
MOST_TOKENS = 256
"""Tokens decoded for them: no tokenizer in use has tokens of less than one character on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """Judgement on one step."""

    finding: Literal["fine", "skip", "stop"]
    """`skip` goes back to the last copy and skips the batches since."""
    step: int
    """Optimizer step, from 1."""
    loss: float
    norm: float
    reason: str = ""


class SpikeDetector(Callback):
    """Judges every step, and skips batches; its `state` belongs into each checkpoint.

    Batches have numbers of their own: while none is skipped, optimizer step s (from 0) trains on
    batch s; each skipped batch moves all later steps on by one.
    """

    def __init__(self, settings: Faults, restore_snapshot: Callable[[], State] | None = None) -> None:
        """Start without anomalies; `on_anomaly: skip` needs `restore_snapshot`."""
        self._settings = settings
        self._restore_snapshot = restore_snapshot
        self._verdict: StepVerdict | None = None
        self._phase = -1
        self._losses: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._skipped: list[tuple[int, int]] = []
        self.num_skips = 0
        """Roll-backs so far."""

    def pre_train(self) -> None:
        """Resume with the judgements of the checkpoint, before the first batch is made."""
        run = self.training
        if run.state.anomalies:
            self.restore(run.state.anomalies)
        run.trainer.batch_of = self.batch_of

    def pre_optim_step(self, step: Step) -> bool:
        """Accept the step, object to it, or end the run."""
        run = self.training
        self._verdict = self.judge(run.state.step + 1, step.loss, step.grad_norm, step.phase)
        if self._verdict.finding == "stop":
            lr = run.job.recipe.pretrain.phases[step.phase].lr
            raise refuse(self._verdict, lr, self._report(self._verdict))
        return self._verdict.finding == "fine"

    def rollback(self, step: Step) -> State:  # noqa: ARG002  a hook
        """Go back to the newest copy in memory, and skip the batches since; raises as `skip_since`."""
        assert self._verdict is not None
        assert self._restore_snapshot is not None
        verdict, report = self._verdict, self._report(self._verdict)
        state = self._restore_snapshot()
        self.skip_since(verdict, state.step)
        log.warning(
            "%s at step %s: back to step %s, without the batches since; their documents are in %s",
            verdict.reason, f"{verdict.step:,}", f"{state.step:,}", report,
        )  # fmt: skip
        return state

    def pre_save(self, state: State) -> State:
        """Add losses to compare with, and skipped batches."""
        return replace(state, anomalies=self.state())

    def _report(self, verdict: StepVerdict) -> str:
        """List the documents of a rejected step; return the path of the list."""
        run = self.training
        if not run.group.is_first:
            return str(run.job.work)
        sequences, tokenizer = run.trainer.sequences(verdict.step - 1), run.job.inputs["tokenizer"]
        return str(write_documents_of_step(run.job.work, verdict, run.trainer.data, sequences, tokenizer))

    def judge(self, step: int, loss: float, norm: float, phase: int = 0) -> StepVerdict:
        """Check a step (from 1) by its mean loss and norm over all processes, before the optimizer uses its gradient."""
        if phase != self._phase:
            # A new phase may change the usual loss.
            self._phase = phase
            self._losses.clear()
        reason = self._reason(loss, norm)
        if reason:
            finding = self._settings.on_anomaly
            return StepVerdict(finding=finding, step=step, loss=loss, norm=norm, reason=reason)
        # A spike does not become part of the usual losses.
        self._losses.append((step, loss))
        return StepVerdict(finding="fine", step=step, loss=loss, norm=norm)

    def skip_since(self, verdict: StepVerdict, step: int) -> None:
        """Skip the batches that were used since a copy after `step` steps, the judged one included.

        Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, section 5.1: restart before the
        spike and skip the batches around it.
        """
        if self.num_skips >= self._settings.most_skips:
            raise RecipeError(
                f"pretrain: {verdict.reason} at step {verdict.step}, after {self.num_skips} roll-backs "
                "(pretrain.faults.most_skips): it is not single batches; lower the learning rate of the phase "
                f"(pretrain.phases[{self._phase}].lr) or clean the data that work/anomaly-step-*.json names"
            )
        first, last = self.batch_of(step), self.batch_of(verdict.step - 1)
        # Both ends are batches in use, so what was skipped before lies inside or outside.
        outside = [one for one in self._skipped if not first < one[0] < last]
        self._skipped = sorted([*outside, (first, last)])
        self.num_skips += 1
        while self._losses and self._losses[-1][0] > step:
            # Steps that are done again would be compared with themselves.
            self._losses.pop()

    def batch_of(self, step: int) -> int:
        """Number of the batch that optimizer step `step` (both from 0) trains on."""
        batch = step
        for first, last in self._skipped:
            if batch < first:
                break
            batch += last - first + 1
        return batch

    def state(self) -> dict[str, Any]:
        """State for JSON from which a resume makes the same judgements."""
        return {
            "phase": self._phase,
            "losses": [list(one) for one in self._losses],
            "left_out": [list(one) for one in self._skipped],
            "skips": self.num_skips,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a `state`."""
        self._phase = int(state["phase"])
        self._losses.clear()
        self._losses.extend((int(step), float(loss)) for step, loss in state["losses"])
        self._skipped = [(int(first), int(last)) for first, last in state["left_out"]]
        self.num_skips = int(state["skips"])

    def _reason(self, loss: float, norm: float) -> str:
        if not math.isfinite(loss):
            return f"the loss is {loss:g}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm:g}"
        if len(self._losses) < WARM_UP:
            return ""
        usual = median(loss for _, loss in self._losses)
        if loss <= self._settings.spike_ratio * usual:
            return ""
        return f"the loss is {loss:.4g}, {loss / usual:.1f} times the median of the last {len(self._losses)}"


def refuse(verdict: StepVerdict, lr: float, report: str) -> RecipeError:
    """Make the error that ends a run at a rejected step, whose documents are listed in `report`."""
    return RecipeError(
        f"pretrain: {verdict.reason} at step {verdict.step} (gradient norm {verdict.norm:.4g}, learning rate "
        f"{lr:.3g}); its documents are listed in {report}: clean them, lower the learning rate, or set "
        "pretrain.faults.on_anomaly=skip to continue without them (the checkpoint before it is kept)"
    )


def write_documents_of_step(
    folder: Path, verdict: StepVerdict, data: TrainingData, sequences: Sequences, tokenizer: Path
) -> Path:
    """Write `anomaly-step-N.json`: each sequence of the step with its documents and their first characters."""
    path = folder / f"anomaly-step-{verdict.step}.json"
    decode = read_tokenizer(tokenizer).decode
    content = {
        "step": verdict.step,
        "loss": str(verdict.loss),  # JSON has no NaN
        "grad_norm": str(verdict.norm),
        "reason": verdict.reason,
        "finding": verdict.finding,
        "sequences": [
            {
                **({"source": source} if source else {}),
                "sequence": number,
                "documents": _documents(data.sources[source], number, decode),
            }
            for source, number in map(data.locate, sequences.tolist())
        ],
    }
    write_indented(path, content)
    return path


def _documents(packed: Packed, sequence: int, decode: Callable[..., str]) -> list[dict[str, Any]]:
    """List the pieces of a sequence: `document` counts the corpus' training documents from 0."""
    stream = packed.stream
    pieces: list[dict[str, Any]] = []
    for start, num, _ in packed.pieces_of(np.array([sequence]))[0]:
        document, begin = stream.document_at(int(start))
        ids = stream.ids[start : start + min(int(num) + 1, MOST_TOKENS)].tolist()
        pieces.append(
            {
                "document": document,
                "first_token": int(start) - begin,
                "tokens": int(num),
                "text": decode(ids, skip_special_tokens=False)[:MOST_CHARS],
            }
        )
    return pieces
