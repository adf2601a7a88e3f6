"""Several real processes that make the same artifact in one place: one writes it, all end well, it is whole."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from anadil.artifacts import artifact, lease, publish, s3, storage
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import AlreadyThereError
from anadil.core.errors import IntegrityError, PreflightError, RecipeError, RetryableError
from anadil.core.stages import STAGES
from anadil.runtime import execute
from anadil.runtime.lookup import reusable
from anadil.runtime.planned_artifact import PlannedArtifact
from tests.kit.publish_worker import ORIGIN, build, put
from tests.kit.ranks import Fork, run_module

PATIENCE_S = 120


def start(
    name: str, uri: str, folder: Path, *, files: int = 6, size: int = 20, pause_s: float = 0.05
) -> Fork:
    arguments = (name, uri, str(folder), str(files), str(size), str(pause_s))
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    return Fork(partial(run_module, "tests.kit.publish_worker", *arguments), log)


def ends(processes: Sequence[Fork]) -> list[tuple[int, str, str]]:
    """Exit code, last word and log of each."""
    found = []
    for process in processes:
        code, log = process.wait(PATIENCE_S), process.log.read_text(encoding="utf-8")
        words = [line for line in log.splitlines() if line in ("begun", "published", "reused")]
        found.append((code, (words or [""])[-1], log))
    return found


def begun(process: Fork) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not process.log.is_file() or "begun\n" not in process.log.read_text(encoding="utf-8"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def signalled_midway(number: signal.Signals, name: str, uri: str, folder: Path, pause_s: float) -> Fork:
    """A run of nine files that got a signal when three were there."""
    process = start(name, uri, folder, files=9, pause_s=pause_s)
    begun(process)
    while len(storage.store(uri).directory_sizes(uri)) < 3:
        time.sleep(0.05)
    process.send_signal(number)
    return process


def assert_whole(uri: str) -> artifact.Manifest:
    """Every byte is that of the manifest, and nothing is beside the artifact."""
    _, manifest = fetch(uri, "corpus")
    reused = reusable(PlannedArtifact(stage=STAGES["clean"], origin=ORIGIN, out=uri, files=(), side_files={}))
    assert reused is not None
    assert storage.store(uri).directory_sizes(uri).keys() == {*manifest.files, "manifest.json"}
    assert storage.store(uri).files(f"{uri}.claim") == []
    return manifest


def test_of_several_runs_one_writes_and_the_others_take_what_it_wrote(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"

    told = ends([start(f"run{number}", uri, tmp_path) for number in range(3)])

    assert [code for code, _, _ in told] == [0] * 3, told
    assert sorted(word for _, word, _ in told) == ["published", "reused", "reused"]
    assert_whole(uri)
    assert not list(tmp_path.glob("*.partial"))


def test_large_files_in_parts_are_one_runs_too(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"
    size = 9 * 1024**2  # more than boto3 sends at once

    told = ends([start(name, uri, tmp_path, files=2, size=size) for name in ("one", "other")])

    assert [code for code, _, _ in told] == [0, 0], told
    assert_whole(uri)


def test_what_a_killed_run_left_is_replaced(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"
    killed = signalled_midway(signal.SIGKILL, "killed", uri, tmp_path, pause_s=0.3)
    killed.wait()
    left = storage.store(uri).directory_sizes(uri)

    told = ends([start("next", uri, tmp_path, files=4)])

    assert "train/part-008" not in left
    assert len(left) >= 3
    assert told[0][:2] == (0, "published"), told
    assert "takes over after 2 s without a sign of life" in told[0][2]
    assert len(assert_whole(uri).files) == 5


def test_a_run_that_stood_still_cannot_spoil_what_its_successor_wrote(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"
    slow = signalled_midway(signal.SIGSTOP, "slow", uri, tmp_path, pause_s=0.1)

    quick = ends([start("quick", uri, tmp_path, files=9, pause_s=0)])
    slow.send_signal(signal.SIGCONT)
    late = ends([slow])

    assert quick[0][:2] == (0, "published"), quick
    assert late[0][:2] == (0, "reused"), late
    assert_whole(uri)


@pytest.mark.matrix
def test_a_run_in_the_middle_of_its_successors_upload_stops_writing(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"
    slow = signalled_midway(signal.SIGSTOP, "slow", uri, tmp_path, pause_s=0.1)
    successor = start("successor", uri, tmp_path, files=9, pause_s=0.4)
    begun(successor)
    time.sleep(1)

    slow.send_signal(signal.SIGCONT)
    told = ends([successor, slow])

    assert [end[:2] for end in told] == [(0, "published"), (0, "reused")], told
    assert_whole(uri)


def test_a_reader_in_the_middle_finds_nothing_or_a_whole_artifact(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/corpus/k"
    running = [start(name, uri, tmp_path, pause_s=0.1) for name in ("one", "other")]
    looks = []
    while any(process.poll() is None for process in running):
        manifest = artifact.read_manifest(uri)
        looks.append(manifest is not None)
        if manifest:
            fetch(uri, "corpus")
        time.sleep(0.05)

    ends(running)

    assert False in looks
    assert_whole(uri)


def made(folder: Path, name: str = "one", **more: Any) -> tuple[Path, artifact.Manifest]:
    return folder / name, build(folder / name, name, 3, **more)


def test_another_artifact_at_the_same_address_is_an_error(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/out"
    folder, _ = made(tmp_path)
    other = artifact.seal(folder, kind="corpus", origin={"stage": "clean", "recipe": "another"})
    storage.store(uri).put_directory(folder, uri)
    partial, manifest = made(tmp_path, "two")

    with pytest.raises(RecipeError, match="holds a corpus made from something else"):
        put(partial, uri, manifest)

    assert artifact.read_manifest(uri) == other
    assert partial.is_dir()


def test_a_torn_artifact_is_not_taken_for_one_that_is_there(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/out"
    storage.store(uri).put_directory(made(tmp_path)[0], uri)
    storage.store(uri).write(f"{uri}/train/part-001", b"by another run")
    partial, manifest = made(tmp_path, "two")

    with pytest.raises(IntegrityError, match=r"part-001: size differs .* 14 found; run"):
        put(partial, uri, manifest)


def refuse_conditions(params: dict[str, Any], **_: Any) -> Any:
    """What a store without conditional writes answers."""
    from botocore.awsrequest import AWSResponse

    if not {"If-Match", "If-None-Match"} & params["headers"].keys():
        return None
    body = b"<Error><Code>NotImplemented</Code><Message>no such header</Message></Error>"
    response = AWSResponse(params["url"], 501, {}, None)
    response._content = body
    error = {"Code": "NotImplemented", "Message": "no such header"}
    return response, {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 501}}


def drop_conditions(params: dict[str, Any], **_: Any) -> None:
    """What a store that knows no conditions makes of them: `rclone serve s3` 1.75 answers 200."""
    for name in ("If-Match", "If-None-Match"):
        params["headers"].pop(name, None)


@pytest.mark.parametrize("store", [refuse_conditions, drop_conditions])
def test_a_store_without_conditional_writes_is_told_and_used(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, store: object
) -> None:
    uri = f"{bucket}/out"
    s3.s3_client().meta.events.register("before-call.s3.PutObject", store)
    partial, manifest = made(tmp_path)

    put(partial, uri, manifest)

    assert_whole(uri)
    assert "the storage has no conditional writes" in caplog.text
    assert "two runs that make" in caplog.text


def test_a_write_that_crosses_another_is_repeated(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/out"
    crossed: list[str] = []

    def conflict(params: dict[str, Any], **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        if params["url_path"].endswith("part-001") and len(crossed) < 2:
            crossed.append(params["url_path"])
            error = {"Code": "ConditionalRequestConflict", "Message": "at the same time"}
            answer = AWSResponse(params["url"], 409, {}, None)
            return answer, {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 409}}
        return None

    s3.s3_client().meta.events.register("before-call.s3.PutObject", conflict)
    storage.store(uri).put_directory(made(tmp_path)[0], uri)

    assert len(crossed) == 2
    assert_whole(uri)


def test_our_own_manifest_after_a_lost_answer_is_no_other_runs(bucket: str, tmp_path: Path) -> None:
    uri = f"{bucket}/out"
    folder, _ = made(tmp_path)
    content = (folder / "manifest.json").read_bytes()

    def send_before(params: dict[str, Any], **_: Any) -> None:
        if params["url_path"].endswith("/out/manifest.json") and params["headers"].get("If-None-Match"):
            s3.s3_client().meta.events.unregister("before-call.s3.PutObject", send_before)
            storage.store(uri).write(f"{uri}/manifest.json", content)

    s3.s3_client().meta.events.register("before-call.s3.PutObject", send_before)
    storage.store(uri).put_directory(folder, uri)

    assert_whole(uri)


@pytest.mark.parametrize("late", ["train/part-001", "manifest.json"])
def test_a_request_that_arrives_after_the_claim_was_lost_changes_nothing(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    uri = f"{bucket}/out"
    monkeypatch.setattr(lease, "RENEW_S", 1000)
    first, second = made(tmp_path)[0], made(tmp_path, "two")[0]
    content = (second / "manifest.json").read_bytes()

    def be_overtaken(params: dict[str, Any], **_: Any) -> None:
        if params["url_path"].endswith(f"/out/{late}"):
            s3.s3_client().meta.events.unregister("before-call.s3.PutObject", be_overtaken)
            monkeypatch.setattr(lease, "RENEW_S", 0.1)
            monkeypatch.setattr(lease, "SILENT_S", 0.3)
            storage.store(uri).put_directory(second, uri)

    s3.s3_client().meta.events.register("before-call.s3.PutObject", be_overtaken)
    with pytest.raises(AlreadyThereError):
        storage.store(uri).put_directory(first, uri)

    assert storage.store(uri).read(f"{uri}/manifest.json") == content
    assert_whole(uri)


def test_a_run_that_lost_its_claim_after_the_last_file_does_not_finish_the_artifact(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, (folder, manifest) = f"{bucket}/out", made(tmp_path)
    for name, seconds in (("RENEW_S", 0.1), ("SILENT_S", 0.3)):
        monkeypatch.setattr(lease, name, seconds)
    holders, send = list[str](), publish._send

    def overtaken(*arguments: Any) -> None:
        send(*arguments)
        if max(manifest.files) in arguments and not holders:
            holders.append("nobody")
            storage.store(uri).write(f"{uri}.claim", b'{"owner": "another"}')

    def note_holder(params: dict[str, Any], **_: Any) -> None:
        if params["url_path"].endswith("/out/manifest.json"):
            holders.append(json.loads(storage.store(uri).read(f"{uri}.claim"))["owner"])

    monkeypatch.setattr(publish, "_send", overtaken)
    s3.s3_client().meta.events.register("before-call.s3.PutObject", note_holder)
    storage.store(uri).put_directory(folder, uri)

    assert_whole(uri)
    assert (len(holders), "another" in holders) == (2, False)


def test_a_run_that_waits_too_long_can_be_tried_again(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{bucket}/corpus/k"
    monkeypatch.setattr(publish, "PATIENCE_S", 0.5)
    monkeypatch.setattr(lease, "RENEW_S", 0.4)
    run = start("run", uri, tmp_path, files=3, pause_s=0.7)
    begun(run)

    with pytest.raises(RetryableError, match="it makes the same artifact; see whether it still does"):
        storage.store(uri).put_directory(made(tmp_path)[0], uri)

    ends([run])


@pytest.mark.parametrize("pause", [False, True])
def test_two_processes_make_one_local_artifact(tmp_path: Path, pause: bool) -> None:
    out = tmp_path / "out"
    running = [start(name, str(out), tmp_path, files=40) for name in ("one", "other")]
    if pause:
        running[0].send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        running[0].send_signal(signal.SIGCONT)

    told = ends(running)

    assert [code for code, _, _ in told] == [0, 0], told
    assert sorted(word for _, word, _ in told) == ["published", "reused"]
    assert_whole(str(out))


def test_a_local_artifact_that_appears_at_the_last_moment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    partial, _ = made(tmp_path)
    other, _ = made(tmp_path, "other")
    rename = Path.rename

    def late(self: Path, to: Path) -> Path:
        if self == partial:
            rename(other, target)
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", late)

    with pytest.raises(AlreadyThereError):
        storage.store(str(target)).put_directory(partial, str(target))

    assert_whole(str(target))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_what_is_left_of_another_user_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        Path(folder).chmod(0o777)
        partial = Path(folder) / "out.partial"
        (partial / "train").mkdir(parents=True)
        told = cleared_by_another_user(partial)

    assert "belongs to user 0; remove it, or run as that user" in told


def cleared_by_another_user(partial: Path) -> str:
    seen: list[BaseException] = []

    def as_another() -> None:
        import ctypes

        # For this thread alone; 65534 is nobody.
        ctypes.CDLL(None).syscall(117, 65534, 65534, 65534)  # setresuid of x86-64
        try:
            execute._clear(partial)
        except PreflightError as error:
            seen.append(error)

    thread = Thread(target=as_another)
    thread.start()
    thread.join()

    return str(seen[0])
