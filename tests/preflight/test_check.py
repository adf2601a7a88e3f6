"""One record of a check, and the two ways to run a list of them."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.core.errors import DataError, PreflightError
from anadil.core.stages import FLOW
from anadil.preflight.checks import CHECKS
from anadil.recipe.load import load_recipe
from anadil.runtime.check import EVERY, RECIPE, Check, CheckResult, passed, refuse, report
from anadil.tasks.check import TaskFiles, inspect_tasks

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
    files = {check.name: check.by for check in CHECKS if check.name in {stage.files.key for stage in FLOW}}

    assert files == {stage.files.key: EVERY for stage in FLOW if stage.files.key}
    assert {each.name for each in CHECKS if RECIPE in each.by} == {
        "addresses",
        "base.model",
        "clean.filters",
        "evaluate.refusals",
        "evaluate.tasks",
        "evaluate.votes",
        "tokenizer.trial",
    }


FILES = {
    "one.yaml": "task: one\ndataset_path: json\n",
    "group.yml": 'group: "all_of_them"  # a group\ntask:\n  - one\n  - two\n',
    "tagged.yaml": "include: one.yaml\ntask: two\ntag:\n  - exams\n",
    "words.yaml": "task: other\ndescription: one more task is three\n",
}


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A harness with a few tasks."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("anadil.tasks.check._harness", lambda: [tmp_path])
    return tmp_path


def test_tasks_groups_and_tags_are_found_and_words_in_a_description_are_not(harness: Path) -> None:
    names = ["one", "two", "all_of_them", "exams", "other", "three", "on"]

    assert set(names) - TaskFiles([harness]).own.keys() == {"three", "on"}


@pytest.mark.parametrize("name", ["code", "coded", "all_code"])
@pytest.mark.parametrize("code", [
    "import no_such", "def f():\n    from no_such.x import y", "from . import more", "from more import x", "import re, no_such",
    "try:\n    import no_such\nexcept ImportError:\n    raise", "from lm_eval.tasks.other import more", "from .more import x",
])  # fmt: skip
def test_a_task_whose_code_needs_what_is_not_there_is_refused_before_a_run(
    harness: Path, code: str, name: str
) -> None:
    (harness / "utils.py").write_text(
        "import nltk\nif __name__ == '__main__':\n    import bs4\ntry:\n    import jieba\nexcept ImportError:\n    pass\n"
    )
    for file in (
        harness / "lm_eval/tasks/other/more.py",
        harness / "lm_eval/tasks/t/more.py",
        harness / "lm_eval/tasks/t/utils.py",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code if file.name == "utils.py" else "import no_such.x")
    (harness / "lm_eval/tasks/t/_shared").write_text("doc_to_text: !function utils.x\n")
    (harness / "lm_eval/tasks/t/code.yaml").write_text("include: _shared\ntask: code\ntag: coded\n")
    (harness / "lm_eval/tasks/t/group.yaml").write_text(
        "group: all_code\ntask:\n  - task: code\n    num_fewshot: 3\n  - one\n"
    )
    (harness / "plain.yaml").write_text("task: plain\nprocess_docs: !function utils.x\n")
    recipe = load_recipe("smoke", [f"evaluate.tasks=[{name}]"])

    assert inspect_tasks(load_recipe("smoke", ["evaluate.tasks=[plain]"])).detail == "1 name of tasks found"
    for by, who in (
        ("submit", "the image of tasks"),
        ("run", "this machine"),
        ("recipe check", "the image of tasks"),
    ):
        with pytest.raises(
            PreflightError,
            match=f"evaluate.tasks: {name} needs no_such, which {who} does not hold; take {name} out",
        ):
            inspect_tasks(recipe, by)


def test_names_that_are_known_and_shipped_ones_pass(harness: Path) -> None:
    assert harness
    recipe = load_recipe("smoke", ["evaluate.tasks=[one, tumlu_azerbaijani]"])

    assert inspect_tasks(recipe).detail == "2 names of tasks found"


def test_without_the_harness_nothing_is_said_against_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.tasks.check._harness", list)

    found = inspect_tasks(load_recipe("smoke", ["evaluate.tasks=[no_such, tumlu_azerbaijani]"]))

    assert found.status == "skipped"
    assert found.detail == "no_such not looked up, because lm_eval is not installed here"


def test_a_name_that_a_task_file_of_the_recipe_may_hold_is_not_called_unknown(
    harness: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()

    found = inspect_tasks(load_recipe("smoke", [f"evaluate.tasks=[one, mine, {own}]"]))

    assert harness
    assert found.status == "skipped"
    assert found.detail == "mine: only a task file of the recipe may hold it"


@pytest.mark.matrix
def test_a_name_that_does_not_exist_is_refused_with_the_nearest_by_recipe_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval", reason="the extra tasks is not installed")
    file = tmp_path / "recipe.yaml"
    file.write_text("language: az\nevaluate: {tasks: [belebele_az_Latn]}\n")

    assert main.main(["recipe", "check", str(file)]) == 2
    said = capsys.readouterr().err
    assert "lm-evaluation-harness has no task 'belebele_az_Latn'; nearest: " in said
    assert "belebele_azj_Latn" in said
