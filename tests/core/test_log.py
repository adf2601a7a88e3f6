import json
import logging
import sys
from typing import Any

import pytest

from anadil.core import log as logs
from anadil.core.errors import DataError
from anadil.core.progress import SECONDS_BETWEEN_LINES, progress, track
from anadil.runtime.termination import exit_code_of

log = logging.getLogger("anadil.example")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    printed = capsys.readouterr()
    assert printed.out == ""
    return [json.loads(line) for line in printed.err.splitlines()]


def test_a_container_speaks_json_one_line_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean", container=True)

    log.info("iki sətir\nvə %d sənəd", 3, extra={"figures": {"kept": 3}})

    [line] = lines(capsys)
    assert list(line) == ["ts", "level", "stage", "rank", "msg", "figures"]
    assert line["ts"].endswith("Z")
    assert (line["level"], line["stage"], line["rank"]) == ("info", "clean", 0)
    assert line["msg"] == "iki sətir\nvə 3 sənəd"
    assert line["figures"] == {"kept": 3}


def test_a_failure_in_json_has_type_and_stack(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean", container=True)

    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("bug")

    [line] = lines(capsys)
    assert line["err"]["type"] == "ZeroDivisionError"
    assert "Traceback" in line["err"]["stack"]


@pytest.mark.parametrize("letter", ["a", "ə", "\n", "\x01", "\U0001f600"])
def test_no_line_is_longer_than_a_container_runtime_takes(
    capsys: pytest.CaptureFixture[str], letter: str
) -> None:
    logs.set_up("clean", container=True)

    try:
        raise ValueError(letter * 30_000)
    except ValueError:
        log.exception("%s", letter * 30_000)

    text = capsys.readouterr().err
    assert len(text.encode()) <= 16_384
    assert json.loads(text)["msg"].startswith(letter)


def test_a_person_reads_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean")

    log.info("3 documents")
    log.warning("one is empty")

    assert capsys.readouterr().err == "clean: 3 documents\nclean: warning: one is empty\n"


@pytest.mark.parametrize(("wish", "container"), [("json", False), ("text", True)])
def test_the_environment_chooses_the_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wish: str, container: bool
) -> None:
    monkeypatch.setenv("ANADIL_LOG", wish)
    logs.set_up("clean", container=container)

    log.info("hello")

    assert capsys.readouterr().err.startswith("{" if wish == "json" else "clean: hello")


@pytest.mark.parametrize("container", [True, False])
def test_secrets_are_masked_in_messages_and_in_tracebacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, container: bool
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("HF_TOKEN", "hf_opensesame")
    logs.set_up("clean", container=container)

    try:
        raise ValueError("key wJalrXUtnFEMI at http://me:hunter2@mlflow:5000/api")
    except ValueError:
        log.exception("cannot use %s", "hf_opensesame")

    told = capsys.readouterr().err
    assert "cannot use ***" in told
    assert "http://me:***@mlflow:5000/api" in told
    for secret in ("wJalrXUtnFEMI", "hf_opensesame", "hunter2"):
        assert secret not in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://ana:pa/ss@w@db:5432/x", "postgresql://ana:***@db:5432/x"),
        ("mysql+pymysql://ana:12/3@db/x", "mysql+pymysql://ana:***@db/x"),
        ("https://ana:p/w@host:5000/x", "https://ana:***@host:5000/x"),
        ('{"uri":"https://ana:pw@host","mail":"a@b"}', '{"uri":"https://ana:***@host","mail":"a@b"}'),
        *(
            (text, text)
            for text in ("http://host:5000/models@champion", "s3://bucket/a@b", "ftp://me@host/x:y", "a: b@c")
        ),
    ],
)
def test_a_password_ends_at_the_last_at_sign(text: str, expected: str) -> None:
    assert logs.masked(text) == expected


def test_a_library_s_line_for_each_retry_is_for_verbose_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        logs.set_up("launch", verbose=verbose)
        logging.getLogger("urllib3.connectionpool").warning("Retrying (Retry(total=3))")

    assert capsys.readouterr().err.count("Retrying") == 1


