"""The preference step: the finetuned model learns from pairs which answers are better (DPO), by TRL's trainer.

It starts from what learned before: the same adapter, or all weights. So the artifact is of the same form, and one
adapter on the base is the finetuned model. Checkpoints and the reference lie in a directory of their own beside those of
the first step, and are used again by the run that made them only.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, set_seed
from transformers.trainer_callback import PrinterCallback
from trl.trainer.dpo_config import DPOConfig

from anadil.artifacts import artifact
from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import PreflightError
from anadil.core.progress import progress
from anadil.finetune import lora
from anadil.finetune.learning import adapter_config, load_for_training, prepare_rows
from anadil.finetune.merge import ADAPTER
from anadil.finetune.pair_trainer import (
    HELDOUT,
    LogProbabilities,
    PairTrainer,
    preference_figures,
)
from anadil.finetune.pairs import Pairs
from anadil.finetune.trainer import load_in_first_process
from anadil.finetune.validation import read_history
from anadil.model.process_group import Group
from anadil.recipe.finetune import Preference
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.job import Figures, Job

log = logging.getLogger(__name__)

FILE = "preference.jsonl"
KEYS = "recipe finetune.preference"
"""How its keys begin in an origin."""
FOLDER = "preference"
"""In the work directory."""
REFERENCE = "reference"
"""In that."""
REFERENCE_KIND = "reference log-probabilities"
LAST_STEPS = 10
"""Steps over which figures of the result are means: a batch alone is noise."""
MEANS = ("loss", "reward_margin", "reward_accuracy", "reward_chosen", "reward_rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferred:
    """What the step made."""

    checkpoint: Path
    """Of the trainer, with the adapter or all weights."""
    figures: Figures
    """The part `preference` of `training.json`."""
    curve: list[dict[str, float]]
    """A line for each step."""


def refuse_uneven(settings: Preference, processes: int) -> None:
    """Refuse processes that would not have equally many pairs.

    Raises:
        PreflightError: Of such a number.
    """
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
) -> Preferred:
    """Train from the result of the first step to the end, from the newest checkpoint that is whole.

    Args:
        job: The stage's.
        pairs: What is learnt.
        tokenizer: Of the model.
        finetuned: The checkpoint of the first step that is its result.
        origin: What the first step was made from.
        processes: Those that train together.
        device: Of this process.

    Raises:
        Stopped: A signal came; a checkpoint is saved.
    """
    settings = _settings(job)
    own = replace(job, work=job.work / FOLDER)
    before = artifact.read_manifest(str(finetuned))
    assert before is not None  # sealed, or `newest_checkpoint` would not give it
    keys = recipe_origin(job.recipe, ("finetune.preference",))
    made_from = {**origin, "pairs": pairs.digest, "finetuned": before.digest} | {
        key: value for key, value in keys.items() if key != f"{KEYS}.inputs"
    }
    steps = lora.num_steps(len(pairs.train), settings)
    done, folder = processes.run_on_first(lambda: _newest(own, made_from)) or (0, None)
    if done < steps:
        log.info("%d pairs, %d steps of preference, %d done", len(pairs.train), steps, done)
        trainer = _trainer(own, pairs, tokenizer, finetuned, made_from, steps, processes, device)
        with job.stop.deferred(), progress("preference", steps) as bar:
            bar.advance(done)
            trainer.add_callback(PreferenceCallback(own, bar, made_from, processes))
            trainer.train(resume_from_checkpoint=str(folder) if folder else None)
        if job.stop.signal is not None:
            job.stop.leave()
        folder = lora.checkpoint(own, int(trainer.state.global_step))
    assert folder is not None  # there is at least one step
    curve = _curve(folder) if processes.is_first else []
    figures = _figures(curve, pairs, settings, job.recipe.finetune.preference_lr) if curve else {}
    return Preferred(checkpoint=folder, figures=figures, curve=curve)


def _newest(job: Job, origin: Mapping[str, str]) -> tuple[int, Path] | None:
    """Step and directory of the newest whole checkpoint; none without its reference.

    The model that it was computed from is gone then, and another would be taken for it.
    """
    if lora.fault_of(job.work / REFERENCE, origin) is not None:
        shutil.rmtree(job.work / "trainer", ignore_errors=True)
        return None
    return lora.newest_checkpoint(job, origin)


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
    set_seed(job.recipe.seed)
    if processes.size > 1:
        load_in_first_process(only=lora.loads_once(job))
    trains_all = learning.trains == "all"
    model = load_for_training(job, device, finetuned if trains_all else None)
    lora.give_padding(tokenizer)
    trainer = PairTrainer(
        batch_size=settings.batch_size,
        kept=lambda compute: _kept(job, compute, origin, processes),
        rows=pairs.rows,
        model=model,
        args=_configuration(job, steps, processes, measures=bool(len(pairs.heldout))),
        train_dataset=pairs.train,
        eval_dataset=pairs.heldout if len(pairs.heldout) else None,
        processing_class=tokenizer,
        peft_config=adapter_config(learning, job.recipe.trained_embeddings, model, tokenizer),
    )
    prepare_rows(trainer.model)
    if not trains_all:
        found = set_peft_model_state_dict(trainer.model, load_file(finetuned / ADAPTER))
        assert not found.unexpected_keys, found.unexpected_keys
    trainer.remove_callback(PrinterCallback)  # it prints every log line to stdout
    return trainer


def _configuration(job: Job, steps: int, processes: Group, *, measures: bool) -> DPOConfig:
    settings, learning = _settings(job), job.recipe.finetune
    return DPOConfig(
        **lora.shared_configuration(job, settings, steps, processes),
        learning_rate=learning.preference_lr,
        beta=settings.beta,
        loss_type=[settings.loss],
        eval_strategy="steps" if measures else "no",
        # Without it TRL loads a second model; `PairTrainer` computes the reference itself.
        precompute_ref_log_probs=learning.trains == "all" and processes.size == 1,
        remove_unused_columns=False,
    )


def _kept(
    job: Job, compute: Callable[[], LogProbabilities], origin: Mapping[str, str], processes: Group
) -> LogProbabilities:
    """The reference that this run computed before, or a new one."""
    folder = job.work / REFERENCE
    file = folder / "log_probabilities.npy"

    def read() -> LogProbabilities | None:
        return np.load(file, allow_pickle=False) if lora.fault_of(folder, origin) is None else None

    def write(found: LogProbabilities) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        np.save(file, found)
        artifact.seal(folder, kind=REFERENCE_KIND, origin=origin)

    found = processes.run_on_first(read)
    if found is None:
        found = compute()
        processes.run_on_first(lambda: write(found))
    return found


class PreferenceCallback(lora.TrainingCallback):
    """The same for pairs, under names of its own."""

    losses = ("loss",)
    rate_key = "finetune.preference.lr"

    def figures(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """What is kept of a step's log."""
        return {f"preference_{name}": value for name, value in preference_figures(logs).items()}

    def tell(self, figures: Mapping[str, float], step: int) -> None:
        """Say how a step went."""
        if "preference_loss" in figures:
            loss, margin = (figures[f"preference_{name}"] for name in ("loss", "reward_margin"))
            self.bar.advance(note=f"loss {loss:.3f}, margin {margin:.3f}")
        measured = [figures[f"preference_{name}"] for name in HELDOUT if f"preference_{name}" in figures]
        if measured:
            log.info(
                "step %d: held-out pairs: margin %.3f, %.0f %% won", step, measured[0], 100 * measured[1]
            )


def _curve(checkpoint: Path) -> list[dict[str, float]]:
    """A line for each step, with what held-out pairs measured after it."""
    curve: list[dict[str, float]] = []
    measured: dict[int, dict[str, float]] = {}
    for logs in read_history(checkpoint):
        figures, step = preference_figures(logs), int(logs["step"])
        if "loss" in figures:
            curve.append({"step": step, "epoch": logs["epoch"], **figures})
        else:
            measured.setdefault(step, {}).update(figures)
    return [line | measured.get(int(line["step"]), {}) for line in curve]


def _figures(curve: list[dict[str, float]], pairs: Pairs, settings: Preference, lr: float) -> Figures:
    """What the curve says of the result; means over the last steps."""
    last = curve[-LAST_STEPS:]
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


def write_curve(preferred: Preferred, out: Path) -> None:
    """Write `preference.jsonl`."""
    text = "".join(json.dumps(line) + "\n" for line in preferred.curve)
    (out / FILE).write_text(text, encoding="utf-8")
