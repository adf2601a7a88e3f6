"""The log of a run as a file, beside stderr."""

import json
import logging
import os
from pathlib import Path

import pytest

from anadil.core import log as logs
from anadil.core import progress as bars


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_keeps_its_messages_in_a_file_that_its_steps_inherit(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with logs.run_log(str(path)):
        logging.getLogger("anadil.a").warning("Bakı, %s", "şəhər")
        assert os.environ[logs.RUN_LOG] == str(path)
    logging.getLogger("anadil.a").warning("later")

    assert [(line["level"], line["msg"]) for line in lines_of(path)] == [("warning", "Bakı, şəhər")]
    assert logs.RUN_LOG not in os.environ


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with logs.run_log(str(tmp_path / "no folder" / "log.jsonl")):
        logging.getLogger("anadil.a").warning("a message")


def test_the_file_tells_how_far_a_loop_is_also_where_a_bar_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bar:
        def add_task(self, *_: object, **__: object) -> int:
            return 0

        def update(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(bars, "SECONDS_BETWEEN_LINES", 0.0)
    path = tmp_path / "log.jsonl"
    with logs.run_log(str(path)):
        logs.set_up("pretrain")
        shown = bars.Progress("pre-training", 4, Bar())  # type: ignore[arg-type]
        shown.advance(2)
    logs.set_up()  # which closes the file

    [line] = lines_of(path)
    assert line["stage"] == "pretrain"
    assert isinstance(line["progress"], dict)
    assert {name: line["progress"][name] for name in ("what", "done", "total")} == {
        "what": "pre-training",
        "done": 2,
        "total": 4,
    }
    assert "pre-training" not in capsys.readouterr().err
