"""Files and directories that are complete or absent, locks, attempts and commands: the one of each."""

import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from anadil.core.errors import DataError, RetryableError
from anadil.core.files import atomic_dir, atomic_file, file_lock, write_atomic
from anadil.core.json_text import json_lines, json_sha256
from anadil.core.processes import last_line, run_child, stop_child
from anadil.core.retry import retried


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file.txt"
    write_atomic(path, "Salam \ud800")

    with pytest.raises(FileNotFoundError), atomic_file(path) as draft:
        draft.write_bytes((tmp_path / "absent").read_bytes())

    assert path.read_text(encoding="utf-8") == "Salam ?"
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_appears_whole_and_the_first_one_stays(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with atomic_dir(tmp_path / "made") as draft:
            assert word == "second" or not (tmp_path / "made").exists()
            (draft / "word").write_text(word, encoding="utf-8")

    assert (tmp_path / "made" / "word").read_text(encoding="utf-8") == "first"
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


def test_a_held_lock_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"), pytest.raises(Timeout), file_lock(tmp_path / "lock", 0.01):
        pass

    with file_lock(tmp_path / "lock", 0):
        pass


def test_a_call_is_made_again_after_the_named_errors_only(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[Exception] = [RetryableError("no answer"), RetryableError("no answer")]

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retried(call, 3) == "done"
    assert caplog.messages == ["no answer; attempt 1 of 3", "no answer; attempt 2 of 3"]

    failures += [RetryableError("still none"), RetryableError("no answer")]
    with pytest.raises(RetryableError, match="still none"):
        retried(call, 2)

    failures += [DataError("damaged")]
    with pytest.raises(DataError):
        retried(call, 2)


def test_lines_of_json_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": "x\u2028y"}\n\n[1]\n{"to', encoding="utf-8")

    assert list(json_lines(tmp_path / "rows.jsonl", may_be_torn=True)) == [{"a": "x\u2028y"}, [1]]
    assert list(json_lines(b'1\n"b"')) == [1, "b"]
    with pytest.raises(ValueError, match="Unterminated"):
        list(json_lines('{"to'))


def test_equal_tables_have_equal_digests() -> None:
    assert json_sha256({"a": 1, "b": 2}) == json_sha256({"b": 2, "a": 1})
    assert json_sha256({"b": 2, "a": 1}, sort_keys=False) != json_sha256({"a": 1, "b": 2})


def test_a_command_gives_its_answer_its_error_or_is_stopped() -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit('log\\nerror: no')"

    done = run_child([sys.executable, "-c", code], 30, "Salam")

    assert (done.returncode, done.stdout, last_line(done.stderr)) == (1, "Salam\n", "error: no")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(sleep, 0.1)
    assert stop_child(subprocess.Popen(sleep), 10) == -15
