"""Recipes out of the settings of other trainers, with a list of what has no counterpart here."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import RecipeError
from anadil.core.log import masked
from anadil.recipe.load import parse_recipe
from anadil.recipe.other_names import place_of
from anadil.recipe.peer_datasets import Datasets, datasets_of
from anadil.recipe.peer_settings import Kind, PeerSettings
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import tracker_fault

SECTIONS: dict[Kind, str] = {"chats": "finetune", "pairs": "finetune.preference", "text": "pretrain"}
SAME_NAME = {
    "lr": "lr", "epochs": "epochs", "micro_batch": "batch_size", "accumulation": "gradient_accumulation",
    "length": "max_length", "schedule": "schedule", "warmup": "warmup_fraction",
}  # fmt: skip
"""Setting that all trainers have -> its key in `finetune` and in `finetune.preference`."""
OF_TEXT = {
    "epochs": "pretrain.max_epochs", "micro_batch": "pretrain.micro_batch_size", "length": "pretrain.sequence_length",
    "schedule": "pretrain.schedule", "warmup": "pretrain.warmup_fraction", "decay": "pretrain.weight_decay",
    "save": "pretrain.checkpoint_every", "validate": "pretrain.validate_every",
}  # fmt: skip
STEPS_OF_TEXT = 15_000
"""Steps of a run that names none; `pretrain.max_epochs` ends it. Those of `recipes/own.yaml`."""
NOT_NEEDED = frozenset(
    ["model_type", "tokenizer_type", "tokenizer_use_fast", "processor_type", "trust_remote_code", "strict", "is_llama_derived_model", "do_train", "stage", "rl", "dataset_prepared_path", "dataset_processes", "dataset_num_proc", "preprocessing_num_workers", "dataloader_num_workers", "overwrite_cache", "overwrite_output_dir", "plot_loss", "ddp_timeout", "local_rank", "debug", "save_only_model", "save_safetensors", "lora_fan_in_fan_out", "pad_to_sequence_len", "eval_sample_packing", "save_strategy", "eval_strategy", "evaluation_strategy", "saves_per_epoch", "evals_per_epoch", "eval_steps", "do_eval", "per_device_eval_batch_size", "eval_batch_size", "logging_dir", "gradient_checkpointing_kwargs", "disable_tqdm", "log_level", "include_num_input_tokens_seen", "dataset_dir", "datasets", "dataset", "dataset_name", "dataset_text_field", "media_dir", "finetuning_type", "adapter", "use_peft", "lora_target", "lora_target_modules", "lora_target_linear", "lora_task_type", "logging_first_step", "no_remove_unused_columns", "remove_unused_columns", "warmup_steps", "pretraining_dataset", "pref_beta", "dpo_beta", "beta", "pref_loss", "loss_type", "resize_token_embeddings", "special_tokens"]
)  # fmt: skip
"""Settings that are read above by hand, or that no result depends on and that are no choice here."""
TRACKERS = ("wandb", "mlflow", "tensorboard")
"""Trackers that `tracking.uri` can name. Settings may name several; a run here has one, the first of these."""
OF_TRACKERS = re.compile(
    r"report_to|(?:use_|hf_)?(wandb|mlflow|tensorboard|comet|swanlab|trackio)(?!_experiment)(_\w+)?"
)


@dataclass(slots=True)
class Imported:
    """A recipe in the making."""

    settings: PeerSettings
    recipe: dict[str, Any] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    """Key of the recipe -> setting that it comes from."""
    lost: dict[str, str] = field(default_factory=dict)
    """Setting that changes the result -> why it has no counterpart, and the nearest key."""
    decided: dict[str, str] = field(default_factory=dict)
    """Setting -> who decides that here."""
    idle: list[str] = field(default_factory=list)
    """Settings without a value, and those that no result depends on."""
    needed: list[str] = field(default_factory=list)
    """Keys that the recipe still asks for."""

    def put(self, key: str, value: Any, name: str) -> None:
        """Set a key of the recipe."""
        place = self.recipe
        *tables, last = key.split(".")
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
        self.taken[key] = name


def import_recipe(settings: PeerSettings) -> Imported:
    """Translate the settings of another trainer."""
    made = Imported(settings=settings)
    _data(made, datasets_of(settings))
    _method(made)
    for name, value in settings.values.items():
        if value is None or value is False or value in ("", [], {}, "none", "None"):
            made.idle.append(name)
        elif OF_TRACKERS.fullmatch(name):
            continue  # `_trackers` makes one address of them
        elif name not in made.taken.values() and name not in made.lost:
            _setting(made, name, value)
    _trackers(made)
    _steps(made)
    if "finetune" in made.recipe and not made.recipe["finetune"].get("inputs"):
        made.needed.append(
            "finetune.inputs: chats, which the model learns to answer from before it learns from pairs"
        )
    if not made.recipe.get("clean", {}).get("inputs"):
        made.needed.append(
            "clean.inputs: text in that language, which the base learns before it learns to answer"
        )
    made.needed.insert(
        0, "language: the id of the language that is taught (`anadil language list`); left out, az"
    )
    made.recipe = {key: made.recipe[key] for key in Recipe.model_fields if key in made.recipe}
    parse_recipe(json.dumps(made.recipe), f"settings of {settings.program}")
    return made


def _data(made: Imported, data: Datasets) -> None:
    key = {"chats": "finetune.inputs", "pairs": "finetune.preference.inputs", "text": "clean.inputs"}[
        made.settings.kind
    ]
    if data.inputs:
        made.put(key, data.inputs, data.name)
    if data.columns and made.settings.kind == "text":
        made.put("clean.text_field", next(iter(data.columns.values())), data.name)
    elif data.columns:
        made.put("finetune.columns", data.columns, data.name)
    made.lost |= data.lost
    made.needed += [
        *data.needed,
        *([] if data.inputs or data.needed else [f"{key}: files; the settings name none"]),
    ]


def _method(made: Imported) -> None:
    """Set whether an adapter or all weights learn, and in how many bits."""
    values, kind = made.settings.values, made.settings.kind
    name = next((each for each in ("adapter", "finetuning_type", "use_peft") if values.get(each)), "")
    way = str(values.get(name, "full")).lower()
    if kind == "text":
        if way != "full":
            made.lost[name] = (
                "text teaches all weights here, or the embeddings alone: pretrain.phases[].trains"
            )
        return
    if way not in ("lora", "qlora", "true", "full"):
        made.lost[name] = f"{way!r} is no way here; finetune.trains is adapter (LoRA) or all"
        way = "lora"
    made.put("finetune.trains", "all" if way == "full" else "adapter", name or "no adapter")
    bits = next((each for each in ("load_in_4bit", "quantization_bit") if values.get(each) in (True, 4)), "")
    if way != "full" and (way == "qlora" or bits):
        made.put("finetune.quantization", "4bit", bits or name)
    for each in ("load_in_8bit", "quantization_bit"):
        if values.get(each) in (True, 8):
            made.lost[each] = "weights are held in 16 bits, or in 4: finetune.quantization: 4bit"
    for each in ("pref_beta", "dpo_beta", "beta"):
        if kind == "pairs" and values.get(each) is not None:
            made.put("finetune.preference.beta", values[each], each)
    for each in ("pref_loss", "loss_type"):
        if kind == "pairs" and values.get(each):
            made.put("finetune.preference.loss", values[each], each)


def _setting(made: Imported, name: str, value: Any) -> None:
    place = place_of(name)
    kind = made.settings.kind
    key = (
        OF_TEXT.get(place)
        if kind == "text"
        else f"{SECTIONS[kind]}.{SAME_NAME[place]}"
        if place in SAME_NAME
        else ""
    )
    if place == "warmup":
        _warmup(made, name, value, str(key))
    elif place == "schedule":
        _schedule(made, name, value, str(key))
    elif place in ("lr", "steps", "accumulation") and kind == "text":
        return  # `_steps` makes phases and batches of them
    elif key:
        made.put(key, value, name)
    elif place in SPECIAL:
        SPECIAL[place](made, name, value)
    elif name in NOT_NEEDED:
        made.idle.append(name)
    elif place.startswith("nowhere: "):
        made.decided[name] = place.removeprefix("nowhere: ")
    elif (
        place in ("pretrain.log_every", "pretrain.max_grad_norm", "pretrain.keep_checkpoints")
        and kind == "text"
    ):
        made.put(place, value, name)
    elif place in ("pretrain.log_every", "pretrain.keep_checkpoints", "pretrain.activation_checkpointing"):
        made.decided[name] = f"no result depends on it; {place} is of pre-training"
    elif place.startswith("finetune.") and kind == "text":
        made.lost[name] = f"belongs to chats: {place}"
    elif re.fullmatch(r"(finetune|base|evaluate|tracking)\.\w+", place) and not isinstance(value, dict):
        made.put(place, value, name)
    elif place == "pretrain.precision":
        made.decided[name] = "pretrain.precision is auto: BF16 where the processor has it"
    elif place == "storage.root":
        made.decided[name] = f"it is a word of the command: anadil run my.yaml --work {value}"
    else:
        made.lost[name] = (
            f"the nearest is {place}" if place and " " not in place else place or "no key here says this"
        )


def _warmup(made: Imported, name: str, value: Any, key: str) -> None:
    steps = made.settings.values.get("max_steps")
    if isinstance(value, int | float) and 0 <= value < 1:
        made.put(key, value, name)
    elif isinstance(value, int | float) and isinstance(steps, int) and steps > 0:
        made.put(key, min(1.0, round(value / steps, 4)), name)
    else:
        made.lost[name] = f"steps are a share of all steps here: {key}, which is left at its default"


def _schedule(made: Imported, name: str, value: Any, key: str) -> None:
    known = ("cosine", "wsd") if made.settings.kind == "text" else ("cosine", "linear", "constant")
    word = {"constant_with_warmup": "constant", "warmup_stable_decay": "wsd"}.get(str(value), str(value))
    if word in known:
        made.put(key, word, name)
    else:
        made.lost[name] = f"{value!r} is none of {', '.join(known)}: {key}, which is left at its default"


def _heldout(made: Imported, name: str, value: Any) -> None:
    if made.settings.kind != "chats":
        made.decided[name] = (
            "a share is held out by itself: clean.heldout_fraction, finetune.heldout_fraction"
        )
    elif isinstance(value, int | float) and 0 < value < 1:
        made.put("finetune.validation_fraction", value, name)
    else:
        made.lost[name] = "a number of rows; here it is a share: finetune.validation_fraction"


def _decay(made: Imported, name: str, value: Any) -> None:
    if made.settings.kind == "chats":
        made.put("finetune.weight_decay", value, name)
    elif value:
        made.lost[name] = "pairs are learnt without weight decay"
    else:
        made.idle.append(name)


def _save(made: Imported, name: str, value: Any) -> None:
    if isinstance(value, int) and made.settings.kind == "chats":
        made.put("finetune.checkpoint_every", value, name)
    else:
        made.idle.append(name)


def _validate(made: Imported, name: str, value: Any) -> None:  # noqa: ARG001  settings are read alike
    made.decided[name] = "the validation loss is measured at each checkpoint: finetune.checkpoint_every"


def _steps_of_chats(made: Imported, name: str, value: Any) -> None:
    if isinstance(value, int) and value > 0:
        made.lost[name] = f"finetuning counts passes: {SECTIONS[made.settings.kind]}.epochs"
    else:
        made.idle.append(name)


SPECIAL: dict[str, Callable[[Imported, str, Any], None]] = {
    "heldout": _heldout, "decay": _decay, "save": _save, "validate": _validate, "steps": _steps_of_chats,
}  # fmt: skip


def _trackers(made: Imported) -> None:
    """Set the address of the tracker, out of all settings that name one."""
    values = {
        name: value
        for name, value in made.settings.values.items()
        if OF_TRACKERS.fullmatch(name) and name not in made.idle
    }
    asked: dict[str, str] = {}
    for name, value in values.items():
        match = OF_TRACKERS.fullmatch(name)
        for each in [match[1]] if match and match[1] else value if isinstance(value, list) else [value]:
            asked.setdefault(str(each).lower(), name)
    kind = next((each for each in TRACKERS if each in asked), "")
    for word, name in asked.items():
        if word not in (*TRACKERS, "none"):
            made.lost[name] = f"{word} is no tracker here; tracking.uri names MLflow, W&B or TensorBoard"
    address = {
        "wandb": f"wandb://{values.get('wandb_entity') or 'ENTITY'}/{values.get('wandb_project') or 'PROJECT'}",
        "mlflow": values.get("mlflow_tracking_uri", ""),
        "tensorboard": f"tensorboard:{made.settings.values.get('logging_dir') or 'runs'}",
    }.get(kind, "")
    if {"ENTITY", "PROJECT"} & {*address.split("/")}:
        made.needed.append(f"tracking.uri: {address}; the settings do not name both")
    elif address and (fault := "holds a password" if masked(address) != address else tracker_fault(address)):
        made.lost[asked[kind]] = f"the address {fault}"
    elif address:
        made.put("tracking.uri", address, asked[kind])
    for name in values.keys() - made.lost.keys() - {*made.taken.values()}:
        made.decided[name] = "a run has one tracker, tracking.uri, which is MLflow where nothing is said"


def _steps(made: Imported) -> None:
    """Phases and batches of a run on text, which are made of several settings."""
    if made.settings.kind != "text":
        return
    by_place = {place_of(name): (name, value) for name, value in made.settings.values.items() if value}
    steps = by_place.get("steps", ("", 0))[1]
    phase = {"trains": "all", "steps": steps if isinstance(steps, int) and steps > 0 else STEPS_OF_TEXT}
    name, rate = by_place.get("lr", ("", None))
    if rate is None:
        raise RecipeError("learning_rate: the settings name none; name it")
    made.put("pretrain.phases", [phase | {"lr": rate}], name)
    parts = [by_place.get(place, ("", 1)) for place in ("micro_batch", "accumulation")]
    if any(name for name, _ in parts) and all(isinstance(value, int) for _, value in parts):
        made.put("pretrain.batch_size", math.prod(value for _, value in parts), parts[1][0] or parts[0][0])
        made.needed.append("pretrain.batch_size: of all devices together; multiply it by their number")


def recipe_text(made: Imported, given: str) -> str:
    """The recipe as a file: its keys, each with the setting that it comes from, then what is left to do and what is lost."""
    lines = [f"# From settings of {made.settings.program}: {given}. Run `anadil recipe check` on this file."]
    lines += [f"# Asks for {each}" for each in made.needed]
    lines += _lines(made, made.recipe, "", 0)
    if made.lost:
        lines += ["", "# Settings without a counterpart:"]
        lines += [f"#   {name}: {why}" for name, why in made.lost.items()]
    return "\n".join(lines) + "\n"


def _lines(made: Imported, table: dict[str, Any], path: str, depth: int) -> list[str]:
    lines = []
    for key, value in table.items():
        here, indent = f"{path}.{key}".lstrip("."), "  " * depth
        # A table that one setting gave, such as columns, stands on its line.
        if isinstance(value, dict) and here not in made.taken:
            lines += [f"{indent}{key}:", *_lines(made, value, here, depth + 1)]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}   # {made.taken[here]}")
    return lines
