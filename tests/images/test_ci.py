"""images/ci.sh on a clone that nobody has set up."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.files import FOLDER

PLAIN = ("sh", "date", "mktemp", "rm", "dirname", "cat", "tail", "mkdir", "chmod", "touch")


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone on a machine whose builders only note that they were called, and cannot run containers."""
    made = tmp_path / "clone"
    (made / "images").mkdir(parents=True)
    shutil.copy(FOLDER / "ci.sh", made / "images")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in PLAIN:
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    for name in ("podman", "runc", "debootstrap", "apt-get"):
        script(tools / name, f'echo "{name} $*" >> "{tmp_path}/called"\n[ "$1" = info ] || exit 1')
    script(tools / "python3", "exit 0")
    return made


def run(clone: Path) -> "subprocess.CompletedProcess[str]":
    tools = clone.parent / "bin"
    return subprocess.run(
        [str(tools / "sh"), "images/ci.sh"],
        cwd=clone, env={**os.environ, "PATH": str(tools)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_what_sets_up_the_environment_is_asked_for_before_any_work(clone: Path) -> None:
    done = run(clone)

    assert done.returncode == 4
    assert "apt-get install -y make python3-venv && make .venv/installed-dev" in done.stderr
    assert not (clone.parent / "called").exists()


def test_a_fresh_clone_is_set_up_before_images_are_built(clone: Path) -> None:
    make = 'echo "make $*" >> ../called\nmkdir -p .venv/bin\nfor each in python pytest anadil; do\n'
    script(clone.parent / "bin/make", f"{make}touch .venv/bin/$each; chmod +x .venv/bin/$each\ndone")

    run(clone)

    called = (clone.parent / "called").read_text().splitlines()
    assert called[:3] == [
        "podman info",
        "make .venv/installed-dev",
        "podman image exists localhost/anadil/base:bookworm",
    ]
