import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import entrypoints

from anadil.core import compiled
from anadil.core.compiled import Kernels


@pytest.fixture(autouse=True)
def _no_chosen_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A stage's folder."""
    (tmp_path / "tree").mkdir()
    for name in ("one", "two"):
        (tmp_path / "tree" / f"{name}.py").write_text(name, encoding="utf-8")
    return tmp_path / "tree"


def test_a_change_of_any_kernel_gives_a_folder_of_its_own(tree: Path) -> None:
    before = Kernels(tree).folder

    (tree / "two.py").write_text("changed", encoding="utf-8")

    assert Kernels(tree).folder != before
    assert before.parent == tree / "__pycache__"
    assert Kernels(tree, constants=("words",)).folder != Kernels(tree, constants=("lines",)).folder


def test_a_changed_constant_is_compiled_anew_in_the_users_own_numba_directory(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "kernel.py").write_text(
        "from pathlib import Path\nfrom columns import COLUMN\nfrom anadil.core.compiled import Kernels\n"
        "@Kernels(Path(__file__).parent).compiled\ndef column() -> int:\n    return COLUMN\nprint(column())\n",
        encoding="utf-8",
    )
    # Bytecode of a source of equal size in the same second would be taken for that of the new one.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONDONTWRITEBYTECODE": "1"}

    printed = []
    for number in (1, 2):
        (room / "columns.py").write_text(f"COLUMN = {number}\n", encoding="utf-8")
        command = [sys.executable, "-c", "import kernel"]
        printed.append(subprocess.check_output(command, cwd=room, env=environment, text=True))

    assert printed == ["1\n", "2\n"]


def test_what_an_image_baked_is_copied_where_its_root_is_read_only(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baked = Kernels(tree).folder
    (baked / "code").write_text("compiled", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "is_writable", lambda folder: tree not in folder.parents)

    folder = Kernels(tree).folder

    assert (folder / "code").read_text(encoding="utf-8") == "compiled"
    assert tmp_path / "cache" in folder.parents


def test_kernels_load_no_extensions_of_other_packages(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoints, "_already_initialized", False)
    monkeypatch.setattr(entrypoints.importlib_metadata, "entry_points", _refused)

    Kernels(tree).compiled(_nothing)()


def _refused() -> None:
    raise AssertionError("numba asks for extensions")


def _nothing() -> None:
    """To compile."""
