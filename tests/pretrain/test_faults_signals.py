"""SIGTERM at every place of a run: it ends with 143, and goes on to the same losses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from anadil.errors import Stopped

from .fixtures import losses, make_corpus, make_model, make_recipe, make_tokenizer_artifact

PATIENCE_S = 180
PLACES = {
    "load": r"running: nothing to reuse",
    "data": r"documents, .* sequences of",
    "first step": r"phase 1 trains",
    "step": r"step=2 ",
    "save": r"step=3 ",
    "border": r"phase 2 trains",
    "later step": r"step=8 ",
    "last step": r"step=12 ",
}
"""What a run says before it does something, by what it does then."""


class Trained:
    """A folder with the inputs of a run, and what it did when nothing stopped it."""

    def __init__(self, folder: Path) -> None:
        make_corpus(folder / "corpus")
        make_tokenizer_artifact(folder / "tokenizer")
        recipe = make_recipe(make_model(folder / "model")).model_dump(mode="json")
        recipe["tracking"]["uri"] = "off"
        (folder / "recipe.yaml").write_text(json.dumps(recipe))
        self.folder = folder
        process = self.start("whole")
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        self.losses = losses(folder / "whole")

    def start(self, name: str, **environment: str) -> "subprocess.Popen[str]":
        """A run of the stage in a process of its own."""
        command = [sys.executable, "-m", "anadil.pretrain", "--recipe", str(self.folder / "recipe.yaml")]
        for word in ("corpus", "tokenizer"):
            command += [f"--{word}", str(self.folder / word)]
        return subprocess.Popen(
            [*command, "--out", str(self.folder / name)],
            env=os.environ | environment | {"OMP_NUM_THREADS": "1", "ANADIL_LOG": "json"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def resumed(self, name: str) -> str:
        """Run it to its end; what it says."""
        process = self.start(name)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        return said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trained once for all tests of this file."""
    return Trained(tmp_path_factory.mktemp("signals"))


def until(process: "subprocess.Popen[str]", pattern: str) -> str:
    """What the process has said when a line matches."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if re.search(pattern, line):
            return said
    pytest.fail(f"never said {pattern!r}: {said}")


def finished(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code, and the rest of what it says."""
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def errors(said: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [line for line in lines if line["level"] == "error"]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_sigterm_ends_with_143_and_the_run_goes_on_as_if_there_had_been_none(
    trained: Trained, place: str
) -> None:
    name = place.replace(" ", "-")
    process = trained.start(name)
    until(process, PLACES[place])

    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = finished(process)
    took = time.monotonic() - sent
    trained.resumed(name)

    print(f"{place}: {took:.2f} s from SIGTERM to the end")
    assert code == Stopped.exit_code, said
    assert [line["msg"] for line in errors(said)] == [
        "stopped by SIGTERM; run the same command again to go on"
    ]
    assert took < 60
    assert losses(trained.folder / name) == trained.losses


@pytest.mark.slow
@pytest.mark.parametrize(("section", "step"), [("optimizer", 5), ("save", 6)])
def test_sigterm_in_the_middle_of_a_section_waits_for_the_next_safe_point(
    trained: Trained, section: str, step: int
) -> None:
    fault, name = {"terminate": {"step": step, "section": section}}, f"inside-{section}"

    code, said = finished(trained.start(name, ANADIL_INJECT=json.dumps(fault)))
    trained.resumed(name)

    assert code == Stopped.exit_code, said
    assert f"terminate in {section} of step {step} on rank 0" in said
    assert losses(trained.folder / name) == trained.losses


@pytest.mark.slow
def test_sigterm_before_python_has_loaded_anything_ends_the_process(trained: Trained) -> None:
    process = trained.start("import")
    time.sleep(0.1)

    process.send_signal(signal.SIGTERM)
    code, _ = finished(process)

    # The signal's own default, which a shell and a container runtime tell as 143 as well.
    assert code in (Stopped.exit_code, -signal.SIGTERM)


@pytest.mark.slow
def test_a_second_sigterm_does_not_wait_and_spoils_nothing(trained: Trained) -> None:
    process = trained.start("twice")
    until(process, PLACES["step"])

    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, said = finished(process)
    trained.resumed("twice")

    # The second one's own default where the first had all but ended the process.
    assert code in (Stopped.exit_code, -signal.SIGTERM), said
    assert losses(trained.folder / "twice") == trained.losses
