from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table, read_verified
from anadil.core.errors import IntegrityError


@pytest.fixture
def made(tmp_path: Path) -> tuple[str, Manifest]:
    (tmp_path / "stats.json").write_text('{"kept": 3}', encoding="utf-8")
    artifact.seal(tmp_path, kind="corpus", origin={})
    return str(tmp_path), artifact.finished_manifest(str(tmp_path), "corpus")


def test_a_table_is_read_as_its_manifest_has_it_and_one_that_is_not_there_is_empty(
    made: tuple[str, Manifest],
) -> None:
    assert read_table(*made, "stats.json") == {"kept": 3}
    assert read_table(*made, "other.json") == {}


def test_a_file_that_the_manifest_does_not_name_is_refused(made: tuple[str, Manifest]) -> None:
    (Path(made[0]) / "other.json").write_text("{}", encoding="utf-8")

    with pytest.raises(IntegrityError, match=r"its manifest names no other\.json; "):
        read_verified(*made, "other.json")


def test_a_changed_file_is_refused(made: tuple[str, Manifest]) -> None:
    (Path(made[0]) / "stats.json").write_text('{"kept": 4}', encoding="utf-8")

    with pytest.raises(IntegrityError, match=r"stats\.json: differs from its manifest; "):
        read_table(*made, "stats.json")
