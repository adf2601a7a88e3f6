"""A training stage as a process of this machine."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, Stopped
from anadil.core.own_folder import work_folder
from anadil.launch import local
from anadil.launch.backend import FINAL
from anadil.launch.job import TrainingJob
from anadil.launch.local import LocalBackend, LocalJob
from tests.kit.harness import wait_for
from tests.kit.jobs import job

# A signal may come in the midst of opening a file, which is then left to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ARTIFACT = "/tmp/none/model"


class Scripted(LocalBackend):
    """The backend, with a few lines of Python instead of a stage."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.is_following = threading.Event()

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        self.is_following.set()
        yield from super().logs(name, follow=follow)

    def render(self, job: TrainingJob) -> dict[str, Any]:
        return {**super().render(job), "command": [sys.executable, "-c", self.code]}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANADIL_WORK", str(tmp_path / "work"))
    monkeypatch.setattr(local, "POLL_S", 0.05)
    return tmp_path / "work"


def sample(*overrides: str) -> TrainingJob:
    return job("smoke", *overrides)


def test_the_command_line_is_that_of_the_stage(work: Path) -> None:
    shown = LocalBackend().render(sample())

    assert shown["command"][:3] == [sys.executable, "-m", "anadil.pretrain"]
    assert shown["command"][3:] == list(sample().arguments)
    assert shown["environment"] == {"ANADIL_WORK": str(work), "ANADIL_RUN_ID": sample().name}


def test_several_machines_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        RecipeError, match=r"cluster\.nodes: 2 machines.*set cluster\.nodes=1, or cluster\.backend"
    ):
        LocalBackend().render(sample("cluster.nodes=2"))


def test_a_stage_that_ends_well_is_known_by_its_name() -> None:
    Scripted("import os; assert os.environ['ANADIL_PARENT'] == str(os.getppid())").run(sample())

    status = LocalBackend().status(sample().name)
    assert (status.state, status.exit_code, status.artifact) == ("succeeded", 0, sample().target)


@pytest.mark.parametrize(
    ("code", "error", "state"),
    [
        (3, DataError, "failed"),
        (4, PreflightError, "failed"),
        (143, Stopped, "stopped"),
        (1, AnadilError, "failed"),
    ],
)
def test_an_exit_code_is_an_error_of_its_class(code: int, error: type[AnadilError], state: str) -> None:
    with pytest.raises(error, match=f"ended with exit code {code}") as raised:
        Scripted(f"raise SystemExit({code})").run(sample())

    assert type(raised.value) is error
    assert LocalBackend().status(sample().name).state == state


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


WAITS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('saved', file=sys.stderr), sys.exit(143))); print('began', file=sys.stderr, flush=True); time.sleep(60)"


def test_a_detached_stage_goes_on_and_can_be_looked_at_and_stopped() -> None:
    name = sample().name
    Scripted(WAITS).run(sample(), detach=True)
    wait_for(lambda: list(LocalBackend().logs(name)) == ["began"])
    running = LocalBackend().status(name)

    LocalBackend().stop(name)

    assert (running.state, running.running) == ("running", 1)
    stopped = LocalBackend().status(name)
    assert (stopped.state, stopped.exit_code, stopped.message) == ("stopped", 143, "saved")
    assert list(LocalBackend().logs(name, follow=True)) == ["began", "saved"]


def test_a_second_launch_follows_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys, time; time.sleep(0.5); print('done', file=sys.stderr); sys.exit(4)"
    Scripted(code).run(sample(), detach=True)
    first = json.loads(local._path(sample().name).read_text(encoding="utf-8"))["pid"]

    with pytest.raises(PreflightError):
        Scripted(code).run(sample())

    assert capsys.readouterr().err == "done\n"
    assert json.loads(local._path(sample().name).read_text(encoding="utf-8"))["pid"] == first


def test_another_recipe_does_not_take_a_running_job_for_its_own() -> None:
    Scripted(WAITS).run(sample(), detach=True)

    with pytest.raises(RecipeError, match=r"runs already with another recipe.*anadil stop"):
        Scripted("pass").run(sample())

    LocalBackend().stop(sample().name)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_passed_on_once_and_the_stage_may_save(number: int, error: type[BaseException]) -> None:
    launcher = Scripted(WAITS)
    signal_when_it_follows(launcher, number)

    with pytest.raises(error):
        launcher.run(sample())

    status = LocalBackend().status(sample().name)
    assert (status.state, status.exit_code, status.message) == ("stopped", 143, "saved")


def test_the_end_of_a_second_launcher_leaves_the_job_of_the_first() -> None:
    Scripted(WAITS).run(sample(), detach=True)
    second = Scripted(WAITS)
    signal_when_it_follows(second, signal.SIGTERM)

    with pytest.raises(Stopped):
        second.run(sample())

    assert LocalBackend().status(sample().name).state == "running"
    LocalBackend().stop(sample().name)


def signal_when_it_follows(launcher: Scripted, number: int) -> None:
    def wait_and_kill() -> None:
        launcher.is_following.wait()
        file = local._path(sample().name, ".log")
        wait_for(lambda: file.is_file() and "began" in file.read_text())
        os.kill(os.getpid(), number)

    threading.Thread(target=wait_and_kill, daemon=True).start()


def test_a_stage_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', file=sys.stderr, flush=True); time.sleep(60)"
    Scripted(deaf).run(sample(), detach=True)
    wait_for(lambda: list(LocalBackend().logs(sample().name)) == ["deaf"])
    monkeypatch.setattr(local, "KILL_AFTER_S", 1.0)

    LocalBackend().stop(sample().name)

    assert "does not end; killed" in caplog.text
    assert LocalBackend().status(sample().name).exit_code == 137


def test_a_process_that_got_the_number_of_a_dead_job_is_not_the_job() -> None:
    local._path("old").parent.mkdir(parents=True)
    local._write(LocalJob(name="old", command=[], artifact=ARTIFACT, pid=os.getpid(), began=1.0))

    LocalBackend().stop("old")  # would end the tests

    status = LocalBackend().status("old")
    assert status.state in FINAL
    assert "left no word" in status.message


def test_a_job_of_another_machine_is_a_data_error() -> None:
    with pytest.raises(DataError, match=r"no such job on this machine.*set ANADIL_WORK"):
        LocalBackend().status("anadil-pretrain-x")


def test_a_name_does_not_point_out_of_the_directory() -> None:
    assert local._path("../../etc/passwd").parent == work_folder() / "jobs"


def test_a_detached_stage_outlives_its_launcher(work: Path) -> None:
    code = "from tests.launch.test_local import Scripted, WAITS, sample; Scripted(WAITS).run(sample(), detach=True)"
    root = Path(__file__).parents[2]
    environment = os.environ | {"ANADIL_WORK": str(work), "PYTHONPATH": str(root)}

    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True, timeout=60)

    assert LocalBackend().status(sample().name).state == "running"
    LocalBackend().stop(sample().name)


def test_what_is_damaged_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = local._path("bad")
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")

    with pytest.raises(DataError, match=r"bad\.json: says nothing about a job"):
        LocalBackend().status("bad")
