"""Files and directories that are complete or absent, locks, attempts and commands: the one of each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from anadil.core.errors import DataError, RetryableError
from anadil.core.files import atomic_dir, atomic_file, file_lock, write_atomic
from anadil.core.json_text import (
    MAX_DEPTH,
    TooDeepError,
    json_lines,
    json_sha256,
    parse_json,
    parse_next,
    refuse_deep,
)
from anadil.core.processes import last_line, run_child
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
    assert caplog.messages == ["no answer; attempt 1 of 3", "the same again; attempt 2 of 3"]

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


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 200_000 + "]" * 200_000,
        '{"a":' * 200_000 + "1" + "}" * 200_000,
        '[{"a":' * 60 + "1" + "}]" * 60,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    ],
)
def test_what_nests_without_end_is_no_json(text: str) -> None:
    with pytest.raises(TooDeepError, match="nested too deep"):
        parse_json(text)
    with pytest.raises(TooDeepError):
        parse_json(text.encode())
    with pytest.raises(TooDeepError):
        parse_next(f"  {text} ", 2)


def test_a_wide_value_and_a_text_of_brackets_are_read() -> None:
    value = [[{"a": "[" * 1_000}] for _ in range(1_000)]
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH

    assert parse_json(json.dumps(value)) == value
    assert parse_next(json.dumps(value) + " rest", 0)[0] == value
    assert json.dumps(parse_json(deepest)) == deepest


def test_a_value_that_holds_itself_nests_without_end() -> None:
    itself: list[object] = []
    itself += [itself, itself, {"again": itself}]

    with pytest.raises(TooDeepError):
        refuse_deep(itself)


def test_a_key_given_twice_is_refused_only_where_asked() -> None:
    assert parse_json('{"a": 1, "a": 2}') == parse_json('{"a": 2, "a": 2}', no_twins=True) == {"a": 2}
    with pytest.raises(ValueError, match="key 'a' is given twice"):
        parse_json('[{"a": 1, "a": 2}]', no_twins=True)
