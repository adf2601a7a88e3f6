"""Continued pre-training in phases, resumable at every step: corpus, tokenizer -> model.

python -m anadil.pretrain --recipe smoke --corpus DIR --tokenizer DIR --out DIR
torchrun --nproc-per-node 8 -m anadil.pretrain ...the same
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch

from anadil.model.process_group import Group
from anadil.pretrain import loop
from anadil.pretrain.callback import Callback, Training
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.expert_load import ExpertLoad
from anadil.pretrain.metrics.metrics import metrics_of
from anadil.pretrain.metrics_logger import BudgetGuard, MetricsLogger, ProgressBar
from anadil.pretrain.prepare import in_training_group, inputs_of, prepare, training_origin
from anadil.pretrain.profiler import Profiler
from anadil.pretrain.resilience.burn_in import ReplicaCheck
from anadil.pretrain.resilience.loss_spikes import SpikeDetector
from anadil.pretrain.resilience.out_of_memory import no_room
from anadil.pretrain.resilience.watchdog import watchdog_of
from anadil.pretrain.schedule_keeper import MixtureKeeper
from anadil.pretrain.state import State
from anadil.pretrain.teacher_weight import TeacherWeight
from anadil.pretrain.trainer import Trainer
from anadil.pretrain.validation import FirstPositionProbe, text_samples_of, validator_of
from anadil.pretrain.write_artifact import write_artifact
from anadil.runtime.job import Figures, Job
from anadil.tokens.stored_tokens import StoredTokens


def run(job: Job, callbacks: Sequence[Callback] = ()) -> Figures:
    """Train the base model on the corpus, in the vocabulary of the tokenizer or trial; `callbacks` come last."""
    with in_training_group(job) as (processes, device):
        training = train(inputs_of(job, processes), processes, device, callbacks)
        figures = write_artifact(training) if processes.is_first else {}
        processes.wait()
    return figures


def train(job: Job, processes: Group, device: torch.device, callbacks: Sequence[Callback] = ()) -> Training:
    """Do all steps of the recipe, from the last checkpoint in `job.work` on; every process calls it. Raises as `run`."""
    metrics = metrics_of(job, processes, device)
    watchdog = watchdog_of(job, processes, on_hang=metrics.goodput.hung)
    with ExitStack() as stack:
        # The watchdog ends before `stack` closes: copies that are being finished are no hang.
        with watchdog.running():
            trainer, tokens, job, start = prepare(job, processes, device, metrics, watchdog.heartbeat)
            stack.callback(metrics.close)
            storage = CheckpointStorage(
                job.recipe, job.work, trainer, processes, training_origin(job, trainer),
                start=start, heartbeat=lambda: watchdog.heartbeat("start"),
            )  # fmt: skip
            stack.callback(storage.close)
            with (
                metrics.section("restore"),
                no_room(job.recipe, "resuming from a checkpoint", rank=processes.rank),
            ):
                state = storage.resume() or State(step=0, tokens=0, seconds=0.0)
            training = Training(
                job=job, trainer=trainer, group=processes, metrics=metrics, state=state,
                callbacks=[watchdog, *callbacks_of(job, trainer, tokens, storage), *callbacks],
            )  # fmt: skip
            for each in training.callbacks:
                if each is not storage:
                    stack.callback(each.close)
            loop.train(training)
        storage.finish()
    return training


def callbacks_of(
    job: Job, trainer: Trainer, tokens: Mapping[str, StoredTokens], storage: CheckpointStorage
) -> list[Callback]:
    """List them in the order in which their hooks are called."""
    validator = validator_of(job, tokens, rows=trainer.micro_batch_size)
    texts = text_samples_of(trainer.net, tokens, job.recipe)
    return [
        FirstPositionProbe(),
        SpikeDetector(job.recipe.pretrain.faults, storage.restore_snapshot),
        # After the callback that skips batches, whose numbers the order of the sources follows.
        *([MixtureKeeper()] if trainer.data.names else []),
        *([] if validator is None else [validator]),
        *([] if validator is None or texts is None else [texts]),
        # After the scores that change the weight.
        *(
            [
                TeacherWeight(
                    job.recipe, trainer.data.teachers, {} if validator is None else validator.num_bytes
                )
            ]
            if trainer.data.teachers
            else []
        ),
        ExpertLoad(),
        # After the callbacks that record metrics of a step.
        MetricsLogger(),
        BudgetGuard(),
        ReplicaCheck(storage.invalidate_after),
        # After the callbacks that end a run, and the one that forbids to resume from a step.
        storage,
        Profiler(),
        ProgressBar(),
    ]
