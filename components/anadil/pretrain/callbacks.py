"""The callbacks of every run."""

from collections.abc import Mapping

from anadil.encode.stored_tokens import StoredTokens
from anadil.pretrain.callback import Callback
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.first_position import FirstPositionProbe
from anadil.pretrain.metrics.logger import MetricsLogger, ProgressBar
from anadil.pretrain.metrics.profiler import Profiler
from anadil.pretrain.mixture_keeper import MixtureKeeper
from anadil.pretrain.resilience.budget import BudgetGuard
from anadil.pretrain.resilience.loss_spikes import SpikeDetector
from anadil.pretrain.resilience.replica_check import ReplicaCheck
from anadil.pretrain.trainer import Trainer
from anadil.pretrain.validation import text_samples_of, validator_of
from anadil.runtime.job import Job


def callbacks_of(
    job: Job, trainer: Trainer, tokens: Mapping[str, StoredTokens], storage: CheckpointStorage
) -> list[Callback]:
    """List them in the order in which their hooks are called."""
    validator = validator_of(tokens, job.recipe, rows=trainer.micro_batch_size)
    texts = text_samples_of(trainer.net, job.recipe)
    return [
        FirstPositionProbe(),
        SpikeDetector(job.recipe.pretrain.faults, storage.restore_snapshot),
        # After the callback that skips batches, whose numbers the order of the sources follows.
        *([MixtureKeeper()] if trainer.data.names else []),
        *([] if validator is None else [validator]),
        *([] if validator is None or texts is None else [texts]),
        # After the callbacks that record metrics of a step.
        MetricsLogger(),
        BudgetGuard(),
        ReplicaCheck(storage.invalidate_after),
        # After the callbacks that end a run, and the one that forbids to resume from a step.
        storage,
        Profiler(),
        ProgressBar(),
    ]
