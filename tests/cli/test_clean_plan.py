import json
from pathlib import Path

import pytest
import yaml

from anadil.cli.main import main
from anadil.core.errors import DataError
from tests.kit.kubernetes_schemas import validate

MIB = 1024**2


@pytest.fixture
def raw_text(tmp_path: Path) -> Path:
    """A file of 100 MiB that takes no space."""
    file = tmp_path / "raw.jsonl"
    with file.open("wb") as stream:
        stream.truncate(100 * MIB)
    return file


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["clean", "plan", *words]) == 0
    return capsys.readouterr().out


def test_shards_memory_disk_and_cpu_time_are_told(raw_text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "clean.workers=4", "--set", f"clean.shard_bytes={10 * MIB}"]

    told = json.loads(plan(capsys, "--raw", str(raw_text), *settings, "-o", "json"))

    assert told == {
        "files": "1", "input": "100.0 MiB", "engine": "processes", "shards": "16", "workers": "4",
        "memory": "6.0 GiB, whatever the input", "disk": "up to 80.0 MiB", "CPU time": "up to 21 s",
        "time": "up to 5.24 s with a CPU for each worker",
    }  # fmt: skip


def test_a_compressed_file_that_one_worker_must_read_alone_is_named(
    raw_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "packed.jsonl.zst"
    with packed.open("wb") as stream:
        stream.truncate(100 * MIB)
    words = ["--raw", str(raw_text), str(packed), "--set", f"clean.shard_bytes={10 * MIB}", "-o", "json"]

    two, one = (json.loads(plan(capsys, *words, "--set", f"clean.workers={workers}")) for workers in (2, 1))

    assert "one worker alone" not in one
    assert f"{packed}, 100.0 MiB, cannot be cut and takes up to 1 min 45 s" in two["one worker alone"]
    assert two["time"] == "up to 1 min 45 s with a CPU for each worker"


def test_the_job_that_would_be_sent_is_printed(raw_text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "clean.engine=job", "--set", "clean.workers=4"]

    manifest = yaml.safe_load(plan(capsys, "--raw", str(raw_text), *settings, "--dry-run"))

    validate(manifest, "1.34")
    assert (manifest["spec"]["completions"], manifest["spec"]["parallelism"]) == (16, 4)
    words = ["--raw", str(raw_text), "--set", "clean.engine=ray", "--dry-run", "-o", "json"]
    assert json.loads(plan(capsys, *words))["kind"] == "RayCluster"
    assert main(["clean", "plan", "--raw", str(raw_text), "--dry-run"]) == 2
    assert "sends nothing to a cluster; set job or ray" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--dry-run", "--set", "clean.engine=job"]])
def test_files_that_clean_does_not_read_are_refused(
    raw_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    other = tmp_path / "a.docx"
    other.write_bytes(b"PK")

    assert main(["clean", "plan", "--raw", str(raw_text), str(other), *more]) == DataError.exit_code
    assert f"1 file of unknown kind, such as {other}" in capsys.readouterr().err
