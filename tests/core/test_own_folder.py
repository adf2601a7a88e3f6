import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.artifacts import prefetch
from anadil.core.errors import PreflightError
from anadil.core.own_folder import cache_folder, is_writable, temporary_folder, work_folder
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import base_cache


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR, and a home beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "ANADIL_WORK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_cache_lies_in_the_home(temporary: Path) -> None:
    assert cache_folder() == temporary / "home/.cache/anadil"


def test_a_cache_lies_where_xdg_says(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(temporary / "xdg"))

    assert cache_folder() == temporary / "xdg/anadil"


@pytest.mark.parametrize("home", ["/proc", "a file"])
def test_without_a_home_to_write_to_it_lies_below_tmpdir_for_all_processes(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (temporary / "a file").touch()
    monkeypatch.setenv("HOME", str(temporary / home))

    folder = cache_folder()

    assert folder == temporary / f"anadil-cache-{os.getuid()}" == cache_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert is_writable(folder)


@pytest.mark.parametrize("place", [lambda: base_cache(Recipe()), prefetch.cache])
def test_all_that_is_kept_for_later_runs_has_a_place_without_a_home(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[], Path]
) -> None:
    monkeypatch.delenv("ANADIL_CACHE")
    monkeypatch.setenv("HOME", "/proc")

    assert place().is_relative_to(temporary / f"anadil-cache-{os.getuid()}")


def test_a_user_whom_nobody_knows_has_no_home(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    (temporary / "anadil-cache-54321").mkdir()

    with pytest.raises(PreflightError, match="anadil-cache-54321: others may write there"):
        cache_folder()


def test_a_folder_that_somebody_else_may_write_to_is_refused(temporary: Path) -> None:
    folder = temporary_folder("anadil-work")
    folder.chmod(0o777)

    with pytest.raises(PreflightError, match=f"{folder}: others may write there; remove it, or set TMPDIR"):
        work_folder()


def test_a_link_to_a_folder_is_refused(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    (temporary / f"anadil-work-{os.getuid()}").symlink_to(temporary / "elsewhere")

    with pytest.raises(PreflightError, match="others may write there"):
        work_folder()


def test_work_lies_where_anadil_work_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANADIL_WORK", "/fsx/work")

    assert work_folder() == Path("/fsx/work")
