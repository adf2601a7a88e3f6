"""Where the champion is found, what it is checked against, and that scores know it."""

import logging
import subprocess
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.core.errors import DataError, RecipeError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import compared_champion, execute
from anadil.runtime.compared_champion import DIGEST_TAG, find_champion
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import planned_artifact


def sealed(folder: Path, kind: str = "model", text: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(text)
    artifact.seal(folder, kind=kind, origin={"stage": kind})
    return folder


def manifest_of(folder: Path) -> Manifest:
    found = artifact.read_manifest(str(folder))
    assert found is not None
    return found


def recipe(*overrides: str) -> Recipe:
    return parse_recipe("", "r", overrides)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the registry answers; empty: it has no champion."""
    version: dict[str, str] = {}
    monkeypatch.setattr(compared_champion, "_ask", lambda uri, name, alias: (version, ""))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    return version


def test_the_registrys_champion_is_taken_if_its_bytes_are_those_that_were_promoted(
    registry: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = sealed(tmp_path / "champion", "adapter")

    assert find_champion(recipe(), {}) is None
    registry.update(uri=str(made), digest=manifest_of(made).digest)
    found = find_champion(recipe(), {})
    assert found is not None
    assert (found.uri, found.kind, found.digest) == (str(made), "adapter", manifest_of(made).digest)
    assert caplog.text == ""
    registry.update(digest="0" * 64)
    assert find_champion(recipe(), {}) is None
    assert "holds other bytes than anadil-az@champion of the registry; candidates are not" in caplog.text
    registry.update(uri=str(tmp_path / "gone"))
    assert find_champion(recipe(), {}) is None
    assert "gone: no finished model or merged or adapter there" in caplog.text


def test_a_champion_that_is_evaluated_is_not_compared_with_itself(
    registry: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = sealed(tmp_path / "champion")
    registry.update(uri=str(made), digest=manifest_of(made).digest)

    with caplog.at_level(logging.INFO):
        assert find_champion(recipe(), {"model": manifest_of(made)}) is None
    assert "is what is evaluated" in caplog.text


def test_the_recipe_names_another_champion_or_none(registry: dict[str, str], tmp_path: Path) -> None:
    made = sealed(tmp_path / "champion")
    registry.update(uri=str(made), digest=manifest_of(made).digest)

    assert find_champion(recipe("evaluate.champion=none"), {}) is None
    registry.clear()
    found = find_champion(recipe(f"evaluate.champion={made}"), {})
    assert found is not None
    assert found.digest == manifest_of(made).digest
    with pytest.raises(DataError, match=r"evaluate\.champion: .*gone: no finished model or merged or"):
        find_champion(recipe(f"evaluate.champion={tmp_path}/gone"), {})


def test_a_named_champion_needs_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    assert find_champion(recipe(), {}) is None
    with pytest.raises(RecipeError, match=r"evaluate\.champion: az@best: no registry; set tracking\.uri"):
        find_champion(recipe("evaluate.champion=az@best"), {})


def test_a_registry_that_does_not_answer_is_said_and_costs_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"Traceback\nConnectionError: refused\n")

    def hang(command: list[str], timeout: float, **_: object) -> subprocess.CompletedProcess[bytes]:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for failing, reason in ((refuse, "ConnectionError: refused"), (hang, "none within 90 s")):
        monkeypatch.setattr(subprocess, "run", failing)
        assert find_champion(recipe(), {}) is None
        assert f"the registry at http://127.0.0.1:9 gave no answer ({reason})" in caplog.text
    # A database that is not there is not made.
    assert find_champion(recipe(f"tracking.uri=sqlite:///{tmp_path}/none.db"), {}) is None
    assert not (tmp_path / "none.db").exists()


def test_the_key_of_scores_knows_the_champion_and_not_where_it_lies(tmp_path: Path) -> None:
    inputs = {"corpus": str(sealed(tmp_path / "corpus", "corpus")), "model": str(sealed(tmp_path / "model"))}
    first, copy = sealed(tmp_path / "1", text="old"), sealed(tmp_path / "2", text="old")
    other = sealed(tmp_path / "3", text="older")

    def key(named: str) -> str:
        made = recipe(f"evaluate.champion={named}", f"storage.root={tmp_path}")
        return planned_artifact(STAGES["evaluate"], made, inputs, (), None).key

    assert key(str(first)) == key(str(copy))
    assert len({key("none"), key(str(first)), key(str(other))}) == 3


def test_a_champion_that_was_changed_since_is_left_out_of_scores_and_of_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = {"corpus": str(sealed(tmp_path / "corpus", "corpus")), "model": str(sealed(tmp_path / "model"))}
    old = sealed(tmp_path / "champion", text="old")
    (old / "model.safetensors").write_text("changed")
    made = recipe(f"evaluate.champion={old}", f"storage.root={tmp_path}")
    stage = STAGES["evaluate"]
    planned = []
    monkeypatch.setattr(execute, "_make", lambda found, *_: planned.append(found.planned))

    execute.execute(stage, made, inputs, (), None)

    (found,) = planned
    assert (found.champion, "input champion" in found.origin) == (None, False)
    origin = planned_artifact(stage, made, inputs, (), None).origin
    assert found.origin == {name: text for name, text in origin.items() if name != "input champion"}
    assert "model.safetensors: differs from its manifest" in caplog.text
    assert "candidates are not compared with it" in caplog.text


def test_the_stage_gets_the_champion_as_one_more_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"corpus": str(sealed(tmp_path / "corpus", "corpus")), "model": str(sealed(tmp_path / "model"))}
    old = sealed(tmp_path / "champion", text="old")
    made = recipe(f"evaluate.champion={old}", f"storage.root={tmp_path}")
    jobs: list[Job] = []

    def stop_here(planned: object, job: Job, *_: object) -> None:
        jobs.append(job)
        raise DataError("here")

    monkeypatch.setattr(execute, "_run", stop_here)

    with pytest.raises(DataError, match="here"):
        execute.execute(STAGES["evaluate"], made, inputs, (), None)

    assert jobs[0].inputs["champion"] == old


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore")
def test_a_real_registry_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    made = sealed(tmp_path / "champion")
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    tracked = recipe(f"tracking.uri={uri}")
    client.create_registered_model("anadil-az")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for name in ("nobody", "anadil-az"):
        compared_champion.main(name, "champion")  # what `find_champion` runs as a process
        assert capsys.readouterr().out == "{}\n"
    tags = {DIGEST_TAG: manifest_of(made).digest}
    version = client.create_model_version("anadil-az", source=str(made), tags=tags)
    client.set_registered_model_alias("anadil-az", "champion", version.version)

    found = find_champion(tracked, {})

    assert found is not None
    assert (found.uri, found.digest) == (str(made), manifest_of(made).digest)
