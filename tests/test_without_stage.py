"""A project without one stage: all else runs in the copy that `scripts/without_stage.py` makes."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from anadil.artifacts.base_model import LLAMA_3_SPECIALS
from tests.e2e.test_pipeline import START, settings
from tests.kit.pretraining import make_model
from tests.kit.project_copy import keep_kernels, run
from without_stage import copy_without

GONE = ("merge", "overlap", "admit", "trial", "replay", "encode", "distill")
COMMANDS = ("plan smoke", "plan real", "doctor smoke", "compile smoke -f pipeline.yaml")
CODE = """
import sys
from importlinter.cli import lint_imports
from anadil.cli.main import main
assert lint_imports(no_cache=True) == 0
for words in sys.argv[1:]:
    assert main(words.split()) == 0, words
"""
"""One process: each would load the same libraries."""


def missing(copy: Path) -> Iterator[str]:
    """Imports of ours without a file, at the top and inside functions."""
    for path in copy.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("anadil."):
                place = copy / "components" / str(node.module).replace(".", "/")
                files = (
                    [place]
                    if place.with_suffix(".py").is_file()
                    else [place / each.name for each in node.names]
                )
                if not all(each.is_dir() or each.with_suffix(".py").is_file() for each in files):
                    yield f"{path.name}:{node.lineno}: {node.module}"


@pytest.mark.parametrize("name", GONE)
def test_without_a_stage_all_else_is_planned_checked_and_compiled(tmp_path: Path, name: str) -> None:
    copy_without(name, copy := tmp_path / "copy")

    run(copy, [sys.executable, "-c", CODE, *COMMANDS])

    spec = next(yaml.safe_load_all((copy / "pipeline.yaml").read_text(encoding="utf-8")))
    steps = {each.removeprefix("exec-").partition("-")[0] for each in spec["deploymentSpec"]["executors"]}
    assert [*missing(copy)] == []
    assert name not in steps >= {"clean", "tokenizer", "pretrain", "evaluate", "report"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["merge", *(pytest.param(each, marks=pytest.mark.matrix) for each in GONE[1:])]
)
def test_without_a_stage_the_demo_runs_to_its_report(tmp_path: Path, name: str) -> None:
    copy_without(name, copy := tmp_path / "copy")
    keep_kernels(copy)
    make_model(copy / "work" / START, specials=LLAMA_3_SPECIALS)

    run(copy, [sys.executable, "-m", "anadil", "run", "--work", "work", *settings(copy / "work")])

    (page,) = (copy / "work").glob("report/*/report.html")
    assert "bits per byte" in page.read_text(encoding="utf-8")
