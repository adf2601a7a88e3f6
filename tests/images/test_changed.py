import subprocess
from pathlib import Path

import pytest

import changed_images
from anadil.core.stages import LAPTOP, STEP_IMAGES
from tests.images.files import NAMES

IN_ALL = set(STEP_IMAGES)
QUICK = {*NAMES} - {LAPTOP}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit on main."""
    monkeypatch.setattr(changed_images, "ROOT", tmp_path)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path, "README.md")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Leyla", "-c", "user.email=leyla@example.com")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True)


def commit(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", name)


def printed(capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert changed_images.main([]) == 0
    return set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("components/anadil/core/log.py", IN_ALL),
        (
            "components/anadil/model/loss.py",
            {"clean-ray", "tokenizer", "pretrain", "finetune", "tasks", "evaluate", "tools"},
        ),
        ("components/anadil/clean/run.py", {"clean", "clean-ray", "tools"}),
        ("components/anadil/launch/job.py", {"clean-ray", "tools"}),
        ("pipelines/anadil_pipelines/steps.py", {"pipelines"}),
        ("pyproject.toml", {*IN_ALL, "pipelines"}),
        ("images/build/install.sh", QUICK),
        ("images/locks/clean.txt", {"clean", "clean-ray"}),
        ("images/locks/engine-ray.txt", {"clean-ray"}),
        ("images/mlflow.Containerfile", {"mlflow"}),
        ("docs/guides/cluster.md", set()),
    ],
)
def test_a_file_touches_the_images_that_hold_it(path: str, expected: set[str]) -> None:
    assert changed_images.touched(path) == expected


def test_without_history_every_image_is_built(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys) == QUICK


def test_a_branch_is_compared_with_where_it_left_main(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(checkout, "checkout", "--quiet", "-b", "branch")
    commit(checkout, "components/anadil/clean/run.py")
    commit(checkout, "docs/page.md")

    assert printed(capsys) == {"clean", "clean-ray", "tools"}


def test_main_is_compared_with_the_commit_before_and_what_git_does_not_know_counts(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(checkout, "components/anadil/clean/run.py")
    commit(checkout, "docs/page.md")
    assert printed(capsys) == set()

    (checkout / "pyproject.toml").touch()

    assert printed(capsys) == {*IN_ALL, "pipelines"}
