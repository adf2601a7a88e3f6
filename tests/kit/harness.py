"""Stages as tests start them: recipes, command lines, processes."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe

CLEAN = STAGES["clean"]
COMMAND = [sys.executable, "-m", "anadil.clean"]
PATIENCE_S = 120
"""For machines that do much else."""


def again(recipe: Recipe, *overrides: str) -> Recipe:
    return parse_recipe(recipe.model_dump_json(), "recipe", overrides)


def arguments(recipe: Recipe, tmp_path: Path) -> list[str]:
    path = tmp_path / "recipe.json"
    path.write_text(recipe.model_dump_json(), encoding="utf-8")
    return ["--recipe", str(path)]


def start(*more: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def partials(folder: Path, name: str = "*") -> list[Path]:
    return list(folder.rglob(f"{name}.partial"))
