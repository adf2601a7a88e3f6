"""The loop over optimizer steps: resume from a checkpoint, log, save, stop."""

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from anadil.artifacts import artifact
from anadil.core.errors import BudgetReached, IntegrityError
from anadil.core.progress import progress
from anadil.core.stages import STAGES
from anadil.model.process_group import Group
from anadil.pretrain.checkpoint.state import State
from anadil.pretrain.checkpoint.tiers import Tiers
from anadil.pretrain.data.packing import Batch
from anadil.pretrain.data.prefetch import Prefetcher
from anadil.pretrain.data.tokens import digest_of
from anadil.pretrain.lr_schedule import ends_phase, phase_of
from anadil.pretrain.metrics.metrics import Metrics
from anadil.pretrain.metrics.profiler import profiled
from anadil.pretrain.metrics.training_log import Journal
from anadil.pretrain.resilience.loss_spikes import (
    Anomalies,
    StepAction,
    StepVerdict,
    decoder,
    refuse,
    write_documents_of_step,
)
from anadil.pretrain.resilience.out_of_memory import no_room, out_of_memory
from anadil.pretrain.resilience.replica_check import check_replicas, peers_of
from anadil.pretrain.resilience.watchdog import Section, Watchdog
from anadil.pretrain.trainer import Batches, Step, Trainer
from anadil.pretrain.validation import Validation
from anadil.runtime.cache_key import base_files, recipe_origin, result_version
from anadil.runtime.job import Job
from anadil.runtime.signals import Stop

log = logging.getLogger(__name__)

SCORE = "validation_bits_per_byte"
"""What the journal calls bits per byte of the held-out part."""
PROFILE = "profile"
"""Directory of the trace that `pretrain.profile_steps` asks for."""
TRACED_AFTER = 10
"""Steps before a trace, in which kernels are chosen and memory is taken; fewer where fewer are left."""


