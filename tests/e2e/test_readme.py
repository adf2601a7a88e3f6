import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anadil.cli.main import command_parser, main
from anadil.core.stages import STAGES
from check_readme import README, missing_figures
from tests.kit.page_commands import commands, lines

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*/**/README.md")),
]
PAGES = [page for page in dict.fromkeys(PAGES) if ".venv" not in page.parts]


def test_the_first_command_is_the_demo_and_make_knows_every_target() -> None:
    asked = [line for line in lines(ROOT / "README.md") if line.startswith("make ")]

    assert asked[0] == "make demo"
    for line in asked:
        done = subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_ci_runs_the_demo_and_the_tests_that_the_readme_names() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")

    assert re.search(r"^ *make demo\b", script, re.MULTILINE)
    assert re.search(r"^make test\b", script, re.MULTILINE)


def test_a_figure_of_the_readme_that_the_demo_does_not_show_fails_ci() -> None:
    seen: dict[str, Any] = {
        "exact": 25 / 32,
        "asked": 32,
        "exact_by_file": {"questions": [25, 25], "chats": [0, 7]},
    }
    candidates: dict[str, dict[str, Any]] = {
        "base": {"bits_per_byte": 5.0, "fertility": 6.24, "words_in_context": 20, "retained": {"en": 3.25}},
        "adapted": {
            "bits_per_byte": 2.36,
            "fertility": 2.22,
            "words_in_context": 57,
            "retained": {"en": 2.72},
        },
        "finetuned": {
            "bits_per_byte": 4.35,
            "questions": {"exact": 28 / 36, "asked": 36},
            "seen_questions": seen,
        },
    }
    text = README.read_text(encoding="utf-8")
    assert missing_figures(text, {"candidates": candidates}, 45_508) == []

    candidates["adapted"]["fertility"], seen["exact_by_file"]["questions"] = 2.3, [24, 25]

    assert missing_figures(text, {"candidates": candidates}, 45_508) == [
        "tokens per word (lower is better): the run shows 6.24, 2.30", "24 of 25 of `questions`",
    ]  # fmt: skip
    assert "scripts/check_readme.py" in (ROOT / ".ci/run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anadil_command_is_one_that_the_program_takes(page: Path) -> None:
    if page.name == "CONTRIBUTING.md":  # tests/test_contributing.py runs its own
        return
    for words in (words for line in lines(page) for words in commands(line)):
        if words[0] == "anadil" and words[1] not in STAGES:
            command_parser(words[1]).parse_args(words[1:])


def test_the_newcomers_commands_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [words for line in lines(ROOT / "README.md") for words in commands(line)]
    run = [words for program, *words in found if program == "anadil"]

    codes = {words[0] + " " + words[1]: main(words) for words in run if words[0] in ("recipe", "compile")}

    assert codes == {"recipe copy": 0, "recipe check": 0, "compile cluster.yaml": 0}
    assert (tmp_path / "pipeline.yaml").is_file()
    assert "my.yaml" in capsys.readouterr().out
