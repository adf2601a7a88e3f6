import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.clean import compiled
from anadil.clean.compiled import KERNELS, cache_folder

CLEAN = Path(compiled.__file__).parent


def test_every_module_with_compiled_code_is_in_the_digest() -> None:
    holding = {path.stem for path in CLEAN.glob("*.py") if "@compiled" in path.read_text(encoding="utf-8")}

    assert holding - {"compiled"} <= set(KERNELS)


def folder_in(tree: Path, home: Path) -> Path:
    """Where a copy of the program keeps compiled code."""
    source = f"import sys; sys.path.insert(0, {str(tree)!r}); import compiled; print(compiled.cache_folder())"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True,
        env=os.environ | {"HOME": str(home), "XDG_CACHE_HOME": ""},
    )  # fmt: skip
    return Path(done.stdout.strip())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("compiled", *KERNELS):
        (tmp_path / "tree").mkdir(exist_ok=True)
        shutil.copy(CLEAN / f"{name}.py", tmp_path / "tree")
    return tmp_path / "tree"


def test_a_change_of_any_kernel_gives_a_folder_of_its_own(tree: Path, tmp_path: Path) -> None:
    before = folder_in(tree, tmp_path)

    (tree / "ngram_kernel.py").write_text("changed", encoding="utf-8")

    assert folder_in(tree, tmp_path) != before
    assert before.parent == tree / "__pycache__"


def test_what_an_image_baked_is_copied_where_its_root_is_read_only(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked = tree / "__pycache__" / cache_folder().name
    baked.mkdir(parents=True)
    (baked / "code").write_text("compiled", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "__file__", str(tree / "compiled.py"))
    monkeypatch.setattr(compiled, "_is_writable", lambda folder: tree not in folder.parents and _made(folder))

    found = cache_folder.__wrapped__()

    assert (found / "code").read_text(encoding="utf-8") == "compiled"
    assert tmp_path / "cache" in found.parents


def test_who_follows_a_run_loads_neither_the_compiler_nor_the_second_extractor() -> None:
    source = "import sys, anadil.clean.run; print({'numba', 'trafilatura'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def _made(folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    return True
