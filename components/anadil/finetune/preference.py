"""Preference step: DPO by TRL's trainer teaches the finetuned model by pairs which answers are better.

It continues the first step: the same adapter, or all weights. So the artifact has the same form, one adapter on the
base. Checkpoints and reference lie in a directory of their own, and only the run that made them uses them again.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig

from anadil.artifacts import artifact
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import PreflightError
from anadil.finetune import training
from anadil.finetune.learning import adapter_config, load_for_training, take_adapter
from anadil.finetune.pair_trainer import HELDOUT, LOGGED, LogProbabilities, Pairs, PairTrainer
from anadil.model.process_group import Group
from anadil.recipe.finetune import Preference
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Figures, Job

log = logging.getLogger(__name__)

PREFERENCE_CURVE = "preference.jsonl"
PREFERENCE_KEYS = "recipe finetune.preference"
"""Prefix of its keys in an origin."""
FOLDER = "preference"
"""Its part of the work directory."""
REFERENCE_FOLDER = "reference"
"""Directory below `FOLDER`."""
REFERENCE_KIND = "reference log-probabilities"
MEANS = ("loss", "reward_margin", "reward_accuracy", "reward_chosen", "reward_rejected")


def refuse_uneven(settings: Preference, processes: int) -> None:
    """Refuse a number of processes that does not divide the batch."""
    if settings.batch_size % processes:
        raise PreflightError(
            f"finetune.preference.batch_size: {settings.batch_size} pairs are not as many for each of {processes} "
            f"processes; set it to {processes * -(-settings.batch_size // processes)}"
        )


def prefer(
    job: Job,
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerFast,
    finetuned: Path,
    origin: Mapping[str, str],
    processes: Group,
    device: torch.device,
) -> tuple[Path, Figures]:
    """Train the result of the first step on; return the newest checkpoint and the part of `training.json`."""
    settings = _settings(job)
    work = replace(job, work=job.work / FOLDER)
    before = artifact.read_manifest(str(finetuned))
    assert before is not None  # sealed, or `newest_checkpoint` would not give it
    keys = recipe_origin(job.recipe, ("finetune.preference",))
    made_from = {**origin, "pairs": pairs.digest, "finetuned": before.digest} | {
        key: value for key, value in keys.items() if key != f"{PREFERENCE_KEYS}.inputs"
    }
    steps = training.num_steps(len(pairs.train), settings)
    done, folder = processes.run_on_first(lambda: _newest(work, made_from)) or (0, None)
    if done < steps:
        log.info("%d pairs, %d steps of preference, %d done", len(pairs.train), steps, done)
        trainer = _trainer(work, pairs, tokenizer, finetuned, made_from, steps, processes, device)
        callback = PreferenceCallback(work, made_from, processes)
        _, folder = training.train(work, trainer, callback, done, folder, "preference")
    assert folder is not None  # there is at least one step
    if not processes.is_first:
        return folder, {}
    curve = training.write_curve(job.out / PREFERENCE_CURVE, folder, LOGGED)
    return folder, _figures(curve, pairs, settings, job.recipe.finetune.preference_lr)


def _newest(job: Job, origin: Mapping[str, str]) -> tuple[int, Path] | None:
    """Return step and directory of the newest whole checkpoint; none without its reference."""
    # The model that it was computed from is gone then, and another would be taken for it.
    if training.fault_of(job.work / REFERENCE_FOLDER, origin) is not None:
        shutil.rmtree(job.work / "trainer", ignore_errors=True)
        return None
    return training.newest_checkpoint(job, origin)


def _settings(job: Job) -> Preference:
    settings = job.recipe.finetune.preference
    assert settings is not None  # or nobody calls
    return settings


def _trainer(
    job: Job,
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerFast,
    finetuned: Path,
    origin: Mapping[str, str],
    steps: int,
    processes: Group,
    device: torch.device,
) -> PairTrainer:
    settings, learning = _settings(job), job.recipe.finetune
    training.set_up_model(job, tokenizer, processes)
    trains_all = learning.trains == "all"
    model = load_for_training(job, device, finetuned if trains_all else None)
    trainer = PairTrainer(
        batch_size=settings.batch_size,
        reference_of=lambda compute: _reference(job, compute, origin, processes),
        rows=pairs.rows,
        model=model,
        args=DPOConfig(
            **training.shared_configuration(job, settings, steps, processes, measures=len(pairs.heldout) > 0),
            learning_rate=learning.preference_lr,
            beta=settings.beta,
            loss_type=[settings.loss],
            # Without it TRL loads a second model; `PairTrainer` computes the reference itself.
            precompute_ref_log_probs=trains_all and processes.size == 1,
            remove_unused_columns=False,
        ),
        train_dataset=pairs.train,
        eval_dataset=pairs.heldout if len(pairs.heldout) else None,
        processing_class=tokenizer,
        peft_config=adapter_config(learning, job.recipe.trained_embeddings, model, tokenizer),
    )
    training.prepare(trainer)
    if not trains_all:
        take_adapter(trainer.model, finetuned)
    return trainer


def _reference(
    job: Job, compute: Callable[[], LogProbabilities], origin: Mapping[str, str], processes: Group
) -> LogProbabilities:
    """Load the reference of an earlier start of this run, or compute and keep it."""
    folder = job.work / REFERENCE_FOLDER
    file = folder / "log_probabilities.npy"

    def read() -> LogProbabilities | None:
        return np.load(file, allow_pickle=False) if training.fault_of(folder, origin) is None else None

    def write(computed: LogProbabilities) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        np.save(file, computed)
        artifact.seal(folder, kind=REFERENCE_KIND, origin=origin)

    reference = processes.run_on_first(read)
    if reference is None:
        reference = compute()
        processes.run_on_first(lambda: write(reference))
    return reference


class PreferenceCallback(training.TrainingCallback):
    """The callback for pairs, with their figures."""

    losses = ("loss",)
    rate_key = "finetune.preference.lr"

    def figures(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return the figures of a step by its log."""
        return {f"preference_{name}": value for name, value in training.figures_of(logs, LOGGED).items()}

    def tell(self, figures: Mapping[str, float], step: int) -> None:
        """Show how a step went."""
        if "preference_loss" in figures:
            loss, margin = (figures[f"preference_{name}"] for name in ("loss", "reward_margin"))
            self.bar.advance(note=f"loss {loss:.3f}, margin {margin:.3f}")
        measured = [figures[f"preference_{name}"] for name in HELDOUT if f"preference_{name}" in figures]
        if measured:
            log.info(
                "step %d: held-out pairs: margin %.3f, %.0f %% won", step, measured[0], 100 * measured[1]
            )


def _figures(curve: list[dict[str, float]], pairs: Pairs, settings: Preference, lr: float) -> Figures:
    """Return the figures of the result; means over the last steps."""
    last = curve[-training.LAST_STEPS :]
    figures: Figures = {
        "pairs": len(pairs.train),
        "heldout_pairs": len(pairs.heldout),
        "steps": int(curve[-1]["step"]),
        "beta": settings.beta,
        "lr": lr,
        "first_loss": curve[0]["loss"],
        **{name: sum(line[name] for line in last) / len(last) for name in MEANS},
    }
    return figures | {name: curve[-1][name] for name in HELDOUT if name in curve[-1]}
