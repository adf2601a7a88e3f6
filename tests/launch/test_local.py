"""A training stage as a process of this machine."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, Stopped
from anadil.launch.job import TrainingJob
from anadil.launch.local import LocalBackend
from tests.kit.harness import wait_for
from tests.kit.jobs import job


class Scripted(LocalBackend):
    """The backend, with a few lines of Python instead of a stage."""

    def __init__(self, code: str) -> None:
        self.code = code

    def render(self, job: TrainingJob) -> dict[str, Any]:
        return {**super().render(job), "command": [sys.executable, "-c", self.code]}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANADIL_WORK", str(tmp_path / "work"))
    return tmp_path / "work"


def sample(*overrides: str) -> TrainingJob:
    return job("smoke", *overrides)


def test_the_command_line_is_that_of_the_stage(work: Path) -> None:
    shown = LocalBackend().render(sample())

    assert shown["command"][:3] == [sys.executable, "-m", "anadil.pretrain"]
    assert shown["command"][3:] == list(sample().arguments)
    assert shown["environment"] == {"ANADIL_WORK": str(work), "ANADIL_RUN_ID": sample().name}


def test_several_machines_are_refused_with_what_to_do() -> None:
    with pytest.raises(RecipeError, match=r"cluster\.nodes: 2 machines.*set cluster\.nodes=1, or cluster"):
        LocalBackend().render(sample("cluster.nodes=2"))


def test_a_stage_that_ends_well_knows_its_parent() -> None:
    Scripted("import os; assert os.environ['ANADIL_PARENT'] == str(os.getppid())").run(sample())


@pytest.mark.parametrize(
    ("code", "error"), [(3, DataError), (4, PreflightError), (143, Stopped), (1, AnadilError)]
)
def test_an_exit_code_is_an_error_of_its_class(code: int, error: type[AnadilError]) -> None:
    with pytest.raises(error, match=f"ended with exit code {code}") as raised:
        Scripted(f"raise SystemExit({code})").run(sample())

    assert type(raised.value) is error


def test_the_real_stage_says_what_it_lacks() -> None:
    with pytest.raises(DataError, match="pretrain: ended with exit code 3"):
        LocalBackend().run(
            TrainingJob(
                stage="pretrain",
                recipe=sample().recipe,
                inputs={"corpus": "/none/corpus", "tokenizer": "/none/tokenizer"},
                target="/none/model",
            )
        )


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_passed_on_once_and_the_stage_may_save(
    number: int, error: type[BaseException], tmp_path: Path
) -> None:
    waits = (
        "import pathlib, signal, sys, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def save(*_): (folder / 'saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "(folder / 'began').touch()\n"
        "time.sleep(60)"
    )

    def interrupt() -> None:
        wait_for((tmp_path / "began").is_file)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(error):
        Scripted(waits).run(sample())

    assert (tmp_path / "saved").is_file()


def test_nothing_is_left_to_itself() -> None:
    with pytest.raises(RecipeError, match="--detach: the backend local runs the stage in this command; use"):
        Scripted("pass").run(sample(), detach=True)
    for ask in (LocalBackend().status, LocalBackend().logs, LocalBackend().stop):
        with pytest.raises(DataError, match="x: the backend local keeps no jobs"):
            ask("x")
