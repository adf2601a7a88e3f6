"""The beginnings of large files in a bucket."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from anadil.core.errors import DataError
from anadil.recipe.sections import Recipe
from tests.kit.harness import again
from tests.kit.inspect_inputs import SMALL, lines, look, upload


@pytest.mark.usefixtures("small")
def test_the_columns_of_a_large_remote_parquet_are_read_from_its_end(
    recipe: Recipe, bucket: str, tmp_path: Path
) -> None:
    table = pa.table({"content": [f"{number} {'x' * 100}" for number in range(5_000)]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="none")
    place = upload(bucket, "a.parquet", (tmp_path / "a.parquet").read_bytes())
    right = again(recipe, "clean.text_field=content")

    assert look(right, "clean", place).detail.startswith("1 file, 0 documents in what was checked")
    with pytest.raises(DataError, match=r"no column 'text' \(clean\.text_field\) among content"):
        look(recipe, "clean", place)


@pytest.mark.usefixtures("small")
def test_a_large_remote_file_that_is_no_parquet_is_told(recipe: Recipe, bucket: str) -> None:
    place = upload(bucket, "a.parquet", b"no table " * SMALL)

    with pytest.raises(DataError, match=r"a\.parquet.*(damaged|not a [Pp]arquet)"):
        look(recipe, "clean", place)


@pytest.mark.usefixtures("small")
def test_a_remote_beginning_is_read_in_pieces(
    recipe: Recipe, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.preflight.inputs.PIECE_BYTES", 20_000)  # 14 pieces
    place = upload(bucket, "a.jsonl", lines(*({"text": "salam" * 20} for _ in range(5_000))))

    found = look(recipe, "clean", place)

    num_documents = int(found.detail.split("1 file, ")[1].split()[0].replace(",", ""))
    assert abs(num_documents - SMALL / len(lines({"text": "salam" * 20}))) <= 1
