import json
import re
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from anadil import __version__
from anadil.core import build

LINE = re.compile(r"anadil (\S+) \(commit (\S+), digest ([0-9a-f]{12})\)")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose origin nothing names."""
    folder = tmp_path / "site-packages/anadil"
    folder.mkdir(parents=True)
    (folder / "run.py").write_text("pass\n", encoding="utf-8")
    monkeypatch.setattr(build, "PACKAGE", folder)
    monkeypatch.setattr(build, "CHECKOUT", tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: None))
    return folder


def parts() -> tuple[str, ...]:
    match = LINE.fullmatch(build.version_line())
    assert match
    return match.groups()


def test_two_installations_with_other_sources_have_other_digests(package: Path) -> None:
    first = parts()
    for name in ("recipes", "__pycache__"):  # a checkout has recipes elsewhere
        (package / name).mkdir()
        (package / name / f"a.{'yaml' if name == 'recipes' else 'pyc'}").touch()
    second = parts()
    pipelines = package.with_name("anadil_pipelines")
    pipelines.mkdir()
    (pipelines / "run.py").write_text("pass\n", encoding="utf-8")
    third = parts()
    (package / "run.py").write_text("raise\n", encoding="utf-8")

    assert first == second == (__version__, "unknown", first[2])
    assert len({first[2], third[2], parts()[2]}) == 3


def test_the_commit_is_that_of_the_release_or_of_pip(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = json.dumps(
        {"url": "https://git.example/a.git", "vcs_info": {"vcs": "git", "commit_id": "1f" * 20}}
    )
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))
    assert parts()[:2] == (__version__, "1f" * 6)

    stamp = {"version": "0.1.0+g2e", "commit": "2e" * 20}
    (package / "_build.json").write_text(json.dumps(stamp), encoding="utf-8")
    assert parts()[:2] == ("0.1.0+g2e", "2e" * 6)


def test_the_commit_of_a_checkout_is_gits_and_says_that_sources_changed(
    package: Path, tmp_path: Path
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Leyla", "-c", "user.email=leyla@example.org"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = parts()[1]
    (tmp_path / "components").mkdir()
    (tmp_path / "components/new.py").touch()

    assert re.fullmatch("[0-9a-f]{12}", commit)
    assert parts()[1] == f"{commit}-changed"
