"""The artifact of a trained model: weights, tokenizer, metrics, summary."""

import logging
import math
import shutil
from collections import Counter
from dataclasses import asdict
from itertools import accumulate
from typing import Any, TypeVar

import torch

from anadil.artifacts.mlmodel import write_mlmodel
from anadil.core.json_text import write_indented
from anadil.estimate.text_use import new_names
from anadil.model.load import save_model
from anadil.model.tiny import base_model
from anadil.pretrain.callback import Callback, Training
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.checkpoint.hf_export import clean_generation_settings, export_checkpoints
from anadil.pretrain.checkpoint.start_point import POINTS, StartWeights
from anadil.pretrain.checkpoint.storage import CheckpointStorage
from anadil.pretrain.metrics_logger import FILE
from anadil.pretrain.profiler import PROFILE
from anadil.pretrain.schedule_keeper import MixtureKeeper
from anadil.pretrain.teacher_weight import TeacherWeight
from anadil.pretrain.validation import FILE as TEXTS
from anadil.pretrain.validation import SCORE
from anadil.recipe.retrain import EARLIER, NEW
from anadil.runtime.job import Figures

log = logging.getLogger(__name__)

SUMMARY = "training.json"
C = TypeVar("C", bound=Callback)


def write_artifact(training: Training) -> Figures:
    """Write model, tokenizer, metrics and summary; return the figures for the last line of the log."""
    job = training.job
    trainer, tokenizer = training.trainer, job.inputs["tokenizer"]
    steps = job.recipe.averaged_steps
    storage = _callback(training, CheckpointStorage)
    # Base, or model that training began with: their configs differ in the vocabulary alone.
    start = storage.start
    weights = start.folder(verify=False) if isinstance(start, StartWeights) else None
    base = weights or base_model(job.recipe.base, job.base_cache)
    if steps or trainer.net.mesh.shares_model:
        # No process holds the mean, or the whole model, but checkpoints do.
        paths = [directory.path_of(storage.durable.folder, step) for step in steps or (training.state.step,)]
        export_checkpoints(paths, base, tokenizer, job.out, dtype=trainer.dtype)
    else:
        save_model(trainer.net.model, tokenizer, job.out, trainer.dtype, base)
        clean_generation_settings(job.out, tokenizer)
    beside = [name for name in (FILE, TEXTS) if (job.work / name).is_file()]
    for name in beside:
        shutil.copyfile(job.work / name, job.out / name)
    if (job.work / PROFILE).is_dir():
        shutil.copytree(job.work / PROFILE, job.out / PROFILE, ignore=shutil.ignore_patterns("*.partial"))
    # Traces hold times, which no key may depend on.
    timed = [path for path in job.out.rglob("*") if path.is_file() and path.parent != job.out]
    job.varying.extend([*sorted(str(path.relative_to(job.out)) for path in timed), *beside, SUMMARY])
    job.varying.extend(write_mlmodel(job.out, chats=False))
    if steps:
        log.info("the model is the mean of the checkpoints of steps %s", ", ".join(map(str, steps)))
    summary = _summary(training)
    write_indented(job.out / SUMMARY, summary)
    job.records.update(documents=trainer.data.num_documents, sequences=trainer.data.num_sequences)
    shown = ("loss", "steps", "tokens", "tokens_per_s", "parameters")
    return {name: summary[name] for name in shown}


def _callback(training: Training, kind: type[C]) -> C:
    return next(each for each in training.callbacks if isinstance(each, kind))


