"""Weeks of text that a source gets one after another, and their admission."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import execute

Row = dict[str, Any]


def rows_of(texts: Sequence[str], host: str = "a.az") -> list[Row]:
    """Records of one host."""
    return [{"text": text, "url": f"https://{host}/{number}"} for number, text in enumerate(texts)]


def recipe_of(folder: Path, **sections: Any) -> Recipe:
    """A recipe that retrains, with its artifacts below a folder."""
    data = {"language": "az", "storage": {"root": str(folder / "artifacts")}, "retrain": {}, **sections}
    return parse_recipe(json.dumps(data), "recipe", ())


def add_week(folder: Path, name: str, rows: Sequence[Row], since: str = "", **clean: Any) -> str:
    """The corpus of an earlier one and new records."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / f"{name}.jsonl"
    raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    settings = {"inputs": [str(raw)], "workers": 1, "since": since or None, **clean}
    return execute(STAGES["clean"], recipe_of(folder, clean=settings), {}, (), None).uri


def add_files(
    folder: Path, name: str, files: Mapping[str, Sequence[Row]], since: str = "", root: Path | None = None
) -> str:
    """The corpus of an earlier one and of records in several files."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file, rows in files.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / name / f"{file}.jsonl").write_text(lines, encoding="utf-8")
    settings = {"inputs": [f"{folder / name}/*.jsonl"], "workers": 1, "since": since or None}
    return execute(STAGES["clean"], recipe_of(root or folder, clean=settings), {}, (), None).uri


def corpus_of_weeks(folder: Path, weeks: Sequence[Sequence[Row]], **clean: Any) -> str:
    """The corpus of all weeks, each added to those before."""
    uri = ""
    for number, rows in enumerate(weeks):
        uri = add_week(folder, f"week-{number}", rows, uri, **clean)
    return uri


def admission(folder: Path, corpora: dict[str, str], **sections: Any) -> Row:
    """The content of the artifact `admission`."""
    made = execute(STAGES["admit"], recipe_of(folder, **sections), corpora, (), None)
    content: Row = json.loads((Path(made.uri) / "admission.json").read_text(encoding="utf-8"))
    return content
