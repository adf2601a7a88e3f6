"""Which files of a directory are the model, and what their headers say."""

import json
import struct
from pathlib import Path

import pytest

from anadil.artifacts.weight_files import ALONE, INDEX, holds_own_head, stored_tensors, weight_files
from anadil.core.errors import DataError, IntegrityError

TABLES = ("embed", "head")


def write_file(file: Path, **tensors: bytes) -> None:
    """Vectors of bytes."""
    header, end = {}, 0
    for name, content in tensors.items():
        begin, end = end, end + len(content)
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def write_index(folder: Path, places: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_one_file_is_the_model_and_shards_without_an_index_are_not(tmp_path: Path) -> None:
    for name in (ALONE, "model-00001-of-00002.safetensors", "consolidated.safetensors"):
        write_file(tmp_path / name, embed=b"1234")

    assert [file.name for file in weight_files(tmp_path)] == [ALONE]


def test_an_index_beside_one_file_may_name_that_file_alone(tmp_path: Path) -> None:
    write_file(tmp_path / ALONE, embed=b"1234")
    write_index(tmp_path, {"embed": ALONE})

    assert list(stored_tensors(tmp_path)) == ["embed"]

    write_file(tmp_path / "a.safetensors", embed=b"5678")
    write_index(tmp_path, {"embed": "a.safetensors"})
    with pytest.raises(IntegrityError, match=r"two sets of weights, .*a\.safetensors.*remove the one"):
        weight_files(tmp_path)


def test_files_of_an_index_must_hold_each_tensor_once(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", embed=b"1234")
    write_file(tmp_path / "b.safetensors", head=b"5678")
    write_index(tmp_path, {"embed": "a.safetensors", "head": "b.safetensors"})

    assert {name: each.file.name for name, each in stored_tensors(tmp_path).items()} == {
        "embed": "a.safetensors",
        "head": "b.safetensors",
    }

    write_index(tmp_path, {"embed": "a.safetensors", "head": "b.safetensors", "norm": "b.safetensors"})
    with pytest.raises(IntegrityError, match="names 1 tensors that no file holds, the first norm"):
        stored_tensors(tmp_path)

    write_file(tmp_path / "b.safetensors", head=b"5678", embed=b"9999", norm=b"1")
    with pytest.raises(IntegrityError, match=r"embed lies in a\.safetensors and in b\.safetensors"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "deep/a.safetensors", "a.bin", 3])
def test_an_index_names_only_files_beside_it(tmp_path: Path, name: object) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"embed": name}}))

    with pytest.raises(IntegrityError, match="which is not a safetensors file beside it"):
        weight_files(tmp_path)


def test_an_index_that_transformers_does_not_read_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "a.safetensors", embed=b"1234")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"embed": "a.safetensors"}}))

    with pytest.raises(
        IntegrityError, match=r'index\.json: has no `metadata`, .*; add "metadata": \{\} to it'
    ):
        weight_files(tmp_path)

    write_index(tmp_path, {"embed": "a.safetensors"})
    assert list(stored_tensors(tmp_path)) == ["embed"]


def test_weights_under_another_name_are_none(tmp_path: Path) -> None:
    write_file(tmp_path / "weights.safetensors", embed=b"1234")

    with pytest.raises(DataError, match=rf"no {ALONE} or {INDEX}"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    ("head", "own"),
    [({"head": b"1234"}, False), ({"head": b"1235"}, True), ({"head": b"12"}, True), ({}, False)],
)
def test_a_head_is_its_own_where_its_bytes_are_not_those_of_the_embedding(
    tmp_path: Path, head: dict[str, bytes], own: bool
) -> None:
    write_file(tmp_path / ALONE, embed=b"1234", **head)

    assert holds_own_head(stored_tensors(tmp_path), TABLES) == own
