"""Chats and model to adapter: LoRA on the assistant's words, audited before, merged after."""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from transformers import PreTrainedTokenizerFast, set_seed
from transformers.utils import logging as transformers_logging

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.artifacts.uri import absolute
from anadil.core.errors import PreflightError
from anadil.core.progress import progress
from anadil.core.stages import STAGES
from anadil.finetune import lora
from anadil.finetune.audit import audit
from anadil.finetune.encode import TEMPLATE, Example
from anadil.finetune.rows import Rows, read_rows
from anadil.model.family_table import refuse_mixture
from anadil.model.load import copy_tokenizer, load_model, load_tokenizer, pick_device, pick_dtype, save_model
from anadil.runtime.cache_key import recipe_origin, result_version
from anadil.runtime.job import Figures, Job
from anadil.text.chats import DroppedChats

log = logging.getLogger(__name__)

MANY_DROPPED = 0.1
"""Share of rows left out from which on the user is warned; a proposal, nothing is published."""
BESIDE = ("mask_audit.json", "training.json", "training.jsonl")
"""What tells of the training; who takes the adapter on does not read it."""
LAST_STEPS = 10
"""Steps over whose loss the figure of the last line is the mean: one batch alone is noise."""


def run(job: Job) -> Figures:
    """Fill `job.out` with the adapter, `merged/`, `mask_audit.json` and the training curve.

    Raises:
        DataError: There is nothing to train on, or the loss would not fall on the answers.
        PreflightError: Started as one of several processes, or the model is a mixture of experts.
        Stopped: A signal came while training; a checkpoint is saved.
    """
    _one_process()
    refuse_mixture(model_config(job.inputs["model"]), str(job.inputs["model"]))
    _quiet_libraries()
    settings = job.recipe.finetune
    tokenizer = load_tokenizer(job.inputs["model"])
    dropped = DroppedChats()
    rows = read_rows(job, tokenizer, dropped)
    num_rows = len(rows.train)
    steps = lora.num_steps(num_rows, settings.batch_size, settings.epochs)
    trainer = _trainer(job, tokenizer, rows.train, steps)
    seen = [Example(input_ids=row["input_ids"], labels=row["labels"]) for row in trainer.train_dataset]
    audited = audit(seen, tokenizer, dropped)
    _write(job.out / "mask_audit.json", audited)
    log.info(
        "%d chats, %d of %d tokens trained, %d steps",
        num_rows, audited["trained_tokens"], audited["tokens"], steps,
    )  # fmt: skip
    _train(job, trainer, steps, _origin(job, rows))
    loss = _write_curve(job, steps)
    _export(job, lora.checkpoint(job, steps))
    figures: Figures = {
        "loss": loss,
        "examples": num_rows,
        "trained_tokens": audited["trained_tokens"],
        "steps": steps,
        "dropped": dropped.total,
    }
    trained = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
    _write(job.out / "training.json", {**figures, "parameters": trained})
    job.varying.extend(BESIDE)
    return figures


def _one_process() -> None:
    """Use one GPU: TRL refuses to spread a model over those that it sees.

    Raises:
        PreflightError: torchrun started several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PreflightError("finetune: runs in one process on one GPU; start it without torchrun")
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _quiet_libraries() -> None:
    """Let transformers and datasets speak through our log, and draw no bars of their own."""
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    transformers_logging.disable_progress_bar()
    disable_progress_bar()


def _trainer(job: Job, tokenizer: PreTrainedTokenizerFast, rows: Dataset, steps: int) -> Any:
    device = pick_device()
    # The adapter's random start is drawn before the trainer sets its seed.
    set_seed(job.recipe.seed)
    model = load_model(job.inputs["model"], pick_dtype("auto", device))
    return lora.new_trainer(job, model, tokenizer, rows, steps, device)


def _train(job: Job, trainer: Any, steps: int, origin: dict[str, str]) -> None:
    """Train until there is a checkpoint of the last step, from the newest one that is whole.

    Raises:
        Stopped: A signal came; a checkpoint is saved.
    """
    newest = lora.newest_checkpoint(job, origin)
    done, folder = newest or (0, None)
    if newest:
        log.info("resuming after step %d of %d", done, steps)
    if done < steps:
        with job.stop.deferred(), progress("finetune", steps) as bar:
            bar.advance(done)
            trainer.add_callback(lora.TrainingCallback(job, bar, origin))
            trainer.train(resume_from_checkpoint=str(folder) if folder else None)
        if job.stop.signal is not None:
            job.stop.leave()


def _origin(job: Job, rows: Rows) -> dict[str, str]:
    """What a checkpoint must have been made from for this run to resume from it."""
    sections, inputs = ("finetune", "seed"), "recipe finetune.inputs"
    model = artifact.read_manifest(str(job.inputs["model"]))
    assert model is not None  # inputs are verified artifacts
    return {
        **result_version(STAGES["finetune"]),
        **{key: value for key, value in recipe_origin(job.recipe, sections).items() if key != inputs},
        "input model": model.digest,
        "chats": rows.digest,
    }


def _write_curve(job: Job, steps: int) -> float:
    """Write `training.jsonl`, a line for each step, and return the mean loss of the last ones.

    The state of the last checkpoint also holds the steps from before a resume.
    """
    file = lora.checkpoint(job, steps) / "trainer_state.json"
    history = json.loads(file.read_text(encoding="utf-8"))["log_history"]
    curve = [
        {"step": logs["step"], "epoch": logs["epoch"], **lora.logged_figures(logs)}
        for logs in history
        if "loss" in logs
    ]
    text = "".join(json.dumps(line) + "\n" for line in curve)
    (job.out / "training.jsonl").write_text(text, encoding="utf-8")
    last = [line["loss"] for line in curve[-LAST_STEPS:]]
    return float(sum(last) / len(last))


def _export(job: Job, source: Path) -> None:
    """Write the adapter and the merged model; no pickle of the trainer comes along.

    Both have the tokenizer and the chat template beside them, and the adapter names its base, so
    that PEFT and vLLM load it as it is.
    """
    base = job.inputs["model"]
    weights = "adapter_model.safetensors"
    shutil.copyfile(source / weights, job.out / weights)
    config = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    # PEFT writes the directory that was read, which may be a copy; which bytes it was is in the manifest.
    # An absolute path or a URI, because PEFT looks from where it is started.
    config["base_model_name_or_path"] = absolute(job.uris.get("model", str(base)))
    job.varying.append("adapter_config.json")  # another place makes no other adapter
    # A set in PEFT, whose order changes from process to process.
    config["target_modules"] = sorted(config["target_modules"])
    _write(job.out / "adapter_config.json", config)
    model = lora.merge_adapter(base, job.out)
    stored = model_config(job.inputs["model"])
    dtype = getattr(torch, stored.get("dtype") or stored.get("torch_dtype") or "float32")
    save_model(model, base, job.out / "merged", dtype)
    copy_tokenizer(base, job.out)
    for folder in (job.out, job.out / "merged"):
        shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
