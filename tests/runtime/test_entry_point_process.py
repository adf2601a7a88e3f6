import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.artifacts import artifact, lease
from anadil.core import log as logs
from anadil.core.errors import DataError, RetryableError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import entry_point, environment, execute, termination
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit.harness import CLEAN, COMMAND, PATIENCE_S, again, arguments, partials, start, wait_for
from tests.kit.marks import matrix


@pytest.fixture
def large(recipe: Recipe, raw: Path, tmp_path: Path) -> Recipe:
    """A recipe whose cleaning takes long enough to be stopped in the middle."""
    lines = raw.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "large.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(300):
            for line in lines:
                data = json.loads(line)
                words = data["text"].split()
                turn = number * 7 % len(words)
                file.write(json.dumps({"text": " ".join(words[turn:] + words[:turn])}) + "\n")
    return again(recipe, f"clean.inputs=['{path}']")


def test_who_waits_too_long_for_another_process_says_so(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PATIENCE_S", 0.1)
    out = tmp_path / "out"

    # A cluster tries it again: by then the other one may be done.
    with lease.locked(tmp_path / "out.work"), pytest.raises(RetryableError) as caught:
        execute.execute(CLEAN, recipe, {}, (), str(out))

    assert "another process makes this artifact; wait for it or stop it" in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM; run the same command again to resume"),
        matrix(signal.SIGINT, 130, "interrupted; run the same command again to resume"),
    ],
)
def test_a_signal_ends_a_stage_cleanly(
    large: Recipe, tmp_path: Path, number: int, code: int, words: str
) -> None:
    process = start(*arguments(large, tmp_path))
    wait_for(lambda: bool(partials(tmp_path, "shard-*")))

    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == code
    assert words in err
    assert "Traceback" not in err
    assert not partials(tmp_path)
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_killed_stage_leaves_nothing_that_looks_whole(
    large: Recipe, recipe: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*arguments(large, tmp_path), "--out", str(out), start_new_session=True)
    wait_for(lambda: bool(partials(tmp_path)))

    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)

    assert not out.exists()
    assert artifact.read_manifest(f"{out}.partial") is None
    assert execute.execute(CLEAN, recipe, {}, (), str(out)).uri == str(out)
    assert not partials(tmp_path)


def test_a_full_disk_is_told_as_such_and_the_next_run_goes_on(recipe: Recipe, tmp_path: Path) -> None:
    # A limit on the size of files gives EFBIG where a full disk gives ENOSPC.
    shell = f"ulimit -f 4; exec {' '.join([*COMMAND, *arguments(recipe, tmp_path)])}"
    done = subprocess.run(
        ["/bin/sh", "-c", shell], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 4
    place = rf"{tmp_path}/\S+\.partial"
    assert re.search(
        rf"disk full: .*, while writing {place}; free space, or choose another --out or storage\.root",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("manifest.json"))
    assert execute.execute(CLEAN, recipe, {}, (), None).manifest.files


def guarded(error: BaseException) -> int:
    def work() -> int:
        raise error

    return termination.exit_code_of(work)


def test_a_bug_has_a_traceback_and_exit_code_70(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean")

    assert guarded(ZeroDivisionError("division by zero")) == 70

    told = capsys.readouterr().err
    assert "Traceback (most recent call last)" in told
    assert "ZeroDivisionError: division by zero" in told


def wrapped(error: OSError) -> Exception:
    """As libraries hide what the system said."""
    try:
        try:
            raise error
        except OSError:
            raise ValueError("could not save") from None
    except ValueError as outer:
        middle = RuntimeError("saving failed")
        middle.__context__ = outer
        outer.__cause__ = error
        return middle


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 4, "disk full"),
        (RuntimeError("PyTorchStreamWriter: No space left on device"), 4, "disk full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 4, "disk full"),
        (
            RuntimeError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
            4,
            "disk full",
        ),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
            4,
            "disk full, most likely: a file could not be written whole",
        ),
        (OSError("1000 requested and 24 written"), 4, "disk full, most likely"),
        (wrapped(OSError(errno.ENOSPC, "No space left on device", "/x")), 4, "disk full"),
        (OSError(errno.EIO, "Input/output error", "/x"), 138, "run the same command again"),
        (wrapped(OSError(errno.ESTALE, "Stale file handle", "/x")), 138, "the disk or the way to it failed"),
        (RuntimeError("I/O error: Input/output error (os error 5)"), 138, "kernel log"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), 4, "Permission denied: '/etc/x'"),
        (OSError(errno.EROFS, "Read-only file system", "/x"), 4, "choose another place"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (DataError("raw is empty"), 3, "raw is empty"),
    ],
)
def test_a_foreseen_failure_has_one_line_and_its_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, words: str
) -> None:
    logs.set_up("clean")

    assert guarded(error) == code

    told = capsys.readouterr().err
    assert words in told
    assert told.startswith("clean: error: ")
    assert told.count("\n") == 1


def test_a_signal_among_the_last_words_is_no_bug() -> None:
    code = """
import os, signal
from anadil.runtime import termination
from anadil.runtime.signals import Stop

Stop().listen()
termination.sagemaker.tell_failure = lambda words: os.kill(os.getpid(), signal.SIGTERM)
termination.exit_code_of(lambda: os.kill(os.getpid(), signal.SIGTERM))
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == -signal.SIGTERM
    assert "Traceback" not in done.stderr


def test_the_last_words_are_left_for_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(termination, "TERMINATION_LOG", path)
    monkeypatch.setenv("MY_API_KEY", "opensesame")

    guarded(DataError("köhnə təndir opensesame " * 1000))

    assert path.stat().st_size < 4096
    words = json.loads(path.read_text())
    assert words["exit_code"] == 3
    assert words["message"].startswith("köhnə təndir ***")


def test_a_pipe_that_is_gone_is_no_failure() -> None:
    command = [sys.executable, "-m", "anadil", "recipe", "schema"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    process.stdout = None

    _, told = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0
    assert told == ""


def test_ranks_other_than_the_first_write_and_print_nothing(
    corpus: MadeArtifact,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "3")

    code = entry_point.main("clean", arguments(recipe, tmp_path))

    assert code == 0
    assert capsys.readouterr().out == ""


def test_a_stage_whose_parent_is_gone_does_not_start(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells a process of its parent's end")
    monkeypatch.setenv(environment.PARENT_VARIABLE, "1" if os.getppid() != 1 else "2")
    command = [*COMMAND, *arguments(recipe, tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 143
    assert "the run that started this stage has ended" in done.stderr


@pytest.mark.parametrize(
    ("stage", "environment", "processes"),
    [
        ("clean", {}, 1),
        ("evaluate", {}, 1),
        ("pretrain", {}, 3),
        ("pretrain", {"CUDA_VISIBLE_DEVICES": ""}, 3),
        ("pretrain", {"RANK": "0"}, 1),
    ],
)
def test_only_training_starts_several_processes_and_only_once(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, stage: str, environment: dict[str, str], processes: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    many = again(recipe, "cluster.processes_per_node=3")

    assert entry_point._num_processes(STAGES[stage], many) == processes


@pytest.mark.parametrize("devices", ["", "-1"])
def test_hidden_gpus_start_no_processes(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, devices: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)

    assert entry_point._num_processes(STAGES["pretrain"], recipe) == 1
