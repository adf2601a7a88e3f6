"""Patterns for more new files than a command has room for."""

from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.core.errors import DataError
from anadil.retrain import new_files
from anadil.retrain.new_files import short_inputs as shorten

KEY = "clean.inputs"


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(new_files, "MOST_BYTES", 3 * (len(str(tmp_path)) + 30))


def write(root: str, *names: str) -> list[str]:
    uris = [f"{root}/{name}" for name in names]
    for uri in uris:
        storage.store(uri).write(uri, b"{}\n")
    return uris


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("bucket")) if request.param == "s3" else str(tmp_path)


def test_few_files_are_named(root: str) -> None:
    new = write(root, "2.jsonl", "10.jsonl")

    assert shorten(new, [], KEY) == tuple(new)


def test_many_files_are_patterns_that_name_no_other(root: str) -> None:
    old = write(root, *(f"text/2026-01-{day:02}.jsonl" for day in range(1, 9)))
    new = write(
        root, *(f"text/2026-{month}-{day:02}.jsonl" for month in ("02", "03") for day in range(1, 20))
    )

    patterns = shorten(new, old, KEY)

    assert patterns == (f"{root}/text/2026-02*.jsonl", f"{root}/text/2026-03*.jsonl")
    assert storage.expand(patterns, KEY) == new


def test_a_folder_of_new_files_is_one_pattern(root: str) -> None:
    old = write(root, "week-1/a.jsonl", "week-1/b.jsonl")
    new = write(root, *(f"week-2/{number}.jsonl" for number in range(9)))

    assert shorten(new, old, KEY) == (f"{root}/week-2/*.jsonl",)


def test_files_beside_the_inputs_are_not_taken_in(root: str) -> None:
    new = write(root, *(f"{number}.jsonl" for number in range(20)))
    write(root, "beside.jsonl")

    with pytest.raises(
        DataError,
        match=r"the names of 20 new files take [\d,]+ bytes .* put the files of a week into a folder",
    ):
        shorten(new, [], KEY)


def test_a_name_that_is_the_beginning_of_an_old_one_is_named(root: str) -> None:
    old = write(root, "aa.jsonl", "ab")
    new = write(root, "a", "ba.jsonl", *(f"b{number}.jsonl" for number in range(9)))

    assert shorten(new, old, KEY) == (f"{root}/a", f"{root}/b*.jsonl")


def test_signs_of_patterns_in_names_are_no_patterns(tmp_path: Path) -> None:
    new = write(str(tmp_path), *(f"[{number}].jsonl" for number in range(9)))

    with pytest.raises(DataError, match="9 new files"):
        shorten(new, [], KEY)
