"""The loop over optimizer steps: go on from a checkpoint, log, save, stop."""

import json
import logging
import sys
import time
from dataclasses import dataclass

from anadil import artifact, exporter
from anadil.pretrain import checkpoint
from anadil.pretrain.checkpoint import State, Tensors
from anadil.pretrain.journal import Journal
from anadil.pretrain.parallel.group import Group
from anadil.pretrain.schedule import ends_phase, phase_of
from anadil.pretrain.trainer import Step, Trainer
from anadil.pretraining import NEUTRAL
from anadil.progress import progress
from anadil.stage import Job

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"


@dataclass(slots=True, kw_only=True)
class Training:
    """The loop over steps: resume, log, save, stop."""

    job: Job
    trainer: Trainer
    group: Group
    journal: Journal | None = None
    """On the first process, from `resumed` on."""

    def resumed(self) -> State:
        """Where an earlier start of this run was saved; the beginning if it was not."""
        folder = self.job.work / CHECKPOINTS
        found = checkpoint.newest(folder, self._origin()) if self.group.is_first else None
        state = found[1] if found else State(step=0, tokens=0, seconds=0.0)
        step = self.group.from_first(state.step)
        tokens = self.group.from_first(state.tokens)
        state = State(step=step, tokens=tokens, seconds=state.seconds)
        if self.group.is_first:
            self.journal = Journal(self.job.work, step)
        if step:
            log.info("resuming after step %s", f"{step:,}")
            phases = self.job.recipe.pretrain.phases
            parameters, moments = checkpoint.load(found[0]) if found else (Tensors(), Tensors())
            self.trainer.restore_model(parameters)
            if not ends_phase(step, phases):
                self.trainer.begin_phase(phases[phase_of(step, phases)[0]])
                self.trainer.restore_optimizer(moments)
        return state

    def train(self, state: State) -> State:
        """Do the steps that are left."""
        settings = self.job.recipe.pretrain
        with (
            self.job.stop.deferred() as stop,
            progress("pre-training", settings.steps) as shown,
        ):
            shown.done = state.step
            clock = Clock(state)
            while state.step < settings.steps:
                number, within = phase_of(state.step, settings.phases)
                if within == 0:
                    self._announce(number)
                    self.trainer.begin_phase(settings.phases[number])
                done = self.trainer.step(state.step, stop.signal or 0)
                state = State(step=state.step + 1, tokens=state.tokens + done.tokens, seconds=clock.seconds())
                self._log(state, done, clock)
                border = ends_phase(state.step, settings.phases)
                if border or done.signal or state.step % settings.checkpoint_every == 0:
                    self._save(state, border=border)
                if done.signal:
                    stop.signal = done.signal
                    stop.leave()
                shown.advance(note=f"loss {done.loss:.3f}")
        return state

    def _announce(self, number: int) -> None:
        phase = self.job.recipe.pretrain.phases[number]
        log.info(
            "phase %s trains %s: %s parameters, %s steps, learning rate %g",
            number + 1, phase.trains, f"{self.trainer.num_trainable(phase):,}", f"{phase.steps:,}", phase.lr,
        )  # fmt: skip

    def _log(self, state: State, done: Step, clock: "Clock") -> None:
        settings = self.job.recipe.pretrain
        due = state.step % settings.log_every == 0 or state.step == 1
        if self.journal is None or not (due or ends_phase(state.step, settings.phases)):
            return
        line = {
            "step": state.step,
            "phase": done.phase + 1,
            "loss": done.loss,
            "lr": done.lr,
            "grad_norm": done.grad_norm,
            "tokens": state.tokens,
            "tokens_per_s": round(clock.tokens_per_s(state), 1),
            "seconds": round(state.seconds, 3),
        }
        peak = self.trainer.peak_memory()
        if peak is not None:
            line["peak_memory_bytes"] = peak
        self.journal.add(line)
        # In a container, for whoever reads the log: HyperPod's and SageMaker's patterns, the launcher.
        log.log(
            logging.DEBUG if sys.stderr.isatty() else logging.INFO,
            "step=%d phase=%d loss=%.4f lr=%.3g grad_norm=%.3f tokens_per_s=%.0f",
            *(line[name] for name in ("step", "phase", "loss", "lr", "grad_norm", "tokens_per_s")),
        )
        self.job.tracker.metrics({key: value for key, value in line.items() if key != "step"}, state.step)

    def _save(self, state: State, *, border: bool) -> None:
        if self.group.is_first:
            checkpoint.save(
                self.job.work / CHECKPOINTS,
                state,
                self.trainer.model_tensors(),
                {} if border else self.trainer.optimizer_tensors(),
                origin=self._origin(),
                keep=self.job.recipe.pretrain.keep_checkpoints,
            )
            exporter.saved_checkpoint("pretrain", state.step)
        self.group.wait()

    def _origin(self) -> dict[str, str]:
        """What decides the losses after a resume."""
        recipe = self.job.recipe
        settings = recipe.pretrain.model_dump(mode="json", exclude=set(NEUTRAL))
        shapes = {name: list(tensor.shape) for name, tensor in self.trainer.parameters.items()}
        return {
            **{f"recipe pretrain.{key}": json.dumps(value) for key, value in settings.items()},
            "recipe seed": str(recipe.seed),
            "recipe base": recipe.base.model_dump_json(),
            "input tokens": self.trainer.packed.stream.digest,
            "model shapes": artifact.key_of({name: str(shape) for name, shape in shapes.items()}),
        }


class Clock:
    """Time in training, over all starts, and the rate since the last question."""

    def __init__(self, state: State) -> None:
        self._before = state.seconds
        self._started = time.monotonic()
        self._last = (self._started, state.tokens)

    def seconds(self) -> float:
        """Seconds in training so far."""
        return self._before + time.monotonic() - self._started

    def tokens_per_s(self, state: State) -> float:
        """Target tokens per second since this was last asked."""
        now, (then, tokens) = time.monotonic(), self._last
        self._last = (now, state.tokens)
        return (state.tokens - tokens) / max(now - then, 1e-9)
