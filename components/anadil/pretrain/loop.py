"""The training loop. Callbacks add everything else that happens around a step.

`callbacks.py` lists the callbacks. Every process has the same ones and calls each hook in that order.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from anadil.core.errors import BudgetReached
from anadil.pretrain.callback import Callback, Training
from anadil.pretrain.data.batch import Prefetcher
from anadil.pretrain.lr_schedule import ends_phase, phase_of
from anadil.pretrain.resilience.out_of_memory import out_of_memory
from anadil.pretrain.state import SourceState, State, Step
from anadil.pretrain.trainer import Batches

log = logging.getLogger(__name__)


def train(run: Training) -> None:
    """Do the remaining steps."""
    settings, stop, trainer = run.job.recipe.pretrain, run.job.stop, run.trainer
    trainer.collective_wait = partial(_collective_wait, run)
    if run.state.step and not run.is_branching:
        log.info("resuming after step %s", f"{run.state.step:,}")
    with stop.deferred():
        stop.unsaved = False
        run.clock = time.monotonic() - run.state.seconds
        run.metrics.resume_after(run.state.step)
        for each in run.callbacks:
            each.training = run
        for each in run.callbacks:
            each.pre_train()
        with Prefetcher(trainer.batches, run.state.step, settings.steps, device=trainer.device) as data:
            while run.state.step < settings.steps:
                _begin_phase(run)
                with run.metrics.section("data"):
                    run.enter("data")
                    batches = data.get(run.state.step)
                step, objector = _step(run, batches)
                if objector is not None:
                    run.state = objector.rollback(step)
                    run.metrics.resume_after(run.state.step)
                    for each in run.callbacks:
                        each.post_rollback()
                    # Batches made ahead are those of later steps, or of batches that are skipped now. A callback
                    # may have changed the order of the sources.
                    data.restart(run.state.step)
                    continue
                _count(run, step)
                for each in run.callbacks:
                    each.post_step(step)
                # Only here: the callback that saves has seen that the run ends.
                if run.signal:
                    stop.signal = run.signal
                    stop.leave()
                if run.spent:
                    raise BudgetReached(run.spent)
        for each in run.callbacks:
            each.post_train()


def _step(run: Training, batches: Batches) -> tuple[Step, Callback | None]:
    """Do one optimizer step, unless a callback objects to its gradients; then return that callback."""
    number, size = run.state.step + 1, run.trainer.micro_batch_size
    with (
        run.metrics.section("step"),
        out_of_memory(run.job.recipe, run.job.work, size, step=number, rank=run.group.rank),
    ):
        run.enter("forward")
        step = run.trainer.gradients(run.state.step, batches, run.job.stop.signal or 0)
        # Every process sees the same sums, so all of them object or none does.
        objector = next((each for each in run.callbacks if not each.pre_optim_step(step)), None)
        run.enter("optimizer")
        if objector is None:
            run.trainer.apply()
    return step, objector


def _count(run: Training, step: Step) -> None:
    settings, done = run.job.recipe.pretrain, run.state.step + 1
    # From here on a signal waits until the step is saved.
    run.job.stop.unsaved = True
    sources = {
        name: SourceState(tokens=before.tokens + loss.tokens, since_line=before.since_line + loss)
        for name, loss in step.sources.items()
        for before in [run.state.sources.get(name, SourceState())]
    }
    tokens = run.state.tokens + step.tokens
    run.state = State(step=done, tokens=tokens, seconds=run.seconds, sources=sources, branch=run.state.branch)
    run.metrics.step_done(done)
    run.signal = step.signal
    run.is_phase_end = ends_phase(done, settings.phases)
    run.is_log_due = run.gets_line(done)


def _begin_phase(run: Training) -> None:
    settings = run.job.recipe.pretrain
    number, within = phase_of(run.state.step, settings.phases)
    if within:
        return
    phase = settings.phases[number]
    run.enter("start")
    run.trainer.begin_phase(number)
    log.info(
        "phase %s trains %s: %s parameters, %s steps, learning rate %g",
        number + 1, phase.trains, f"{run.trainer.num_trainable(number):,}", f"{phase.steps:,}", phase.lr,
    )  # fmt: skip
    for each in run.callbacks:
        each.post_phase_start()


@contextmanager
def _collective_wait(run: Training) -> Iterator[None]:
    # This process has done its part of a step. What follows is no work of its own.
    run.enter("reduce")
    with run.metrics.stragglers.section(None):
        yield
