"""Files that lie beside data are passed over, unless they are named."""

import logging
from pathlib import Path

import pytest

from anadil.artifacts import storage
from anadil.artifacts.s3 import s3_client
from anadil.artifacts.storage import is_no_data
from anadil.core.errors import DataError


@pytest.mark.parametrize(
    "name",
    [
        *("_SUCCESS", "_metadata", "_common_metadata", "_committed_123", "_started_123", "a.parquet.crc"),
        *("README.md", "readme.txt", "LICENSE", "LICENSE.txt", "NOTICE", "CITATION.cff", ".gitattributes"),
        *(
            "dataset_infos.json",
            "dataset_info.json",
            "state.json",
            "SHA256SUMS",
            "sha256sums.txt",
            "a.json.md5",
        ),
        *(
            "logo.png",
            "a/paper.JPEG",
            "dataset.yaml",
            "run.log",
            "site/style.css",
            "get.sh",
            "pyproject.toml",
        ),
        *("_delta_log/00000.json", "a/_temporary/0/part.parquet", "oscar.py", ".cache/huggingface/a.json"),
    ],
)
def test_a_name_tells_a_file_without_data(name: str) -> None:
    assert is_no_data(name)


@pytest.mark.parametrize(
    "name",
    [
        "_index.html",
        "licences_of_the_state.jsonl",
        "readme_texts.txt",
        "metadata.jsonl",
        "success.txt",
        "_a/b.txt",
    ],
)
def test_a_name_like_it_is_one_of_data(name: str) -> None:
    assert not is_no_data(name)


@pytest.mark.parametrize("rows", ["part-0.jsonl", "a.parquet", "b.warc.gz", "x.json.zst"])
@pytest.mark.parametrize(
    "name", ["log.txt", "index.html", "paper.pdf", "stats.csv", "corpus_stats.tsv", "urls.txt"]
)
def test_what_tells_of_files_of_rows_is_none_of_the_data_and_is_data_elsewhere(
    tmp_path: Path, rows: str, name: str
) -> None:
    for each in (f"a/{rows}", f"a/{name}", f"b/{name}", "b/text.txt"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()

    found = [each.removeprefix(f"{tmp_path}/") for each in storage.expand([str(tmp_path)], "clean.inputs")]

    assert found == sorted([f"a/{rows}", f"b/{name}", "b/text.txt"])
    assert storage.expand([str(tmp_path / "a" / name)], "clean.inputs") == [f"{tmp_path}/a/{name}"]


def test_they_are_passed_over_in_directories_and_globs_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.txt", "_SUCCESS", "b/README.md", "b/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    caplog.set_level(logging.INFO)
    expected = [f"{tmp_path}/a.txt", f"{tmp_path}/b/c.txt"]

    assert storage.expand([str(tmp_path)], "clean.inputs") == expected
    assert storage.expand([f"{tmp_path}/**"], "clean.inputs") == expected
    assert "clean.inputs: passed over 2 files without data by name, such as" in caplog.text
    assert storage.expand([f"{tmp_path}/_SUCCESS"], "clean.inputs") == [f"{tmp_path}/_SUCCESS"]
    with pytest.raises(DataError, match=r"no file matches '.*/_\*' but 1 file without data by name"):
        storage.expand([f"{tmp_path}/_*"], "clean.inputs")


def test_a_hidden_directory_above_the_inputs_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".own/raw").mkdir(parents=True)
    (tmp_path / ".own/raw/a.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))

    assert storage.expand(["~/.own/raw"], "clean.inputs") == [f"{tmp_path}/.own/raw/a.txt"]


def test_they_are_passed_over_in_a_bucket(bucket: str) -> None:
    name = bucket.removeprefix("s3://")
    for key in ("raw/_SUCCESS", "raw/.part-0.parquet.crc", "raw/part-0.parquet"):
        s3_client().put_object(Bucket=name, Key=key, Body=b"x")

    assert storage.expand([f"{bucket}/raw"], "clean.inputs") == [f"{bucket}/raw/part-0.parquet"]
