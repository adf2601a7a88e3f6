import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from docker.errors import DockerException
from kfp.local import config, docker_task_handler, subprocess_task_handler

from anadil.artifacts.prefetch import fetch
from anadil.cli import main
from anadil.core.errors import PreflightError
from anadil.recipe.load import load_recipe
from anadil.runtime.tracking_spool import SPOOL_VARIABLE
from anadil_pipelines import laptop
from anadil_pipelines.laptop import Containers, StepResults, run_container


@pytest.fixture
def kfp_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process changes kfp for the rest of it."""
    monkeypatch.setattr(config.LocalExecutionConfig, "instance", None)
    handler = subprocess_task_handler.SubprocessTaskHandler
    monkeypatch.setattr(subprocess_task_handler, "SubprocessTaskHandler", handler)
    monkeypatch.setenv(SPOOL_VARIABLE, "")


def words(work: Path, raw: Path) -> list[str]:
    settings = [f"clean.inputs=['{raw}']", "tracking.uri=off"]
    options = [word for setting in settings for word in ("--set", setting)]
    return ["run", "--work", str(work), "--until", "clean", *options]


@pytest.mark.slow
@pytest.mark.usefixtures("kfp_as_before")
def test_a_run_makes_the_artifacts_and_prints_where_they_are(
    raw: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = words(tmp_path / "work", raw)

    command = [sys.executable, "-m", "anadil", *arguments]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    code = main.main([*arguments, "-o", "json"])

    second = capfd.readouterr()
    assert first.returncode == code == 0, first.stderr
    uri = json.loads(second.out)["corpus"]
    assert first.stdout == f"corpus  {uri}\n"
    assert fetch(uri, "corpus")
    assert Path(uri).is_relative_to(tmp_path / "work" / "corpus")
    ends = [json.loads(path.read_text()) for path in (tmp_path / "work" / "runs").glob("*/clean.json")]
    assert [(end["status"], end["uri"]) for end in ends] == [("finished", uri)] * 2
    assert "clean: running: nothing to reuse yet" in first.stderr
    assert f"clean: reused {uri}" in second.err
    assert "Traceback" not in first.stderr + second.err


@pytest.mark.usefixtures("kfp_as_before")
def test_the_exit_code_of_a_step_that_failed_is_that_of_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.jsonl"  # it can be read, so the look before the run passes it
    short.write_text('{"text": "No Azerbaijani."}\n' * 50, encoding="utf-8")

    code = main.main(words(tmp_path / "work", short))

    told = capfd.readouterr()
    assert code == 3
    assert told.out == ""
    assert "clean: error" in told.err
    assert "a step failed; correct the cause and run the same command again" in told.err
    assert "Traceback" not in told.err


class Docker:
    """A Docker daemon that knows one container."""

    def __init__(self, code: int, *, breaks: bool = False) -> None:
        self.code = code
        self.breaks = breaks
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.removed = False
        self.containers = self

    def run(self, *arguments: Any, **options: Any) -> "Docker":
        self.arguments, self.options = arguments, options
        return self

    def logs(self, **_: object) -> list[bytes]:
        if self.breaks:
            raise ConnectionError("the daemon went away")
        return ["birinci sətir\n".encode(), b"\xff\n"]

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def remove(self, *, force: bool) -> None:
        self.removed = force


def test_a_container_tells_its_exit_code_and_log_runs_with_no_rights_and_is_removed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    docker = Docker(3)
    command = ["python", "-m", "anadil.clean"]

    code = run_container(docker, "anadil/clean:1", command, {"/work": "rw", "/data": "ro"}, {"A": "b"})

    assert (code, docker.removed) == (3, True)
    assert capsys.readouterr().err == "birinci sətir\n\ufffd\n"
    assert docker.arguments == ("anadil/clean:1", ["-m", "anadil.clean"])
    assert docker.options["entrypoint"] == ["python"]
    assert docker.options["read_only"] is True
    assert docker.options["network_mode"] == "none"
    assert docker.options["cap_drop"] == ["ALL"]
    assert docker.options["user"] == f"{os.getuid()}:{os.getgid()}"
    assert docker.options["volumes"] == {
        "/work": {"bind": "/work", "mode": "rw"},
        "/data": {"bind": "/data", "mode": "ro"},
    }


def test_a_container_that_needs_the_network_gets_it_with_the_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////registry/mlflow.db")
    docker = Docker(0)

    run_container(docker, "anadil/clean:1", ["python"], {}, {}, network=True)

    assert docker.options["network_mode"] == "bridge"
    assert docker.options["environment"]["AWS_REGION"] == "eu-central-1"
    # A registry in a file needs no network.
    run_container(docker, "anadil/clean:1", ["python"], {}, {})
    assert docker.options["environment"]["MLFLOW_TRACKING_URI"] == "sqlite:////registry/mlflow.db"
    assert "AWS_REGION" not in docker.options["environment"]


@pytest.mark.parametrize("stage", ["release", "evaluate"])
def test_the_step_that_tells_people_gets_their_addresses_and_no_other_does(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    docker = Docker(0)
    monkeypatch.setattr(docker, "close", lambda: None, raising=False)
    monkeypatch.setattr("docker.from_env", lambda: docker)
    monkeypatch.setattr(Containers, "mounts", {})
    monkeypatch.setenv("ANADIL_SLACK_WEBHOOK", "https://hooks.slack.com/services/secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    given = json.dumps({"inputs": {"parameterValues": {}}, "outputs": {}})
    command = ["python", "-m", f"anadil.{stage}", given]

    Containers("anadil/tools:1", command, "/work", config.DockerRunner()).run()

    given = docker.options["environment"]
    is_told = stage == "release"
    found = (given.get("ANADIL_SLACK_WEBHOOK", "").endswith("secret"), "AWS_REGION" in given)
    assert found == (is_told, is_told)
    # One without an address is not handed on as an empty value.
    assert "ANADIL_SNS_TOPIC" not in given
    assert docker.options["network_mode"] == ("bridge" if is_told else "none")
    assert "secret" not in str(docker.arguments)


def test_a_machine_without_a_docker_service_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent() -> None:
        raise DockerException("no /var/run/docker.sock")

    monkeypatch.setattr("docker.from_env", absent)

    with pytest.raises(
        PreflightError, match=r"no docker service answers .*; start it, or take --runner process"
    ):
        Containers("anadil/tools:1", ["python"], "/work", config.DockerRunner()).run()


def test_a_container_is_removed_when_its_log_breaks_off() -> None:
    docker = Docker(0, breaks=True)

    with pytest.raises(ConnectionError):
        run_container(docker, "anadil/clean:1", ["python"], {}, {})

    assert docker.removed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_container_which_saves_and_is_removed(number: signal.Signals) -> None:
    class Working(Docker):
        """Ends when it is told to."""

        told = threading.Event()

        def logs(self, **_: object) -> list[bytes]:
            os.kill(os.getpid(), number)
            assert self.told.wait(10)
            return []

        def kill(self, name: str) -> None:
            assert name == number.name
            self.told.set()

    docker = Working(143)

    assert run_container(docker, "anadil/pretrain:1", ["python"], {}, {}) == 143
    assert docker.removed


@pytest.fixture
def containers_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Containers, "mounts", {})
    monkeypatch.setattr(Containers, "steps", StepResults())
    monkeypatch.setattr(docker_task_handler, "DockerTaskHandler", Containers)


@pytest.mark.usefixtures("containers_as_before")
def test_containers_see_the_work_directory_and_the_recipes_local_files(raw: Path, tmp_path: Path) -> None:
    recipe = load_recipe("smoke", [f"clean.inputs=['{raw.parent}/*.jsonl', 's3://bucket/a.jsonl']"])

    laptop._use_containers(recipe, tmp_path, StepResults())

    assert Containers.mounts == {str(tmp_path): "rw", str(raw.parent): "ro"}
    assert Containers.network


@pytest.mark.usefixtures("containers_as_before")
def test_containers_see_a_champion_of_another_work_directory(tmp_path: Path) -> None:
    work, model, corpus = (tmp_path / name for name in ("work", "elsewhere/model/1", "work/corpus/1"))
    for folder in (model, corpus):
        folder.mkdir(parents=True)
    champion = {
        "name": "n",
        "version": "1",
        "uri": str(model),
        "digest": "0",
        "artifacts": {"corpus": str(corpus)},
    }
    recipe = load_recipe(
        "smoke", ["clean.inputs=['s3://bucket/a.jsonl']", f"retrain={{champion: {json.dumps(champion)}}}"]
    )

    laptop._use_containers(recipe, work, StepResults())

    assert Containers.mounts == {str(work): "rw", str(model): "ro"}


@pytest.mark.usefixtures("containers_as_before")
@pytest.mark.parametrize("registry", ["http://mlflow:5000", "sqlite:///{}/registry/mlflow.db"])
def test_containers_reach_the_registry_and_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.format(tmp_path))
    recipe = load_recipe("smoke", [f"storage.root={tmp_path}/store"])

    laptop._use_containers(recipe, tmp_path / "work", StepResults())

    is_server = registry.startswith("http")
    folders = ("work", "store") if is_server else ("work", "store", "registry")
    assert {place for place, mode in Containers.mounts.items() if mode == "rw"} == {
        str(tmp_path / name) for name in folders
    }
    assert Containers.network is is_server


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (-15, 143)])
def test_a_step_that_a_signal_ended_has_the_exit_code_of_a_shell(code: int, expected: int) -> None:
    steps = StepResults()

    laptop._record_result(steps, ["python"], code)

    assert steps.exit_code == expected


@pytest.mark.parametrize(("source", "word"), [("", "corpus"), ("web", "corpus.web")])
def test_a_step_that_went_well_names_its_artifact(tmp_path: Path, source: str, word: str) -> None:
    output = tmp_path / "executor_output.json"
    output.write_text('{"parameterValues": {"corpus": "/w/corpus/1"}, "artifacts": {}}', encoding="utf-8")
    steps = StepResults()

    outputs = {"parameters": {"corpus": {}}, "outputFile": str(output)}
    given = {"inputs": {"parameterValues": {"source": source}}, "outputs": outputs}
    laptop._record_result(steps, ["python", json.dumps(given)], 0)

    assert steps.uris == {word: "/w/corpus/1"}
    assert steps.exit_code == 0
