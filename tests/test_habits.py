"""What carries the work on: CI's workflow, hooks before commits, forms of issues."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from generate import write_or_check

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yaml"))


def read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # `on` is no truth value


def test_the_workflow_runs_what_everybody_can_run() -> None:
    workflow = read(ROOT / ".github/workflows/ci.yaml")

    [job] = workflow["jobs"].values()
    runs = {step["run"]: step.get("if", "") for step in job["steps"] if ".ci/run" in step.get("run", "")}
    assert set(runs) == {".ci/run", ".ci/run --full"}
    assert "pull_request" in runs[".ci/run"]
    assert "schedule" in runs[".ci/run --full"]
    assert workflow["permissions"] == {"contents": "read"}


def test_a_full_run_of_ci_is_one_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert re.search(r"^ci-full:\n\t\.ci/run --full$", makefile, re.MULTILINE)


def test_hooks_run_the_programs_of_make_check_in_their_versions() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [repository] = read(ROOT / ".pre-commit-config.yaml")["repos"]

    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        program = " ".join(hook["entry"].split()[:2])
        assert program.startswith("make ") or program in makefile, hook["id"]


def test_a_script_is_a_command_from_anywhere(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts/make_stages.py", "--check"], cwd=tmp_path, check=True)


def test_a_check_of_generated_files_tells_which_differ_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other, missing = (tmp_path / name for name in ("same", "other", "missing"))
    same.write_text("text")
    other.write_text("old text")
    monkeypatch.setattr(sys, "argv", ["scripts/make_something.py", "--check"])

    assert write_or_check({same: lambda: "text"}) == 0
    assert write_or_check(dict.fromkeys((same, other, missing), lambda: "text")) == 1

    told = capsys.readouterr().err
    assert [line.partition(":")[0] for line in told.splitlines()] == [str(other), str(missing)]
    assert "run python scripts/make_something.py" in told
    assert other.read_text() == "old text"
    assert not missing.exists()


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_of_issues_asks_for_something(form: Path) -> None:
    content = read(form)

    assert {"name", "description", "body"} <= set(content)
    ids = [part["id"] for part in content["body"]]
    assert len(ids) == len(set(ids))
    assert any(part.get("validations", {}).get("required") == "true" for part in content["body"])


def test_what_agents_are_told_to_read_and_run_is_there() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w./-]+)\)", text)
    paths = re.findall(r"(?<![\w/.])(?:[\w-]+/)*[\w-]+(?:\.(?:py|md|json|toml)\b|/(?=[`,:\s]))", text)
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))

    places = (ROOT, ROOT / "components/anadil")
    missing = {path for path in (*links, *paths) if not any((place / path).exists() for place in places)}
    unknown = {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)}
    assert (missing, unknown) == (set(), set())
    assert len(paths) > 15
    assert {"test", "check", "golden"} <= targets


def test_the_rooms_that_agents_are_told_of_are_those_of_the_project() -> None:
    guide = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .partition("## Where things go")[2]
        .partition("\n## ")[0]
    )
    listed = {
        name for row in re.findall(r"^\| `(.+?)` \|", guide, re.MULTILINE) for name in row.split("`, `")
    }

    assert listed == {path.parent.name for path in (ROOT / "components/anadil").glob("*/__init__.py")}
