"""An artifact on a disk: what reaches it in which order, and what a disk that fails leaves behind."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import lease
from anadil.artifacts.prefetch import fetch
from anadil.core.errors import PreflightError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.termination import exit_code_of
from tests.kit.marks import matrix, slow

CLEAN = STAGES["clean"]
Steps = list[tuple[str, Path]]


def recorded(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, Path], bool] = lambda *_: False) -> Steps:
    """Every fsync and rename of this process, in their order; `fails` says which fsync does."""
    steps: Steps = []
    sync, rename = os.fsync, os.rename

    def fsync(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        steps.append(("sync", path))
        if fails(len([step for step, _ in steps if step == "sync"]), path):
            raise OSError(errno.EIO, "Input/output error")
        sync(number)

    def move(source: Any, target: Any, **more: Any) -> None:
        steps.append(("rename", Path(target)))
        rename(source, target, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", move)
    monkeypatch.setattr(os, "replace", move)
    return steps


def test_files_directories_manifest_and_name_reach_the_disk_in_this_order(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    steps = recorded(monkeypatch)

    made = execute.execute(CLEAN, recipe, {}, (), str(out))

    files = [partial / name for name in made.manifest.files]
    folders = [partial, *{file.parent for file in files}]
    sealed, named = steps.index(("rename", partial / "manifest.json")), steps.index(("rename", out))
    drafts = (step == "sync" and path.match(f"{partial}/.manifest.json.*") for step, path in steps)
    draft = [*drafts].index(True)
    first = [steps.index(("sync", file)) for file in files]
    then = [steps.index(("sync", folder)) for folder in folders]
    assert max(first) < min(then)
    assert max(then) < draft < sealed < named
    assert ("sync", partial) in steps[sealed:named]
    assert steps[named + 1] == ("sync", tmp_path)


@pytest.mark.parametrize("every", [slow(4), matrix(1)])
def test_a_disk_that_fails_at_any_sync_leaves_nothing_that_looks_whole(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    every: int,
) -> None:
    steps = recorded(monkeypatch)
    execute.execute(CLEAN, recipe, {}, (), str(tmp_path / "sound/out"))
    num_syncs = len([step for step, _ in steps if step == "sync"])
    monkeypatch.undo()
    monkeypatch.setenv("ANADIL_LOG", "")

    for number in range(num_syncs, 0, -every):
        out = tmp_path / f"at-{number}/out"
        with pytest.MonkeyPatch.context() as patch:
            recorded(patch, lambda at, _, number=number: at == number)  # type: ignore[misc]  # mypy takes no defaults
            code = exit_code_of(lambda out=out: bool(execute.execute(CLEAN, recipe, {}, (), str(out))))  # type: ignore[misc]

        assert code == 138
        assert not Path(f"{out}.partial").exists()
        # The last sync is that of the name; what has it was synced before.
        assert out.exists() == (number == num_syncs)
        assert "Traceback" not in capsys.readouterr().err
        assert fetch(execute.execute(CLEAN, recipe, {}, (), str(out)).uri, "corpus")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)

    with lease.locked(tmp_path / "work"):
        pass

    assert "this file system has no locks" in caplog.text


def test_the_lock_of_a_killed_process_is_free_and_other_users_may_ask_for_it(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from anadil.artifacts import lease\n"
        "with lease.locked(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)

    assert (tmp_path / "lock").stat().st_mode & 0o666 == 0o666
    assert not lease.is_held(tmp_path)
    with lease.locked(tmp_path):
        assert lease.is_held(tmp_path)


PROCESSES, TURNS = 6, 60


def _take_turns(work: Path, mark: Path) -> None:
    for turn in range(TURNS):
        with lease.locked(work):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # two at once cannot both make it
            (work / "checkpoints").mkdir()
            mark.unlink()
            if turn % 2:
                lease.clear(work)  # as a run does that is done
            else:
                (work / "checkpoints").rmdir()


def _ask(work: Path, _mark: Path) -> None:
    for _ in range(TURNS * 10):
        lease.is_held(work)


def test_one_process_at_a_time_is_at_work_however_often_the_directory_goes_and_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _seconds: sleep(0.0005))
    work, children = tmp_path / "runs" / "work", []
    for number in range(PROCESSES):
        child = os.fork()
        if not child:
            status = 1
            try:
                (_ask if number % 3 == 2 else _take_turns)(work, tmp_path / "mark")
                status = 0
            finally:
                os._exit(status)
        children.append(child)

    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    assert codes == [0] * PROCESSES
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_directory_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, is_dir = tmp_path / "work", Path.is_dir
    seen: list[Path] = []
    work.mkdir()

    def gone(path: Path) -> bool:
        if path == work and not seen:
            seen.append(path)
            work.rmdir()  # between the call that says that it is there and the look at what it is
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", gone)

    with lease.locked(work):
        assert lease.is_held(work)
    assert seen


def test_the_lock_of_the_next_process_stays_when_this_one_ends(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with lease.locked(work):
        (work / "lock").unlink()  # as by hand
        next_one = lease.locked(work)
        next_one.__enter__()

    assert lease.is_held(work)
    next_one.__exit__(None, None, None)
    assert not work.exists()


def test_clearing_leaves_the_lock_and_nothing_else(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with lease.locked(work):
        (work / "checkpoints" / "step-1").mkdir(parents=True)
        (work / "training.jsonl").touch()
        (work / "link").symlink_to(elsewhere)

        lease.clear(work)

        assert [path.name for path in work.iterdir()] == ["lock"]
        assert lease.is_held(work)
    assert elsewhere.is_dir()


def test_many_who_ask_at_once_are_none_at_work(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()  # of a process that was killed
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda: answers.extend(lease.is_held(tmp_path) for _ in range(200)))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [False] * 800


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(PreflightError, match=r"file/work: no directory can be made there .*choose another"):
        lease.locked(tmp_path / "file/work").__enter__()


def test_a_mount_that_has_gone_fails_nothing_that_is_finished_and_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = lease.FileLease(str(tmp_path / "lock"))
    first.acquire()

    def gone(*_: object) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os.path, "samestat", gone)
        first.release()

    lease.FileLease(str(tmp_path / "lock")).acquire()
    assert "not given back ([Errno 116] Stale file handle)" in caplog.text


def test_a_mount_without_modes_keeps_its_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_modes(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "fchmod", no_modes)
    first = lease.FileLease(str(tmp_path / "lock"))
    first.acquire()

    with pytest.raises(lease.Taken):
        lease.FileLease(str(tmp_path / "lock")).acquire()


def test_a_mount_that_cannot_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", damaged)

    with pytest.raises(PreflightError, match=r"lock: cannot be locked .*Input/output.*; choose another"):
        lease.FileLease(str(tmp_path / "lock")).acquire()
