import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anadil.artifacts import artifact, prefetch, s3, storage
from anadil.core.errors import IntegrityError, PreflightError, Stopped


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path / "nvme"))


def copied(source: Path) -> Path:
    """A copy of an artifact on a disk, as one in S3 is copied."""
    manifest = artifact.read_manifest(str(source))
    assert manifest is not None
    return prefetch.copy_to_cache(str(source), manifest)


def make_artifact(folder: Path, **files: str) -> Path:
    for name, text in (files or {"a": "bir", "b": "iki"}).items():
        path = folder / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    artifact.seal(folder, kind="corpus", origin={})
    return folder


def fetched(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "fetching" in record.getMessage()]


def test_an_artifact_on_a_mount_is_copied_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = make_artifact(tmp_path / "mount")

    with caplog.at_level(logging.INFO):
        path = copied(source)
        again = copied(source)

    assert path == again
    assert path.is_relative_to(tmp_path / "nvme")
    assert (path / "train" / "b").read_text() == "iki"
    assert fetched(caplog) == [f"{source}: fetching 6 B into {path}"]


def test_an_artifact_in_s3_is_copied(bucket: str, tmp_path: Path) -> None:
    source = make_artifact(tmp_path / "made", big="x" * 20_000_000, small="y")
    storage.store(bucket).put_directory(source, f"{bucket}/corpus")

    path, _ = prefetch.fetch(f"{bucket}/corpus", "corpus")

    assert (path / "train" / "big").stat().st_size == 20_000_000
    assert (path / "train" / "small").read_text() == "y"


def test_an_artifact_that_was_written_anew_is_copied_anew(bucket: str, tmp_path: Path) -> None:
    paths = []
    for text in ("bir", "iki"):
        source = make_artifact(tmp_path / text, a=text)
        storage.store(bucket).remove_directory(f"{bucket}/corpus")
        storage.store(bucket).put_directory(source, f"{bucket}/corpus")
        paths.append(prefetch.fetch(f"{bucket}/corpus", "corpus")[0])

    assert [(path / "train" / "a").read_text() for path in paths] == ["bir", "iki"]


def test_an_object_that_is_gone_is_refused_and_what_killed_runs_left_is_not_fetched(
    bucket: str, tmp_path: Path
) -> None:
    uri = f"{bucket}/corpus"
    storage.store(bucket).put_directory(make_artifact(tmp_path / "made"), uri)
    storage.store(bucket).write(f"{uri}/train/left-over", b"x")
    path, _ = prefetch.fetch(uri, "corpus")

    (path / "train" / "b").unlink()
    s3.S3().remove(f"{uri}/train/b")

    assert not (path / "train" / "left-over").exists()
    with pytest.raises(IntegrityError, match="train/b: missing, but its manifest names it; run"):
        prefetch.fetch(uri, "corpus")


def test_a_killed_copy_goes_on_with_the_missing_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = make_artifact(tmp_path / "mount")
    path = copied(source)
    (path / "manifest.json").unlink()
    (path / "train" / "b").rename(path / "train" / "b.partial")
    kept = (path / "train" / "a").stat().st_mtime_ns

    with caplog.at_level(logging.INFO):
        copied(source)

    assert (path / "train" / "b").read_text() == "iki"
    assert not (path / "train" / "b.partial").exists()
    assert (path / "train" / "a").stat().st_mtime_ns == kept
    assert fetched(caplog) == [f"{source}: fetching 3 B into {path}"]


def test_a_damaged_copy_is_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = make_artifact(tmp_path / "mount")
    path = copied(source)
    (path / "train" / "b").write_text("ik1")

    copied(source)

    assert (path / "train" / "b").read_text() == "iki"
    assert f"{source}: the copy of train/b in {path} is damaged; fetching it again" in caplog.text


def test_a_manifest_that_points_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    source = make_artifact(tmp_path / "mount")
    text = (source / "manifest.json").read_text()
    without_seal = re.sub(r',\s*"seal": "\w+"', "", text)  # whoever changes a name can write a seal too
    (source / "manifest.json").write_text(without_seal.replace('"train/b"', '"../../b"'))

    with pytest.raises(IntegrityError, match=r"its manifest names '../../b', out of its directory"):
        copied(source)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_space_is_told_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_artifact(tmp_path / "mount", a="x" * 2_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 1_000_000_000))

    with pytest.raises(PreflightError) as caught:
        copied(source)

    assert str(caught.value) == (
        f"{tmp_path}/nvme: 1.9 MiB of {source} are to be copied there and 953.7 MiB are free, of which 1.0 GiB "
        "stay free; free some, or set ANADIL_CACHE to a directory on a larger disk"
    )


def test_a_stopped_copy_stops_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_artifact(tmp_path / "mount", a="x" * 100)
    monkeypatch.setattr(storage, "PIECE_BYTES", 10)
    written: list[int] = []

    def fetch(name: str, path: Path, count: Any) -> None:
        def stopped(num: int) -> None:
            written.append(num)
            if len(written) == 3:
                raise Stopped("stopped")
            count(num)

        prefetch.fetch_from(str(source))(name, path, stopped)

    with pytest.raises(Stopped):
        prefetch.fill(tmp_path / "copy", {"train/a": {"bytes": 100, "sha256": ""}}, fetch, "mount")

    assert written == [10, 10, 10]
    assert not (tmp_path / "copy" / "train" / "a").exists()


def test_a_copy_is_checked_anew_when_the_parent_is_another_process_of_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_artifact(tmp_path / "mount")
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(prefetch, "BOOT", boot)
    monkeypatch.setenv("LOCAL_RANK", "0")

    def after_a_start(machine: str, since: str) -> str:
        boot.write_text(machine)
        monkeypatch.setattr(prefetch, "start_of", lambda _: since)
        path = copied(source)
        found = (path / "train" / "b").read_text()
        (path / "train" / "b").write_text("ik1")
        return found

    found = [after_a_start(*start) for start in (("one", "7"), ("one", "7"), ("one", "8"), ("two", "8"))]

    assert found == ["iki", "ik1", "iki", "iki"]  # damaged after each; the second is a sibling's look


SCRIPT = """
import logging, sys
from anadil.artifacts import artifact, prefetch
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
prefetch.copy_to_cache(sys.argv[1], artifact.read_manifest(sys.argv[1]))
"""


def test_the_processes_of_a_machine_copy_once(tmp_path: Path) -> None:
    source = make_artifact(tmp_path / "mount")
    command = [sys.executable, "-c", SCRIPT, str(source)]
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "0"}

    started = [
        subprocess.Popen(
            command, env={**environment, "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    said = [process.communicate(timeout=60)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum("fetching" in text for text in said) == 1
