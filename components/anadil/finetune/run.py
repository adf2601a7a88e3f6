"""Stage finetune (chats, model or merged -> adapter): train LoRA or all weights on the answers, audited before, merged after."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from transformers.utils import logging as transformers_logging

from anadil.artifacts import artifact
from anadil.artifacts.base_model import CHAT_TEMPLATE, model_config
from anadil.artifacts.mlmodel import write_mlmodel
from anadil.artifacts.uri import absolute
from anadil.core.json_text import read_json, write_indented
from anadil.core.stages import STAGES, last_form
from anadil.finetune import training
from anadil.finetune.chat_format import recipe_format, system_turn, with_system
from anadil.finetune.encode import audit
from anadil.finetune.learning import refuse_quantization
from anadil.finetune.preference import (
    PREFERENCE_CURVE,
    PREFERENCE_KEYS,
    prefer,
    read_pair_rows,
    refuse_uneven,
)
from anadil.finetune.rows import Rows, read_rows
from anadil.finetune.start_adapter import read_start_adapter
from anadil.finetune.training import is_over, read_history
from anadil.finetune.write_model import write_merged, write_trained
from anadil.model.family_table import refuse_mixture
from anadil.model.load import copy_tokenizer, free_memory, load_tokenizer, pick_device
from anadil.model.process_group import Group, group, peers
from anadil.runtime.cache_key import extended, recipe_origin, result_version
from anadil.runtime.environment import in_group
from anadil.runtime.job import Figures, Job
from anadil.text.chats import DroppedChats

log = logging.getLogger(__name__)

BESIDE = ("mask_audit.json", "training.json", "training.jsonl", PREFERENCE_CURVE)
"""Files about the training, which later stages do not load."""
MARGINS = ("reward_margin", "reward_accuracy")
"""Figures of the preference step that are shown beside those of the stage."""


def run(job: Job) -> Figures:
    """Fill `job.out` with the adapter, `merged/`, `mask_audit.json` and the training curve.

    Where all weights learn there is no adapter: `merged/` is the model. Processes that torchrun has started share the
    model and each batch (FSDP); the first of them writes.
    """
    if not in_group():
        # TRL refuses to spread a model over the GPUs that it sees.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    job = _from_last_form(job)
    refuse_mixture(model_config(job.inputs["model"]), str(job.inputs["model"]))
    device = pick_device()
    with peers(int(os.environ.get("RANK", "0"))), group(device) as processes:
        refuse_quantization(job.recipe.finetune, device, processes.size)
        if preference := job.recipe.finetune.preference:
            refuse_uneven(preference, processes.size)
        transformers_logging.disable_default_handler()
        transformers_logging.enable_propagation()
        transformers_logging.disable_progress_bar()
        disable_progress_bar()
        figures = _run(job, processes, device)
        processes.wait()
    return figures


def _from_last_form(job: Job) -> Job:
    word = last_form("model", job.inputs)
    uris = {"model": job.uris[word]} if word in job.uris else {}
    return replace(job, inputs=job.inputs | {"model": job.inputs[word]}, uris={**job.uris, **uris})


def _run(job: Job, processes: Group, device: torch.device) -> Figures:
    settings = job.recipe.finetune
    own_job = _job_of_process(job, processes)
    tokenizer = load_tokenizer(job.inputs["model"])
    _, default = recipe_format(tokenizer, settings)
    system = system_turn(default, settings)
    if system and not settings.system and processes.is_first:
        log.warning(
            "the base's chat template writes %a as system turn of each chat that has none, in training and where the "
            "model is served; finetune.system sets another, or none", system,
        )  # fmt: skip
    dropped = DroppedChats()
    start = read_start_adapter(job.recipe, job.inputs["model"], processes)
    rows = read_rows(own_job, tokenizer, dropped, start.heldout if start else ())
    # Before the first step, which may take hours.
    pairs = (
        read_pair_rows(own_job, settings.preference, tokenizer, rows.heldout_questions)
        if settings.preference
        else None
    )
    steps = training.num_steps(rows.mix.size, settings)
    trainer = training.new_trainer(
        job, device, tokenizer, rows, steps, processes, start.folder if start else None
    )
    audited = audit(trainer.train_dataset, tokenizer, dropped)
    audited |= {"system_turn": system} if system else {"system_turn_left_out": default} if default else {}
    audited |= {"preference": pairs.audit} if pairs else {}
    write_indented(own_job.out / "mask_audit.json", audited)
    log.info(
        "%d chats, %d of %d tokens trained, %d steps",
        rows.mix.size, audited["trained_tokens"], audited["tokens"], steps,
    )  # fmt: skip
    origin = _origin(job, rows, processes)
    newest = _train(job, trainer, steps, origin, processes)
    summary: dict[str, Any] = {
        "trains": settings.trains,
        "trains_embeddings": job.recipe.trained_embeddings if settings.trains == "adapter" else "all",
        "parameters": sum(each.numel() for each in trainer.model.parameters() if each.requires_grad),
    }
    del trainer  # preference and merging need the memory
    free_memory()
    step = processes.run_on_first(lambda: training.result_step(job, newest))
    result = training.checkpoint(job, step)
    preference: Figures = {}
    if pairs:
        result, preference = prefer(job, pairs, tokenizer, result, origin, processes, device)
    free_memory()
    if not processes.is_first:
        return {}
    curve = training.write_curve(job.out / "training.jsonl", newest, training.LOGGED)
    figures: Figures = {
        **_losses(curve, step),
        "examples": rows.mix.size,
        "trained_tokens": audited["trained_tokens"],
        "steps": step,
        "dropped": dropped.total,
    }
    _export(job, result)
    write_indented(
        job.out / "training.json", figures | summary | ({"preference": preference} if preference else {})
    )
    job.varying.extend(name for name in BESIDE if (job.out / name).is_file())
    return figures | {name: preference[name] for name in MARGINS if name in preference}


def _job_of_process(job: Job, processes: Group) -> Job:
    """Return the job for what each process does by itself; only the first one's files are stored."""
    if processes.is_first:
        return job
    folder = job.work / f"process-{processes.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return replace(job, out=folder, work=folder)