def test_other_ranks_only_warn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    logs.set_up("pretrain", container=True)

    log.info("quiet")
    log.warning("loud")

    [line] = lines(capsys)
    assert (line["rank"], line["msg"]) == (2, "loud")


def test_progress_without_a_terminal_is_a_line_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 100.0
    monkeypatch.setattr("anadil.core.progress.time.monotonic", lambda: moment)
    caplog.set_level("INFO")

    with progress("clean", total=1_000) as shown:
        for _ in range(500):
            shown.advance()
        moment += SECONDS_BETWEEN_LINES
        shown.advance(note="loss 2.31")
        shown.advance()

    assert [record.getMessage() for record in caplog.records] == [
        "clean: 501 of 1,000, 9.96 s left, loss 2.31"
    ]


def test_no_time_is_reckoned_before_the_first_item(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = 0.0
    monkeypatch.setattr("anadil.core.progress.time.monotonic", lambda: moment)

    with caplog.at_level(logging.INFO), progress("shards", total=2) as shown:
        moment = SECONDS_BETWEEN_LINES
        shown.advance(0)

    assert caplog.messages == ["shards: 0 of 2"]


def test_time_left_is_reckoned_from_where_a_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moment = 0.0
    monkeypatch.setattr("anadil.core.progress.time.monotonic", lambda: moment)

    with caplog.at_level(logging.INFO), progress("pre-training", total=20_000) as shown:
        shown.begin(15_000)
        for _ in range(10):
            shown.begin(shown.done)  # a loop that goes on where it is begins nothing
            moment += 2.5
            shown.advance()

    assert caplog.messages[-1] == "pre-training: 15,008 of 20,000, 3 h 28 min left"


def test_progress_on_a_terminal_is_a_bar_of_the_first_rank_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("RANK", "1")

    assert list(track("ab", "letters", total=2)) == ["a", "b"]
    assert capsys.readouterr().err == ""


SPOILT = "data/\x1b[2J\x9b31m\r\nanadil: done\x85.jsonl"
SHOWN = r"data/\x1b[2J\x9b31m\r\nanadil: done\x85.jsonl"


def test_a_name_of_a_file_neither_steers_the_terminal_nor_begins_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_up("clean")

    log.warning("%s: 2 mistakes\n  %s: is empty\n  line 2: \u0259", SPOILT, SPOILT)

    told = capsys.readouterr().err
    assert told == f"clean: warning: {SHOWN}: 2 mistakes\n  {SHOWN}: is empty\n  line 2: \u0259\n"


def test_lines_of_a_library_become_one_and_no_written_line_feed(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean")

    def read() -> int:
        try:
            raise ValueError("401\nAsk for access\n\nOr log in")
        except ValueError as error:
            log.warning("left out: %s", error)
            raise DataError(f"{SPOILT}: cannot be read ({error}); fetch it") from None

    def check() -> int:
        try:
            raise ValueError("\n")
        except ValueError as error:
            raise DataError("r.yaml: 1 mistake\n  seed: is not a number") from error

    assert exit_code_of(read) == exit_code_of(check) == DataError.exit_code
    assert capsys.readouterr().err.splitlines() == [
        "clean: warning: left out: 401 Ask for access Or log in",
        f"clean: error: {SHOWN}: cannot be read (401 Ask for access Or log in); fetch it",
        "clean: error: r.yaml: 1 mistake",
        "  seed: is not a number",
    ]


def test_a_traceback_begins_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("clean")

    try:
        raise ValueError(f"{SPOILT}\n\nand more")
    except ValueError:
        log.exception("bug")

    first, *others = capsys.readouterr().err.splitlines()
    assert first == "clean: error: bug"
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_a_line_of_json_holds_no_control_character_and_the_whole_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_up("clean", container=True)

    log.info("%s", SPOILT)

    text = capsys.readouterr().err
    assert text[:-1].isprintable()
    assert json.loads(text)["msg"] == SPOILT
