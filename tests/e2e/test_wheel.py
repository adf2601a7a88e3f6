"""The wheel, installed into an environment of its own and run in an empty directory: what people without a clone have."""

import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from tests.kit.visit_pages import visit_pages
from tests.kit.watching import put_record, put_training

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SOURCES = (("components/", ""), ("pipelines/", ""), ("recipes/", "anadil/recipes/"))
"""Directory of the checkout -> the one of the wheel."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([ROOT / "scripts/wheel_environment.sh", folder], check=True)
    return folder


def anadil(installed: Path, place: Path, *words: str) -> str:
    command = [str(installed / "env/bin/anadil"), *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.matrix
def test_the_wheel_holds_every_file_of_the_program(installed: Path) -> None:
    (wheel,) = (installed / "wheel").glob("anadil-*.whl")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    ours = {
        path.replace(folder, other, 1)
        for path in listed
        for folder, other in SOURCES
        if (
            path.startswith(folder)
            and (ROOT / path).is_file()
            and "/" in path.removeprefix(folder).removesuffix(".yaml")
        )
        or (path.startswith("recipes/") and folder == "recipes/")
    }

    with zipfile.ZipFile(wheel) as archive:
        assert not ours - set(archive.namelist())


@pytest.mark.matrix
def test_the_program_and_its_pages_work_from_the_wheel_in_an_empty_directory(
    installed: Path, tmp_path: Path
) -> None:
    """The whole built-in run from the wheel is the demo of `.ci/run`."""
    where = anadil(installed, tmp_path, "--version")
    recipes = anadil(installed, tmp_path, "recipe", "list")
    anadil(installed, tmp_path, "recipe", "copy", "smoke", "my.yaml")
    anadil(installed, tmp_path, "recipe", "check", "my.yaml")
    anadil(installed, tmp_path, "plan", "azerbaijani-1b")
    put_training(tmp_path / "work", put_record(tmp_path / "work"))
    pages = visit_pages([str(installed / "env/bin/anadil")], str(tmp_path / "work"))

    assert where.startswith("anadil ")
    assert {"own", "smoke"} <= {line.split()[0] for line in recipes.splitlines() if line.strip()}
    assert {path for path, is_there in pages.items() if is_there} >= {
        "/",
        "/run/N",
        "/style.css",
        "/watch.js",
    }
    script = "import anadil; print(anadil.__file__)"
    place = subprocess.run(
        [str(installed / "env/bin/python"), "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert place.startswith(str(installed))


def test_without_an_extra_the_program_works_or_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    (wheel,) = (installed / "wheel").glob("anadil-*.whl")
    venv.create(tmp_path / "bare/env", with_pip=True)
    pip = [
        str(tmp_path / "bare/env/bin/pip"),
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(pip, check=True)

    for words in ("--help", "recipe check smoke", "plan smoke"):
        anadil(tmp_path / "bare", tmp_path, *words.split())
    for words, extra in (("run smoke", "laptop"), ("doctor", "laptop"), ("clean --self-test", "clean")):
        command = [str(tmp_path / "bare/env/bin/anadil"), *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

        said = done.stdout + done.stderr
        assert done.returncode == 4, said
        assert re.search(
            rf"not installed: .*\n?.* run /\S+ -m pip install '/\S+/anadil-\S+\.whl\[{extra}\]'", said
        ), said
        assert "Traceback" not in said
