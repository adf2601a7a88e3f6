"""TRL's trainer: settings, callback, training to the end, checkpoints.

Checkpoints lie in the work directory. transformers keeps optimizer and random state there as pickles and loads them
with `weights_only=True`. Only a sealed checkpoint of this very run is loaded.
"""

import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments
from transformers.trainer_callback import PrinterCallback
from trl.trainer.sft_config import SFTConfig

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.artifacts.base_vocabulary import END_OF_TEXT
from anadil.core.errors import IntegrityError, RecipeError
from anadil.core.json_text import read_json
from anadil.core.progress import Progress, progress
from anadil.core.stages import STAGES
from anadil.estimate.instances import this_machine
from anadil.estimate.model_shape import shape_from
from anadil.finetune.learning import adapter_config, load_for_training, prepare_rows, take_adapter
from anadil.finetune.need import recomputes
from anadil.finetune.rows import Rows
from anadil.finetune.start_adapter import MERGED
from anadil.finetune.trainer import ChatTrainer, load_in_first_process
from anadil.model.process_group import Group
from anadil.recipe.finetune import Finetune, Preference, Schedule
from anadil.runtime import prometheus
from anadil.runtime.cache_key import origin_changes
from anadil.runtime.job import Job

log = logging.getLogger(__name__)

VALIDATION_LOSS = "eval_loss"
"""Its name in the log. Source: transformers' Trainer.evaluate."""

History = Sequence[Mapping[str, Any]]
"""The trainer's log: a line for each step, and one for each measurement of the validation loss."""
SCHEDULES: Mapping[Schedule, str] = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant_with_warmup",
}
"""`finetune.schedule` -> what transformers calls it."""
KEPT_CHECKPOINTS = 2
"""Should the newest be damaged, the one before it is there. The one with the lowest validation loss stays too."""
CHECKPOINT_KIND = "trainer checkpoint"
LAST_STEPS = 10
"""Steps at the end over which figures of a result are means: one batch alone is noise."""
LOGGED = {
    "loss": "loss",
    "lr": "learning_rate",
    "grad_norm": "grad_norm",
    "accuracy": "mean_token_accuracy",
    "validation_loss": VALIDATION_LOSS,
}
"""Our names of figures -> TRL's. Not `num_tokens`, which starts over at a resume."""


def num_steps(num_examples: int, settings: Finetune | Preference) -> int:
    """Optimizer steps of `settings.epochs` passes; the last pass may be partial."""
    batches = math.ceil(num_examples / settings.batch_size)
    return max(1, math.ceil(settings.epochs * math.ceil(batches / settings.gradient_accumulation)))


def new_trainer(
    job: Job, device: torch.device, tokenizer: PreTrainedTokenizerFast, rows: Rows, steps: int,
    processes: Group, start: Path | None,
) -> Any:  # fmt: skip
    """Return an SFTTrainer for rows of `input_ids` and `labels`, which it takes as they are.

    It begins with the adapter of another run, or with its merged model where all weights learn, if `start` names one.
    """
    # TRL's own kernel for the loss does not hold the logits, so Liger's is not needed; and on a
    # CPU Liger would break every Llama of the process.
    settings = job.recipe.finetune
    set_up_model(job, tokenizer, processes)
    trains_all = settings.trains == "all"
    model = load_for_training(job, device, start / MERGED if start and trains_all else None)
    trainer = ChatTrainer(
        batch_size=settings.batch_size,
        mix=rows.mix,
        model=model,
        args=SFTConfig(
            **shared_configuration(job, settings, steps, processes, measures=len(rows.validation) > 0),
            learning_rate=settings.lr,
            weight_decay=settings.weight_decay,
            neftune_noise_alpha=settings.neftune_alpha,
            # Rows have their labels and fit; TRL's own preparation would cut, drop and mask again.
            dataset_kwargs={"skip_prepare_dataset": True},
            packing=False,
            prediction_loss_only=True,
        ),
        train_dataset=rows.train,
        eval_dataset=rows.validation if len(rows.validation) else None,
        processing_class=tokenizer,
        peft_config=adapter_config(settings, job.recipe.trained_embeddings, model, tokenizer),
    )
    prepare(trainer)
    if start and not trains_all:
        take_adapter(trainer.model, start)
    return trainer


def prepare(trainer: Any) -> None:
    """Set up what both trainers of this stage need."""
    prepare_rows(trainer.model)
    trainer.remove_callback(PrinterCallback)  # it prints every log line to stdout


