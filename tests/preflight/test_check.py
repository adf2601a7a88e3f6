"""One record of a check, and the two ways to run a list of them."""

import logging
from collections.abc import Iterator

import pytest

from anadil.core.errors import DataError, PreflightError
from anadil.core.stages import FLOW
from anadil.preflight.check import Check, CheckResult, failed, passed, refuse, report
from anadil.preflight.checks import CHECKS, EVERY, RECIPE

Checks = tuple[Check[str], ...]


def torn(subject: str) -> Iterator[CheckResult]:
    raise DataError(f"files: {subject} is torn; fetch it again")
    yield


def cost(_: str) -> Iterator[CheckResult]:
    yield passed("cost", "4 GiB")


ALL: Checks = (Check(name="files", function=torn), Check(name="cost", needs=("files",), function=cost))


def test_one_cause_is_reported_once() -> None:
    first, second = report(ALL, "a.jsonl")

    assert (first.status, first.detail, first.remedy) == ("failed", "a.jsonl is torn", "fetch it again")
    assert (second.status, second.detail) == ("skipped", "needs files, which failed")


def test_the_first_failure_is_raised_as_it_is() -> None:
    with pytest.raises(DataError, match=r"^files: a.jsonl is torn; fetch it again$"):
        refuse(ALL, "a.jsonl")


def test_a_failed_result_is_raised_with_its_remedy() -> None:
    full: Checks = (Check(name="disk", function=lambda _: [failed("disk", "0 B free", "free 2 GiB")]),)

    with pytest.raises(PreflightError, match="disk: 0 B free; free 2 GiB"):
        refuse(full, "")


def test_a_dry_run_warns_of_every_failure(caplog: pytest.LogCaptureFixture) -> None:
    refuse((*ALL, Check(name="cost", function=cost, level=logging.WARNING)), "a.jsonl", dry=True)

    assert caplog.messages == ["would be refused: files: a.jsonl is torn; fetch it again", "cost: 4 GiB"]


def test_an_answer_that_cannot_be_read_is_a_bug_but_for_servers() -> None:
    def read(_: str) -> Iterator[CheckResult]:
        raise KeyError("version")
        yield

    [result] = report((Check(name="api", function=read, seconds=5.0),), "")

    assert "cannot be read (KeyError('version'))" in result.detail
    with pytest.raises(KeyError):
        report((Check(name="api", function=read),), "")


def test_every_command_checks_the_files_of_every_stage() -> None:
    files = {check.name: check.by for check in CHECKS if check.name in {stage.files for stage in FLOW}}

    assert files == {stage.files: EVERY for stage in FLOW if stage.files}
    assert {each.name for each in CHECKS if RECIPE in each.by} == {"base.model", "evaluate.tasks"}
