from pathlib import Path

import pytest

from anadil.artifacts.uri import absolute


def test_a_place_that_is_kept_does_not_need_the_directory_in_which_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    place = absolute("../runs/model")

    assert place == f"{tmp_path}/runs/model"


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tmp_path)

    assert absolute(f"{tmp_path}/latest/") == f"{tmp_path}/latest"