@dataclass(slots=True, kw_only=True)
class Training:
    """The loop over steps: resume, log, save, stop."""

    job: Job
    trainer: Trainer
    group: Group
    metrics: Metrics
    watchdog: Watchdog
    validation: Validation | None
    tiers: Tiers
    journal: Journal | None = None
    """On the first process, from `resumed` on."""
    on_section: Callable[[Section, int], None] | None = None
    """Called where a section begins, with the same as `Watchdog.beat`; for fault drills and tests."""
    anomalies: Anomalies = field(init=False)
    _logged: tuple[float, int] = (0.0, 0)
    """Clock and tokens of the line before."""
    _step_number: int = 0

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """This process has done its part of a step and waits for the others."""
        self._beat("reduce", self._step_number)
        with self.metrics.waiting():
            yield

    def resumed(self) -> State:
        """Where an earlier start of this run was saved; the beginning if it was not."""
        self.anomalies = Anomalies(self.job.recipe.pretrain.faults)
        self.trainer.batch_of = self.anomalies.batch_of
        self.trainer.waiting = self._waiting
        with self.metrics.section("restore"):
            state = self.tiers.resume() or State(step=0, tokens=0, seconds=0.0)
        if state.anomalies:
            self.anomalies.restore(state.anomalies)
        if state.step:
            log.info("resuming after step %s", f"{state.step:,}")
        if self.group.is_first:
            # A run that begins again scores its base again, which may be another one.
            self.journal = Journal(self.job.work, state.step or -1, state.journal)
        self.metrics.resumed(state.step)
        return replace(state, journal="")

    def train(self, state: State) -> State:
        """Do the steps that are left.

        Raises:
            BudgetReached: The budget is used up; what was done is saved.
            RecipeError: The loss is no number any more, or jumped.
        """
        settings = self.job.recipe.pretrain
        with ExitStack() as held:
            stop = held.enter_context(self.job.stop.deferred())
            shown = held.enter_context(progress("pre-training", settings.steps))
            ahead = held.enter_context(
                Prefetcher(self.trainer.batches, state.step, settings.steps, device=self.trainer.device)
            )
            traced = settings.profile_steps if self.group.is_first else 0
            after = max(1, min(TRACED_AFTER, settings.steps - state.step - traced))
            trace = held.enter_context(profiled(self.job.work / PROFILE, after, traced, self.trainer.device))
            stop.unsaved = False
            clock = time.monotonic() - state.seconds
            if self.validation and not state.step:
                self._score_base(clock, stop)
            begun, before = self._logged = (time.monotonic(), state.tokens)
            while state.step < settings.steps:
                shown.begin(state.step)
                self._begin_phase(state)
                with self.metrics.section("data"):
                    self._beat("data", state.step)
                    batches = ahead.get(state.step)
                done, verdict = self._step(state, batches, stop)
                if verdict.finding is not StepAction.FINE:
                    state = self._roll_back(verdict, done)
                    ahead.restart(state.step)
                    continue
                stop.unsaved = True
                state = State(
                    step=state.step + 1,
                    tokens=state.tokens + done.tokens,
                    seconds=time.monotonic() - clock,
                    anomalies=self.anomalies.state(),
                )
                self._after(state, done, stop)
                trace.step()
                rate = max(0, state.tokens - before) / max(1e-9, time.monotonic() - begun)
                shown.advance(note=f"{rate:,.0f} tokens/s, loss {done.loss:.3f}")
            self._beat("start", state.step)  # a slow disk is no hang
            self.tiers.durable.wait()
        return state

    def _score_base(self, clock: float, stop: Stop) -> None:
        """Validate before the first step, so that the curve begins with the base in the run's vocabulary."""
        with self.metrics.section("validation"), self._out_of_memory(0):
            score = self._validate(0, stop)
        assert score is not None
        if self.journal is None:
            return
        line = {"tokens": 0, "seconds": round(time.monotonic() - clock, 3), SCORE: score}
        log.info("before the first step: %.4f bits per byte of the held-out part", score)
        self.journal.add({"step": 0, **line})
        self.metrics.events.add(line, 0)
        self.job.tracker.metrics({**line, **self.metrics.time_shares()}, 0)

    def _begin_phase(self, state: State) -> None:
        settings = self.job.recipe.pretrain
        number, within = phase_of(state.step, settings.phases)
        if within:
            return
        phase = settings.phases[number]
        self._beat("start", state.step)
        self.trainer.begin_phase(phase)
        log.info(
            "phase %s trains %s: %s parameters, %s steps, learning rate %g",
            number + 1, phase.trains, f"{self.trainer.num_trainable(phase):,}", f"{phase.steps:,}", phase.lr,
        )  # fmt: skip
        if settings.faults.on_anomaly == "skip":
            with self._no_room("allocating the optimizer"):
                self.trainer.allocate(state.step)
                self.tiers.remember(state, at_once=True)

    def _step(self, state: State, batches: Batches, stop: Stop) -> tuple[Step, StepVerdict]:
        """Gradients, their judgement, and the change of the weights if they may be used."""
        number = state.step + 1
        self._step_number = state.step
        trainer, settings = self.trainer, self.job.recipe.pretrain
        with self.metrics.section("step"), self._out_of_memory(number):
            self._beat("forward", state.step)
            done = trainer.gradients(state.step, batches, stop.signal or 0)
            verdict = self.anomalies.judge(number, done.loss, done.grad_norm, done.phase)
            self._beat("optimizer", state.step)
            if verdict.finding is StepAction.FINE:
                trainer.apply()
        if verdict.finding is StepAction.STOP:
            raise refuse(verdict, settings.phases[done.phase].lr, str(self._report(verdict)))
        if verdict.finding is StepAction.FINE:
            self.metrics.step_done(number)
        return done, verdict

    def _out_of_memory(self, number: int) -> AbstractContextManager[None]:
        size, rank = self.trainer.micro_batch_size, self.group.rank
        return out_of_memory(self.job.recipe, self.job.work, size, step=number, rank=rank)

    def _no_room(self, doing: str) -> AbstractContextManager[None]:
        return no_room(self.job.recipe, doing, rank=self.group.rank)

    def _roll_back(self, verdict: StepVerdict, done: Step) -> State:
        """Go back to the newest copy, and leave out the batches since."""
        report = self._report(verdict)
        state = self.tiers.go_back()
        self.anomalies.rolled_back(verdict, state.step)
        log.warning(
            "%s at step %s: back to step %s, without the batches since; their documents are in %s",
            verdict.reason, f"{verdict.step:,}", f"{state.step:,}", report,
        )  # fmt: skip
        if self.journal is not None:
            self.journal = Journal(self.job.work, state.step)
        self.metrics.resumed(state.step)
        self._logged = (time.monotonic(), state.tokens)
        assert done.phase == phase_of(state.step, self.job.recipe.pretrain.phases)[0]
        return replace(state, anomalies=self.anomalies.state())

    def _report(self, verdict: StepVerdict) -> str:
        """Where the documents of a step that cannot be used are listed."""
        if not self.group.is_first:
            return str(self.job.work)
        sequences = self.trainer.sequences(verdict.step - 1)
        decode = decoder(self.job.inputs["tokenizer"])
        return str(write_documents_of_step(self.job.work, verdict, self.trainer.packed, sequences, decode))

    def _after(self, state: State, done: Step, stop: Stop) -> None:
        """Validate, log, compare, save and end, each where it is due after a step."""
        settings = self.job.recipe.pretrain
        border = ends_phase(state.step, settings.phases)
        figures: dict[str, float] = {}
        if self.validation and (border or state.step % settings.validate_every == 0):
            with self.metrics.section("validation"), self._out_of_memory(state.step):
                self._beat("validate", state.step)
                score = self._validate(state.step, stop)
            if score is None:
                done = replace(done, signal=stop.signal or signal.SIGTERM)
                log.info("validation of step %s is left out, since the run stops", f"{state.step:,}")
            else:
                figures[SCORE] = score
        spent = None
        if state.step % settings.log_every == 0 or state.step == 1 or border or figures:
            self._log(state, done, figures)
            spent = self.metrics.budget_reached() if self.group.is_first else None
            spent = self.group.gather(spent or "")[0]
        every = settings.faults.replica_check_every
        if every and state.step % every == 0:
            self._check_replicas(state.step, since=state.step - every)
        ends = bool(done.signal or spent)
        if ends or self.tiers.due(state.step):
            with self.metrics.section("checkpoint"), self._no_room(f"saving step {state.step}"):
                self._beat("save", state.step)
                journal = "" if self.journal is None else self.journal.text
                self.tiers.save(replace(state, journal=journal), now=ends)
            stop.unsaved = False
        with self._no_room(f"keeping a copy of step {state.step}"):
            self.tiers.remember(state)
        if done.signal:
            stop.signal = done.signal
            stop.leave()
        if spent:
            raise BudgetReached(spent)

    def _check_replicas(self, step: int, *, since: int) -> None:
        tensors = self.trainer.tensors(moments=False)
        try:
            check_replicas(tensors, peers_of(self.trainer.net.mesh), self.group, step=step)
        except IntegrityError:
            # Every process raises it. A start from these would give all replicas the same wrong weights.
            self.tiers.distrust(since)
            raise

    def _validate(self, step: int, stop: Stop) -> float | None:
        """Bits per byte; None where a signal has come to some process and there are steps to save and to do."""
        assert self.validation is not None
        net = self.trainer.net

        def ends() -> bool:
            return any(self.group.gather("stop" if stop.signal else ""))

        def nats(batch: Batch) -> torch.Tensor:
            self._beat("validate", step)
            return net.nats(batch)

        return self.validation.bits_per_byte(
            nats,
            data=net.mesh.data,
            data_rank=net.mesh.data_rank,
            add_up=net.add_up,
            ends=ends if 0 < step < self.job.recipe.pretrain.steps else None,
        )

    def _log(self, state: State, done: Step, figures: dict[str, float]) -> None:
        """Every process calls it at the same step, because they compare themselves."""
        phase = self.job.recipe.pretrain.phases[done.phase]
        now, (then, tokens) = time.monotonic(), self._logged
        self._logged = (now, state.tokens)
        line = {
            "step": state.step,
            "phase": done.phase + 1,
            "loss": done.loss,
            "lr": done.lr,
            "grad_norm": done.grad_norm,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 3),
            **self.metrics.figures(state.tokens - tokens, now - then, phase.trains),
            **figures,
        }
        peak = self.trainer.peak_memory()
        self.metrics.show_own(peak)
        if peak is not None:
            line["peak_memory_bytes"] = peak
        if self.journal is None:
            return
        self.journal.add(line)
        # In a container, for whoever reads the log: HyperPod's and SageMaker's patterns, the launcher.
        first = ("step", "phase", "loss", "lr", "grad_norm", "tokens_per_s")
        log.log(
            logging.DEBUG if sys.stderr.isatty() else logging.INFO,
            "step=%d phase=%d loss=%.4f lr=%.3g grad_norm=%.3f tokens_per_s=%.0f%s",
            *(line[name] for name in first),
            "".join(
                f" {name}={value if isinstance(value, int) else format(value, '.4g')}"
                for name, value in line.items()
                if name not in first
            ),
        )
        shown = {key: value for key, value in line.items() if key != "step"}
        self.metrics.events.add(shown, state.step)
        self.job.tracker.metrics({**shown, **self.metrics.time_shares()}, state.step)

    def _beat(self, section: Section, step: int) -> None:
        self.watchdog.beat(section, step)
        if self.on_section is not None:
            self.on_section(section, step)


def training_origin(job: Job, trainer: Trainer) -> dict[str, str]:
    """What decides the losses after a resume."""
    shapes = {name: str(list(shape)) for name, shape in sorted(trainer.net.shapes.items())}
    return {
        **result_version(STAGES["pretrain"]),
        **recipe_origin(job.recipe, STAGES["pretrain"].sections),
        "input tokens": trainer.packed.stream.digest,
        "input tokenizer": digest_of(job.inputs["tokenizer"]),
        **base_files(job.recipe.base.model),
        "model shapes": artifact.origin_key(shapes),
    }
