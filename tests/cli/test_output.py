import json

import pytest

from anadil.cli.output import print_json, print_lines, print_table
from anadil.core.table import Table
from anadil.launch.job import format_log_line
from anadil.runtime.check import CheckResult

NAME = "a\x1b]0;owned\x07\nok\x9b2K"
SHOWN = r"a\x1b]0;owned\x07\nok\x9b2K"


def test_what_is_printed_for_people_shows_control_characters_of_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table({"source": NAME, "verdict": "kept"}, "table")
    print_lines(Table("", ("run", "state"), [(NAME, "done")], words=(1,)).lines())
    print_lines(CheckResult(name="base", status="failed", detail=NAME, remedy="buy\n  sell").as_lines())
    print_lines([format_log_line(NAME)])

    assert capsys.readouterr().out.split("\n") == [
        f"source   {SHOWN}",
        "verdict  kept",
        "run" + " " * (len(SHOWN) - 1) + "state",
        f"{SHOWN}  done",
        f"FAILED   base: {SHOWN}",
        "         -> buy",
        "  sell",
        SHOWN,
        "",
    ]


def test_json_keeps_the_value_and_shows_what_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"source": NAME})

    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"source": NAME}


def test_a_line_of_a_job_is_shown_with_its_own_lines_only() -> None:
    line = json.dumps({"level": "error", "stage": "clean", "msg": f"2 mistakes\n  {NAME}\n  b"})

    assert format_log_line(line) == f"clean: error: 2 mistakes\n  {SHOWN}\n  b"
