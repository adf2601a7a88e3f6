"""Data that settings of other trainers name: paths, data sets of the hub, entries of LLaMA-Factory's `dataset_info.json`."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from anadil.core.errors import RecipeError
from anadil.recipe.peer_settings import PeerSettings

HUB = re.compile(r"[\w.-]+/[\w.-]+")
"""Name of a data set on the Hugging Face hub."""
FILE = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|csv|tsv|xlsx|txt)(\.(gz|zst))?$", re.IGNORECASE)
COMMIT = "{}: name a commit behind the data set's name, as hf://datasets/ORG/NAME@COMMIT; `anadil recipe check` says which one"
OF_AXOLOTL = {"field_messages": "messages", "field_instruction": "question", "field_output": "answer", "field_system": "system",
              "field_input": "context"}  # fmt: skip
OF_LLAMA_FACTORY = {
    "prompt": "question",
    "query": "context",
    "response": "answer",
    "system": "system",
    "messages": "messages",
}
LIKE_LLAMA_FACTORY = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "conversations",
}
"""Names that LLaMA-Factory takes where an entry says none; they are read here without a name, too."""
OF_ROWS = {"type", "path", "name", "split", "ds_type", "data_files", *OF_AXOLOTL, "message_field_role", "message_field_content",
           "roles", "message_property_mappings", "conversation", "field_chosen", "field_rejected"}  # fmt: skip


@dataclass(slots=True)
class Datasets:
    """Inputs of a recipe."""

    name: str = ""
    """The setting that names them."""
    inputs: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    needed: list[str] = field(default_factory=list)

    def add(self, place: str, split: str = "") -> None:
        """Add a path or the name of a data set on the hub."""
        if HUB.fullmatch(place) and not FILE.search(place) and not place.startswith("."):
            place = f"hf://datasets/{place}"
            self.needed.append(COMMIT.format(place))
        if split not in ("", "train"):
            self.lost[f"split {split}"] = (
                "rows are chosen by files; a data set with parts is read by its part train"
            )
        self.inputs.append(place)


def datasets_of(settings: PeerSettings) -> Datasets:
    """The data that a run learns from."""
    values = settings.values
    if settings.program == "axolotl":
        return _of_axolotl(values)
    if settings.program == "LLaMA-Factory":
        return _of_llama_factory(settings)
    data = Datasets(name="dataset_name")
    if place := values.get("dataset_name"):
        data.add(str(place), str(values.get("dataset_train_split", "")))
    if (column := values.get("dataset_text_field")) not in (None, "text", "messages"):
        data.lost["dataset_text_field"] = (
            f"texts are in {column!r}: clean.text_field, where they are no chats"
        )
    return data


def _of_axolotl(values: dict[str, Any]) -> Datasets:
    data = Datasets(name="datasets" if values.get("datasets") else "pretraining_dataset")
    listed = values.get("datasets") or values.get("pretraining_dataset") or ()
    for each in listed if isinstance(listed, list) else [listed]:
        entry: dict[str, Any] = each if isinstance(each, dict) else {"path": each}
        files = entry.get("data_files")
        for place in (files if isinstance(files, list) else [files]) if files else [entry.get("path", "")]:
            data.add(str(place), str(entry.get("split") or ""))
        form: dict[str, Any] = entry["type"] if isinstance(entry.get("type"), dict) else {}
        for name, role in OF_AXOLOTL.items():
            column = form.get(name) or entry.get(name)
            if column and column not in (
                "messages",
                "conversations",
                "conversation",
                "instruction",
                "input",
                "output",
                "system",
            ):
                data.columns[role] = column
        if "format" in form:
            data.lost["datasets[].type.format"] = "the base's own chat template is used"
        for name in sorted({*entry} - OF_ROWS):
            if entry[name] not in (None, False, ""):
                data.lost[f"datasets[].{name}"] = (
                    "rows are taken whole: prepare the file, or use finetune.mix"
                )
    return data


def _of_llama_factory(settings: PeerSettings) -> Datasets:
    data = Datasets(name="dataset")
    given = settings.values.get("dataset") or ""
    names = (
        given if isinstance(given, list) else [name.strip() for name in str(given).split(",") if name.strip()]
    )
    folder = settings.folder / str(settings.values.get("dataset_dir") or "data")
    table = folder / "dataset_info.json"
    try:
        known = json.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}
    except ValueError as error:
        raise RecipeError(f"{table}: is not JSON ({error}); correct it") from None
    for name in names:
        entry = known.get(name)
        if not isinstance(entry, dict):
            data.needed.append(
                f"the files of the data set {name!r}: {table} does not say where they are; name them"
            )
        elif "file_name" in entry:
            data.add(str(folder / entry["file_name"]))
        else:
            data.add(str(entry.get("hf_hub_url", name)), str(entry.get("split") or ""))
        for part, column in entry.get("columns", {}).items() if isinstance(entry, dict) else ():
            if part in OF_LLAMA_FACTORY and column and column != LIKE_LLAMA_FACTORY.get(part, part):
                data.columns[OF_LLAMA_FACTORY[part]] = column
    for name in ("max_samples", "mix_strategy", "interleave_probs"):
        if (value := settings.values.get(name)) not in (None, ""):
            data.lost[name] = f"{value!r}: all rows are read; finetune.mix says how often each file is shown"
    return data
