"""The callbacks of every run."""

from anadil.encode.stored_tokens import StoredTokens
from anadil.pretrain.callback import Callback
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.first_position import FirstPositionProbe
from anadil.pretrain.metrics.logger import MetricsLogger, ProgressBar
from anadil.pretrain.metrics.profiler import Profiler
from anadil.pretrain.resilience.budget import BudgetGuard
from anadil.pretrain.resilience.loss_spikes import SpikeDetector
from anadil.pretrain.resilience.replica_check import ReplicaCheck
from anadil.pretrain.trainer import Trainer
from anadil.pretrain.validation import Validator, validation_of
from anadil.runtime.job import Job


def callbacks_of(
    job: Job, trainer: Trainer, tokens: StoredTokens, storage: CheckpointStorage
) -> list[Callback]:
    """List them in the order in which their hooks are called.

    Raises:
        IntegrityError: The held-out part is damaged.
    """
    settings = job.recipe.pretrain
    validation = validation_of(tokens, settings, rows=trainer.micro_batch_size)
    return [
        FirstPositionProbe(),
        SpikeDetector(settings.faults, storage.restore_snapshot),
        *([] if validation is None else [Validator(validation)]),
        # After the callbacks that record metrics of a step.
        MetricsLogger(),
        BudgetGuard(),
        ReplicaCheck(storage.invalidate_after),
        # After the callbacks that end a run, and the one that forbids to resume from a step.
        storage,
        Profiler(),
        ProgressBar(),
    ]