def _train(job: Job, trainer: Any, steps: int, origin: dict[str, str], processes: Group) -> Path:
    """Train to the end from the newest whole checkpoint; return the newest one after it."""
    patience = job.recipe.finetune.patience
    done, folder = processes.run_on_first(lambda: training.newest_checkpoint(job, origin)) or (0, None)
    if folder:
        log.info("resuming after step %d of %d", done, steps)
        if done == steps or is_over(read_history(folder), patience):
            return folder
    callback = training.TrainingCallback(job, origin, processes)
    last, newest = training.train(job, trainer, callback, done, folder, "finetune")
    if last < steps:
        log.info(
            "ended after step %d of %d: the validation loss was lowest after step %d, %d measurements ago",
            last, steps, training.result_step(job, newest), patience,
        )  # fmt: skip
    return newest


def _origin(job: Job, rows: Rows, processes: Group) -> dict[str, str]:
    """Return the origin that a checkpoint needs for this run to resume from it."""
    sections, inputs = ("finetune", "seed"), "recipe finetune.inputs"
    model = artifact.read_manifest(str(job.inputs["model"]))
    assert model is not None  # inputs are verified artifacts
    return {
        **result_version(STAGES["finetune"]),
        **{
            key: value
            for key, value in recipe_origin(job.recipe, sections).items()
            if key != inputs and not key.startswith(PREFERENCE_KEYS)
        },
        "embedding rows": job.recipe.trained_embeddings,
        "input model": model.digest,
        **extended(STAGES["finetune"], job.recipe),
        "chats": rows.digest,
        # Other files, not other numbers: one process has its own form of checkpoints.
        "shared by processes": str(processes.size > 1),
    }


def _losses(curve: list[dict[str, float]], step: int) -> Figures:
    """Return the figures of the model after `step`; `loss` is the mean of the last steps up to it."""
    until = [line for line in curve if line["step"] <= step]
    last = [line["loss"] for line in until[-training.LAST_STEPS :]]
    figures: Figures = {"loss": sum(last) / len(last), "first_loss": until[0]["loss"]}
    measured = [line["validation_loss"] for line in until if "validation_loss" in line]
    return figures | ({"validation_loss": measured[-1]} if measured else {})


def _export(job: Job, source: Path) -> None:
    base, merged = job.inputs["model"], job.out / "merged"
    if job.recipe.finetune.trains == "all":
        write_trained(source, base, merged)
    else:
        _write_adapter(job, source)
        write_merged(base, job.out, merged)
    _write_template(job, merged)
    job.varying.extend(f"merged/{name}" for name in write_mlmodel(merged, chats=True))


def _write_adapter(job: Job, source: Path) -> None:
    """Write the adapter, which names its base, so that PEFT and vLLM load it as it is."""
    base = job.inputs["model"]
    weights = "adapter_model.safetensors"
    shutil.copyfile(source / weights, job.out / weights)
    config = read_json(source / "adapter_config.json")
    # PEFT writes the directory that was read, which may be a copy; which bytes it was is in the manifest.
    # An absolute path or a URI, because PEFT looks from where it is started.
    config["base_model_name_or_path"] = absolute(job.uris.get("model", str(base)))
    job.varying.append("adapter_config.json")  # another place makes no other adapter
    # A set in PEFT, whose order changes from process to process.
    config["target_modules"] = sorted(config["target_modules"])
    write_indented(job.out / "adapter_config.json", config)
    copy_tokenizer(base, job.out)
    _write_template(job, job.out)


def _write_template(job: Job, folder: Path) -> None:
    chats, _ = recipe_format(load_tokenizer(job.inputs["model"]), job.recipe.finetune)
    written = with_system(chats.template, job.recipe.finetune.system_text)
    (folder / CHAT_TEMPLATE.name).write_text(written, encoding="utf-8")
