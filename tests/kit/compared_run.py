"""Runs whose artifacts lie where a run puts them, small enough to be compared in milliseconds."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.recipe.sections import Recipe
from anadil.runtime.run_record import StepRecord, _write, new_record, record_uri, write_recipe
from tests.kit import report_run

Json = dict[str, Any]
NUM = 120
"""Documents, and questions."""
STAGES = {
    "corpus": "clean",
    "tokenizer": "tokenizer",
    "model": "pretrain",
    "adapter": "finetune",
    "scores": "evaluate",
}


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({"base": {"model": "tiny"}, "tracking": {"uri": "off"}} | changes)


def content_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def scores(*, better: float = 0.0, text: str = "same", first: int = 0, **more: Any) -> Json:
    """`scores.json` of a run that takes some bits per byte less, on documents from a number on."""
    made = report_run.scores(**more)
    ids = [content_id(f"{text if number < 60 else 'part'} {number}") for number in range(first, first + NUM)]
    sizes = [900 + 7 * (number % 40) for number in range(first, first + NUM)]

    def nats(name: str, place: int) -> float:
        bits = {"base": 2.9, "adapted": 1.75 - better, "finetuned": 1.8 - better}[name]
        return (bits + 0.2 * ((place * 37) % 11 - 5) / 5) * sizes[place] * 0.6931471805599453

    made["documents"] = [
        {
            "id": each,
            "num_bytes": sizes[place],
            "nats": {name: nats(name, place) for name in made["candidates"]},
        }
        for place, each in enumerate(ids)
    ]
    for name, table in made["candidates"].items():
        total = sum(each["nats"][name] for each in made["documents"])
        table["bits_per_byte"] = total / 0.6931471805599453 / sum(sizes)
    made["heldout"] = {"sha256": content_id(" ".join(ids)), "num_documents": NUM, "source": "corpus"}
    made["questions"] = {
        "listed": [
            {"id": f"q{n}", "source": "chats", "seen": False, "num_bytes": 80, "nats": dict.fromkeys(made["candidates"], 60.0 + n % 7 - 20 * better)}
            for n in range(NUM)
        ]
    }  # fmt: skip
    return made


def make_run(root: Path, run: str, **given: Any) -> Path:
    """Artifacts and record of a finished run below a root.

    `given`: `recipe`, `scores`, `tokenizer` (a word that decides its content), `name`, `without` (artifact words),
    `record` (False: none is kept).
    """
    used = given.get("recipe") or recipe()
    files: dict[str, Any] = {
        "corpus": {"stats.json": {"kept": 7}},
        "tokenizer": {"tokenizer.json": {"is": given.get("tokenizer", "one")}},
        "model": {"weights": run},
        "adapter": {"weights": run},
        "scores": {"scores.json": given.get("scores", scores())},
    }  # fmt: skip
    reads = {"tokenizer": ("corpus",), "model": ("corpus", "tokenizer"), "adapter": ("model",), "scores": ("corpus", "model", "adapter")}  # fmt: skip
    digests: dict[str, str] = {}
    places: dict[str, str] = {}
    for word, content in files.items():
        if word in given.get("without", ()):
            continue
        folder = root / word / f"{run}-{word}"
        folder.mkdir(parents=True)
        for name, data in content.items():
            (folder / name).write_text(json.dumps(data))
        origin = {"stage": STAGES[word]} | {
            f"input {each}": digests[each] for each in reads.get(word, ()) if each in digests
        }
        sealed = artifact.seal(
            folder, kind=word, origin=origin, figures={"seconds": 60.0},
            recipe=used.model_dump(mode="json"),
        )  # fmt: skip
        digests[word], places[word] = sealed.digest, str(folder)
    if given.get("record", True):
        steps = {
            STAGES[word]: StepRecord(status="finished", uri=uri, seconds=60.0) for word, uri in places.items()
        }
        record = replace(
            new_record(used, run, name=given.get("name", "smoke"), until="evaluate"), steps=steps
        )
        _write(record_uri(str(root), run), record)
        write_recipe(str(root), run, used)
    return root
