"""An artifact on a disk: what reaches it in which order, and what a disk that fails leaves behind."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import lease
from anadil.artifacts.prefetch import fetch
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.termination import exit_code_of

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


@pytest.mark.slow
def test_a_disk_that_fails_at_any_sync_leaves_nothing_that_looks_whole(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = recorded(monkeypatch)
    execute.execute(CLEAN, recipe, {}, (), str(tmp_path / "sound/out"))
    num_syncs = len([step for step, _ in steps if step == "sync"])
    monkeypatch.undo()
    monkeypatch.setenv("ANADIL_LOG", "")

    for number in range(1, num_syncs + 1):
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
