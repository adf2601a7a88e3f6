import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, Stopped
from anadil.launch.job import TrainingJob
from anadil.launch.launcher import LaunchRequest, LocalBackend, check_job, job_for_dry_run, launch_job
from anadil.recipe.load import load_recipe
from tests.kit.fake_kubernetes import Cluster
from tests.kit.harness import again, wait_for
from tests.kit.jobs import job
from tests.kit.one_text import ONE_TEXT


def asked(root: str, folder: Path) -> LaunchRequest:
    """Pre-training on two machines that share the model, its inputs on a volume."""
    inputs = {}
    for word in ("corpus", "tokenizer"):
        (folder / word).mkdir()
        (folder / word / "config.json").write_text("{}")
        artifact.seal(folder / word, kind=word, origin={"stage": word})
        inputs[word] = str(folder / word)
    settings = [
        ONE_TEXT,
        f"storage.root={root}",
        f"cluster.volumes=[{{claim: data, path: {folder}}}]",
        "cluster.backend=pytorchjob",
        "cluster.nodes=2",
        "pretrain.parallelism.shard=2",
    ]
    return LaunchRequest(stage="pretrain", recipe=load_recipe("smoke", settings), inputs=inputs)


def test_machines_without_a_place_for_shared_checkpoints_are_refused_before_anything_starts(
    bucket: str, tmp_path: Path, cluster: Cluster
) -> None:
    with pytest.raises(PreflightError, match=r"^cluster\.work: not set.*cluster\.volumes=\[") as refused:
        launch_job(asked(bucket, tmp_path))

    assert refused.value.exit_code == 4
    assert cluster.requests == []


def test_a_manifest_that_would_be_refused_is_shown_with_a_warning(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = job_for_dry_run(asked(bucket, tmp_path))

    assert shown.nodes == 2
    assert "cluster.work: not set" in caplog.text


@pytest.mark.parametrize("backend", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("name", ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b"])
def test_the_jobs_of_a_shipped_recipe_may_start(name: str, backend: str) -> None:
    check_job(job(name), backend)
    check_job(job(name, stage="finetune"), backend)


@pytest.mark.parametrize(
    ("place", "settings", "out"),
    [
        ("--corpus", (), None),
        ("storage.root", ("storage.root={claim}/anadil",), None),
        ("--out", (), "{claim}/model"),
    ],
)
def test_a_laptop_that_does_not_see_the_claim_is_told_so_first(
    place: str, settings: tuple[str, ...], out: str | None, tmp_path: Path, cluster: Cluster
) -> None:
    claim = tmp_path / "not-mounted"
    there = asked("s3://bucket/root", tmp_path)
    settings = (
        ONE_TEXT,
        "cluster.backend=pytorchjob",
        f"cluster.volumes=[{{claim: anadil-storage, path: {claim}}}]",
        *(each.format(claim=claim) for each in settings),
    )
    corpus = {"corpus": f"{claim}/run/corpus"} if place == "--corpus" else {}
    wanted = LaunchRequest(
        stage="pretrain",
        recipe=load_recipe("smoke", settings),
        inputs=there.inputs | corpus,
        out=out and out.format(claim=claim),
    )

    with pytest.raises(PreflightError, match=rf"^{place} .*: lies on the claim anadil-storage.*manifests/"):
        launch_job(wanted)

    assert cluster.requests == []


def test_chats_without_a_chat_are_refused_before_anything_starts(
    bucket: str, tmp_path: Path, cluster: Cluster
) -> None:
    model = asked(bucket, tmp_path)
    artifact.seal(tmp_path / "corpus", kind="model", origin={})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "no chat"}\n')
    recipe = again(model.recipe, "cluster.nodes=1", "pretrain.parallelism.shard=1")
    finetune = LaunchRequest(
        stage="finetune", recipe=recipe, inputs={"model": str(tmp_path / "corpus")}, files=[str(rows)]
    )

    with pytest.raises(DataError, match=r"none of 1 rows can be trained on: no_chat 1 .*rows\.jsonl:1"):
        launch_job(finetune)

    assert cluster.requests == []


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
