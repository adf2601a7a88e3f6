"""A release between two starts: other source and version, the same recipe and inputs."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import anadil
from tests.kit.pretraining import make_recipe
from tests.kit.ranks import in_forks, run_module

PACKAGE = Path(anadil.__file__).parent
EDITED = (
    "core/errors.py",
    "artifacts/storage.py",
    "text/corpus.py",
    "pretrain/run.py",
    "pretrain/loop.py",
    "model/load.py",
)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the program with a comment more in shared modules and the stage's own, and another version."""
    copy = tmp_path / "release" / "anadil"
    shutil.copytree(PACKAGE, copy)
    for name in EDITED:
        file = copy / name
        file.write_text(
            file.read_text(encoding="utf-8") + "# A comment that changes nothing.\n", encoding="utf-8"
        )
    version = copy / "__init__.py"
    version.write_text(re.sub(r'__version__ = ".*"', '__version__ = "99.0.0"', version.read_text()))
    return copy.parent


@pytest.mark.usefixtures("base")
def test_after_a_release_an_unfinished_model_is_gone_on_with_and_a_finished_one_reused(
    release: Path, base: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(base, checkpoint_every=2)

    stopped = pretrain(tmp_path, recipe.model_dump_json(), "pretrain.faults.budget_hours=1e-9")
    resumed = pretrain(tmp_path, recipe.model_dump_json(), program=release)
    reused = pretrain(tmp_path, recipe.model_dump_json())

    assert stopped.returncode == 7, stopped.stderr
    assert resumed.returncode == reused.returncode == 0, resumed.stderr
    assert "step=1 " in stopped.stderr
    assert "step=1 " not in resumed.stderr
    assert "step=2 " in resumed.stderr
    (model,) = (tmp_path / "root" / "model").iterdir()
    assert '"version": "99.0.0"' in (model / "manifest.json").read_text(encoding="utf-8")
    assert f"reused {model}" in reused.stderr


def pretrain(
    folder: Path, recipe: str, *overrides: str, program: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """One start of the stage, in a process of its own, by this program or a copy of it."""
    settings = [f"storage.root={folder}/root", "tracking.uri=off", *overrides]
    words = [
        *("--recipe", recipe, "--corpus", str(folder / "corpus"), "--tokenizer", str(folder / "tokenizer")),
        *(word for text in settings for word in ("--set", text)),
    ]
    if program is None:
        log = folder / "0.log"
        log.unlink(missing_ok=True)
        [code] = in_forks([partial(run_module, "anadil.pretrain", *words)], folder)
        return subprocess.CompletedProcess(words, code, stderr=log.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "anadil.pretrain", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(program)},
    )  # fmt: skip
