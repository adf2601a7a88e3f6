from pathlib import Path

import pytest
from numba.core import entrypoints

from anadil.core import compiled
from anadil.core.compiled import Kernels

MODULES = ("one", "two")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A stage's folder."""
    (tmp_path / "tree").mkdir()
    for name in MODULES:
        (tmp_path / "tree" / f"{name}.py").write_text(name, encoding="utf-8")
    return tmp_path / "tree"


def test_a_change_of_any_kernel_gives_a_folder_of_its_own(tree: Path) -> None:
    before = Kernels(tree, MODULES).folder

    (tree / "two.py").write_text("changed", encoding="utf-8")

    assert Kernels(tree, MODULES).folder != before
    assert before.parent == tree / "__pycache__"


def test_what_an_image_baked_is_copied_where_its_root_is_read_only(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked = Kernels(tree, MODULES).folder
    (baked / "code").write_text("compiled", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "is_writable", lambda folder: tree not in folder.parents)

    folder = Kernels(tree, MODULES).folder

    assert (folder / "code").read_text(encoding="utf-8") == "compiled"
    assert tmp_path / "cache" in folder.parents


def test_kernels_load_no_extensions_of_other_packages(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoints, "_already_initialized", False)
    monkeypatch.setattr(entrypoints.importlib_metadata, "entry_points", _refused)

    Kernels(tree, MODULES).compiled(_nothing)()


def _refused() -> None:
    raise AssertionError("numba asks for extensions")


def _nothing() -> None:
    """To compile."""
