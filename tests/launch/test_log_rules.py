"""The patterns against lines that the program's own formatter writes.

tests/pretrain/test_log_rules.py has the log of a whole run.
"""

import logging
import re

import pytest

from anadil.core import log as logs
from anadil.core import progress
from anadil.launch.manifests.log_rules import log_rules
from anadil.runtime import execute

log = logging.getLogger("anadil.example")


def found(stage: str, rule: str, lines: list[str]) -> list[str]:
    """What the pattern of a rule takes out of each line that it matches."""
    pattern = next(each["logPattern"] for each in log_rules(stage) if each["name"] == rule)
    hits = [match for line in lines if (match := re.search(pattern, line))]
    return [hit[1] if hit.re.groups else hit[0] for hit in hits]


@pytest.mark.parametrize(("stage", "what"), [("pretrain", "pre-training"), ("finetune", "finetune")])
def test_steps_are_progress_and_tell_their_loss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stage: str, what: str
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    logs.set_up(stage, container=True)
    with progress.progress(what, 75_000) as shown:
        shown.advance(1_034)
        shown.advance(note=f"loss {1.23456:.3f}")
        shown.advance(note=f"loss {float('nan'):.3f}")

    # hyperpodrun puts the rank before each line.
    lines = [f"[default0]:{line}" for line in capsys.readouterr().err.splitlines()]

    assert len(lines) == 3
    assert len(found(stage, "progress", lines)) == 3
    assert found(stage, "loss", lines) == ["1.235"]  # no number, nothing to compare
    assert found("another", "progress", lines) == []


def test_a_loop_of_unknown_length_is_progress_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    logs.set_up("pretrain", container=True)
    list(progress.track(range(2), "encoding documents"))

    lines = capsys.readouterr().err.splitlines()

    assert len(found("pretrain", "progress", lines)) == 2


def test_other_lines_are_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("pretrain", container=True)
    log.info("phase %s trains %s: %s parameters, %s steps, learning rate %g", 1, "all", "1,234", "300", 0.1)
    log.info("embeddings: %s rows, %s of them means of several base rows", "300", "12")
    log.warning("s3://b/k: 3 of 10, and so on")

    lines = capsys.readouterr().err.splitlines()

    assert found("pretrain", "progress", lines[:2]) == found("pretrain", "loss", lines) == []


def test_the_last_line_of_a_stage_ends_the_watch(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("pretrain", container=True)
    execute._say_figures({"steps": 360, "loss": 2.31, "seconds": 12.0})

    [line] = capsys.readouterr().err.splitlines()

    assert all(re.search(rule["stopPattern"], line) for rule in log_rules("pretrain"))
    assert found("pretrain", "progress", [line]) == []


def test_a_pattern_has_one_group_where_a_number_is_compared_and_none_elsewhere() -> None:
    for rule in log_rules("pretrain"):
        groups = re.compile(rule["logPattern"]).groups

        assert groups == ("metricThreshold" in rule)
        # HyperPod's operator is written in Go, whose patterns know no look-around.
        assert not re.search(r"\(\?[=!<]", rule["logPattern"])
