import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil.artifacts import local_directory, storage
from anadil.core.errors import DataError
from tests.artifacts.test_storage import lay


def test_files_behind_links_are_found_and_a_link_back_ends_nothing(tmp_path: Path) -> None:
    lay(tmp_path, "elsewhere/a.txt", "raw/b.txt")
    (tmp_path / "raw/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "raw")

    found = storage.expand([str(tmp_path / "raw")], "clean.inputs")

    assert [str(Path(file).relative_to(tmp_path)) for file in found] == ["raw/b.txt", "raw/linked/a.txt"]


def test_a_directory_that_cannot_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, "a.txt", "closed/b.txt")
    listed = Path.iterdir

    def refusing(folder: Path) -> Iterator[Path]:
        if folder.name == "closed":  # root may read whatever its rights say
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)

    with pytest.raises(DataError, match=r"closed: cannot be read \(Permission denied\); check its rights"):
        storage.expand([str(tmp_path)], "clean.inputs")


@pytest.mark.parametrize("pattern", ["{}/pipe.txt", "{}/*.txt", "{}"])
def test_a_pipe_is_refused_before_anybody_waits_for_its_writer(tmp_path: Path, pattern: str) -> None:
    lay(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")

    with pytest.raises(DataError, match=r"pipe.txt: is a pipe or device, not a file|no file matches"):
        storage.sizes([pattern.format(tmp_path)], "clean.inputs")


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "none.txt")

    with pytest.raises(DataError, match=r"gone.txt: cannot be read \(No such file or directory\)"):
        storage.sizes([str(tmp_path)], "clean.inputs")


def test_an_empty_path_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "a.txt")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=r"clean\.inputs: no file matches ''"):
        storage.sizes([""], "clean.inputs")


def test_what_a_desktop_hides_in_a_directory_is_no_input(tmp_path: Path) -> None:
    folder = tmp_path / ".mine" / "text"
    lay(folder, ".DS_Store", "._a.txt", "a.txt", ".git/b.txt", "deep/.c.txt")

    assert storage.expand([str(folder)], "clean.inputs") == [f"{folder}/a.txt"]
    assert storage.expand([f"{folder}/._a.txt"], "clean.inputs") == [f"{folder}/._a.txt"]


def test_a_second_place_for_a_file_is_a_copy_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    (tmp_path / "a").write_text("text")
    monkeypatch.setattr("os.link", refused)

    local_directory.link(tmp_path / "a", tmp_path / "deep" / "b")

    assert (tmp_path / "deep" / "b").read_text() == "text"
    (tmp_path / "deep" / "b").write_text("other")
    assert (tmp_path / "a").read_text() == "text"