def _summary(training: Training) -> dict[str, Any]:
    settings, trainer, state = training.job.recipe.pretrain, training.trainer, training.state
    data, net, lines = trainer.data, trainer.net, training.lines
    # Phases that are done before a week have the mixes of other parts, which their own run tells.
    is_week, branch = training.job.recipe.continues_champion, state.branch
    points = _callback(training, CheckpointStorage).branch_points()
    done = settings.steps - sum(each.steps for each in settings.phases_left) if is_week else 0
    unseen = {line["phase"]: line["rows_unseen"] for line in lines if "rows_unseen" in line}
    ends = accumulate(phase.steps for phase in settings.phases)
    phases = [
        {
            **phase.model_dump(mode="json"),
            **({"mix": None, "anneal": None} if end <= done else {}),
            "trainable_parameters": trainer.num_trainable(number),
            **({"rows_unseen": unseen[number + 1]} if number + 1 in unseen else {}),
        }
        for number, (phase, end) in enumerate(zip(settings.phases, ends, strict=True))
    ]
    peaks = [line["peak_memory_bytes"] for line in lines if "peak_memory_bytes" in line]
    scores = [line[SCORE] for line in lines if SCORE in line]
    return {
        "loss": lines[-1]["loss"],
        "steps": state.step,
        **({"average_of": list(training.job.recipe.averaged_steps)} if settings.average_last else {}),
        "tokens": state.tokens,
        "tokens_per_s": round(state.tokens / max(state.seconds, 1e-9), 1),
        "seconds": round(state.seconds, 1),
        "parameters": sum(math.prod(shape) for shape in net.shapes.values()),
        "phases": phases,
        "documents": data.num_documents,
        "sequences": data.num_sequences,
        "sequence_length": data.length,
        "tokens_per_epoch": data.num_targets,
        "epochs": round(state.step * settings.batch_size / data.num_sequences, 4),
        "packing_waste": round(data.waste, 6),
        **(
            {"sources": _sources(training), "share_changes": _callback(training, MixtureKeeper).changes}
            if data.names
            else {}
        ),
        **({"distillation": _callback(training, TeacherWeight).summary} if data.teachers else {}),
        **({"retrain": _week(training)} if is_week else {}),
        **({"start_from": asdict(branch)} if branch else {}),
        **({POINTS: points} if points else {}),
        **({SCORE: scores[-1], f"first_{SCORE}": scores[0]} if scores else {}),
        "device": torch.cuda.get_device_name(net.device) if net.device.type == "cuda" else "cpu",
        **({"peak_memory_bytes": max(peaks)} if peaks else {}),
        "precision": "bf16" if net.dtype == torch.bfloat16 else "fp32",
        "world_size": trainer.group.size,
        "parallelism": settings.parallelism.model_dump(mode="json"),
        **training.metrics.summary(settings.steps),
    }


def _sources(training: Training) -> dict[str, Any]:
    """Text, tokens and epochs of each source."""
    data, state = training.trainer.data, training.state
    assert data.schedule is not None
    used = data.schedule.positions(
        training.trainer.batch_of(state.step) * training.trainer.settings.batch_size
    )
    # Passes of a retraining are its own, though the order goes on from the champion's.
    begins = _callback(training, MixtureKeeper).begins
    return {
        name: {
            "documents": packed.stream.num_documents,
            "sequences": packed.num_sequences,
            "tokens_per_epoch": packed.num_targets,
            "tokens": state.sources[name].tokens,
            "epochs": round((position - begins.get(name, 0)) / packed.num_sequences, 4),
        }
        for (name, packed), position in zip(data.sources.items(), used, strict=True)
    }


def _week(training: Training) -> dict[str, Any]:
    """Begin and steps of a retraining, and the text on both sides of its border."""
    branch, recipe, state = training.state.branch, training.job.recipe, training.state
    assert branch is not None
    counts: dict[str, dict[str, int]] = {}
    for name, packed in training.trainer.data.sources.items():
        side = counts.setdefault(NEW if name in new_names(recipe) else EARLIER, Counter())
        side["documents"] += packed.stream.num_documents
        side["sequences"] += packed.num_sequences
        side["tokens"] += packed.num_targets
    return {"begin": "plateau" if branch.step else "weights", "steps": state.step - branch.step, **counts}
