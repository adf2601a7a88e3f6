"""Cleans and compares sources of a recipe on a test's own files."""

import json
from pathlib import Path
from typing import Any

from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import execute
from tests.kit.clean_stage import write_jsonl


def mixture(folder: Path, sources: dict[str, list[str]], **clean: Any) -> Recipe:
    """A recipe whose sources have these texts."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        name: {"inputs": [str(write_jsonl(folder / f"{name}.jsonl", texts))]}
        for name, texts in sources.items()
    }
    data = {
        "language": "az",
        "storage": {"root": str(folder / "artifacts")},
        "clean": {"workers": 1, **clean},
        "sources": tables,
        "pretrain": {
            "phases": [{"trains": "all", "steps": 1, "lr": 0.001, "mix": dict.fromkeys(sources, 1)}]
        },
    }
    return parse_recipe(json.dumps(data), "recipe", ())


def cleaned(recipe: Recipe) -> dict[str, str]:
    """Artifact word of each source -> URI of its corpus."""
    return {
        f"corpus.{name}": execute(STAGES["clean"], recipe.of_source(name), {}, (), None).uri
        for name in recipe.sources
    }


def compared(recipe: Recipe, source: str, corpora: dict[str, str]) -> Path:
    """The artifact `overlap` of a source."""
    return Path(execute(STAGES["overlap"], recipe.of_source(source), corpora, (), None).uri)


def excluded(overlap: Path) -> list[dict[str, str]]:
    """Its rows."""
    return [
        json.loads(line) for line in (overlap / "excluded.jsonl").read_text(encoding="utf-8").splitlines()
    ]