def set_up_model(job: Job, tokenizer: PreTrainedTokenizerFast, processes: Group) -> None:
    """Seed, choose how processes load the model, and give the tokenizer a padding token."""
    # The adapter's random start is drawn before the trainer sets its seed.
    set_seed(job.recipe.seed)
    if processes.size > 1:
        load_in_first_process(only=_loads_once(job))
    if tokenizer.pad_token is None:
        # Neither attention nor loss sees padding, so any token will do.
        tokenizer.pad_token = END_OF_TEXT if END_OF_TEXT in tokenizer.get_vocab() else tokenizer.eos_token


def train(
    job: Job, trainer: Any, callback: "TrainingCallback", done: int, folder: Path | None, title: str
) -> tuple[int, Path]:
    """Train to the end from a checkpoint; return the last step and its checkpoint."""
    with job.stop.deferred(), progress(title, trainer.args.max_steps) as bar:
        bar.advance(done)
        callback.bar = bar
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(folder) if folder else None)
    if job.stop.signal is not None:
        job.stop.leave()
    last = int(trainer.state.global_step)
    return last, checkpoint(job, last)


def _loads_once(job: Job) -> bool:
    """True if one process loads the model for all, which it does unless rows of the embedding learn."""
    # Such an embedding lies on every device as a whole, and accelerate only hands out shards.
    return job.recipe.finetune.trains == "all" or job.recipe.trained_embeddings == "none"


def shared_configuration(
    job: Job, settings: Finetune | Preference, steps: int, processes: Group, *, measures: bool
) -> dict[str, Any]:
    """Return the settings that the trainers of chats and of pairs share."""
    on_gpu = torch.cuda.is_available()
    config = model_config(job.inputs["model"])
    shape = shape_from(config, job.inputs["model"].name)
    batch = math.ceil(settings.batch_size / processes.size)
    every = job.recipe.finetune.checkpoint_every
    return {
        "output_dir": str(job.work / "trainer"),
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": settings.gradient_accumulation,
        "lr_scheduler_type": SCHEDULES[settings.schedule],
        "warmup_steps": settings.warmup_fraction,
        "seed": job.recipe.seed,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        "activation_checkpointing": recomputes(
            shape, job.recipe, this_machine(), nodes=1, devices=processes.size
        ),
        "max_length": None,
        "dataloader_pin_memory": on_gpu,
        # Every step: an average over several would start over, and so differ, after a resume.
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_steps": every,
        "eval_steps": every,
        # With each checkpoint, so that the one with the lowest validation loss is there.
        "eval_strategy": "steps" if measures else "no",
        "fsdp": True if processes.size > 1 else None,
        "fsdp_config": {"cpu_ram_efficient_loading": _loads_once(job)} if processes.size > 1 else None,
        "report_to": [],
        "disable_tqdm": True,
    }


class TrainingCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy
    """Report each step, seal checkpoints, and stop after a step."""

    losses: tuple[str, ...] = ("loss", "validation_loss")
    """Figures that must be finite."""
    rate_key = "finetune.lr"
    bar: Progress

    def __init__(self, job: Job, origin: Mapping[str, str], processes: Group) -> None:
        self.job, self.origin, self.processes = job, origin, processes

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: object) -> None:  # noqa: ARG002  transformers' signature
        """Save and stop after a signal, in all processes after the same step."""
        signal = max(map(int, self.processes.gather(str(int(self.job.stop.signal or 0)))))
        if signal:
            self.job.stop.signal = signal
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Arguments, state: State, control: Control, **more: Any) -> None:  # noqa: ARG002  transformers' signature
        """Report one step."""
        figures = self.figures(more["logs"])
        for name in self.losses:
            if not math.isfinite(value := figures.get(name, 0.0)):
                words = name.replace("_", " ")
                raise RecipeError(
                    f"{words} is {value} at step {state.global_step}; lower {self.rate_key} ({args.learning_rate})"
                )
        self.tell(figures, state.global_step)
        if figures:
            self.job.tracker.metrics(figures, state.global_step)

    def figures(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return the figures of a step by its log."""
        return figures_of(logs, LOGGED)

    def tell(self, figures: Mapping[str, float], step: int) -> None:
        """Show how a step went."""
        if "loss" in figures:
            self.bar.advance(note=f"loss {figures['loss']:.3f}")
        if "validation_loss" in figures:
            log.info("step %d: validation loss %.4f", step, figures["validation_loss"])

    def on_evaluate(self, args: Arguments, state: State, control: Control, **_: object) -> None:  # noqa: ARG002  transformers' signature
        """End training if the validation loss has not fallen for long enough; the checkpoint follows."""
        if is_over(state.log_history, self.job.recipe.finetune.patience):
            control.should_save = True
            control.should_training_stop = True

    def on_save(self, args: Arguments, state: State, control: Control, **_: object) -> None:  # noqa: ARG002  transformers' signature
        """Seal the checkpoint that all processes have just written, and only then remove old ones."""
        self.processes.run_everywhere(lambda: None)
        self.processes.run_on_first(lambda: self._seal(state))

    def _seal(self, state: State) -> None:
        artifact.seal(checkpoint(self.job, state.global_step), kind=CHECKPOINT_KIND, origin=self.origin)
        prometheus.saved_checkpoint("finetune", state.global_step)
        best = best_step(state.log_history) if self.job.recipe.finetune.patience else None
        for step, folder in _checkpoints(self.job)[KEPT_CHECKPOINTS:]:
            if step != best:
                shutil.rmtree(folder)


def figures_of(logs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """Figures of a step's log under our names, and the loss of each source."""
    figures = {ours: float(logs[theirs]) for ours, theirs in names.items() if theirs in logs}
    return figures | {name: float(value) for name, value in logs.items() if name.startswith("loss/")}


def write_curve(path: Path, newest: Path, names: Mapping[str, str]) -> list[dict[str, float]]:
    """Write a JSON line for each step as far as a checkpoint, with what was measured after it; return the lines."""
    curve: list[dict[str, float]] = []
    measured: dict[int, dict[str, float]] = {}
    for logs in read_history(newest):
        figures, step = figures_of(logs, names), int(logs["step"])
        if "loss" in figures:
            curve.append({"step": step, "epoch": logs["epoch"], **figures})
        else:
            measured.setdefault(step, {}).update(figures)
    curve = [line | measured.get(int(line["step"]), {}) for line in curve]
    path.write_text("".join(json.dumps(line) + "\n" for line in curve), encoding="utf-8")
    return curve


def checkpoint(job: Job, step: int) -> Path:
    """Return where the trainer writes the checkpoint of a step."""
    return job.work / "trainer" / f"checkpoint-{step}"


def newest_checkpoint(job: Job, origin: Mapping[str, str]) -> tuple[int, Path] | None:
    """Return step and directory of the newest whole checkpoint of this run; newer ones are removed."""
    for step, folder in _checkpoints(job):
        fault = fault_of(folder, origin)
        if fault is None and (result := result_step(job, folder)) != step:
            fault = fault_of(checkpoint(job, result), origin)
            fault = fault and f"checkpoint-{result}, which has the lowest validation loss: {fault}"
        if fault is None:
            return step, folder
        log.warning("%s: not used (%s)", folder.name, fault)
        shutil.rmtree(folder)
    return None


def result_step(job: Job, newest: Path) -> int:
    """Return the step whose checkpoint is the result of training as far as `newest`."""
    best = best_step(read_history(newest)) if job.recipe.finetune.patience else None
    return best or int(newest.name.partition("-")[2])


def _checkpoints(job: Job) -> list[tuple[int, Path]]:
    folders = (job.work / "trainer").glob("checkpoint-*")
    return sorted(((int(folder.name.partition("-")[2]), folder) for folder in folders), reverse=True)


def fault_of(folder: Path, origin: Mapping[str, str]) -> str | None:
    """Reason not to use a sealed directory: incomplete, damaged or of another run; None if it can be used."""
    try:
        manifest = artifact.read_manifest(str(folder))
        if manifest is None:
            return "incomplete: the run was killed while it was written"
        if causes := origin_changes(manifest.origin, origin, STAGES["finetune"].keys):
            return f"of another run: {'; '.join(causes)}"
        artifact.verify_files(folder, manifest, folder.name)
    except IntegrityError as error:
        return str(error)
    return None


def read_history(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the log of a checkpoint; it also holds the steps from before a resume."""
    state = read_json(checkpoint / "trainer_state.json")
    history: list[dict[str, Any]] = state["log_history"]
    return history


def validation_losses(history: History) -> dict[int, float]:
    """Return the validation loss by the step after which it was measured, in order."""
    return {int(line["step"]): float(line[VALIDATION_LOSS]) for line in history if VALIDATION_LOSS in line}


def best_step(history: History) -> int | None:
    """Return the first step with the lowest validation loss; None without any."""
    losses = validation_losses(history)
    return min(losses, key=lambda step: losses[step], default=None)


def is_over(history: History, patience: int | None) -> bool:
    """True if the last `patience` measurements brought no lower loss."""
    losses = validation_losses(history)
    best = best_step(history)
    if patience is None or best is None:
        return False
    return sum(step > best for step in losses) >= patience
