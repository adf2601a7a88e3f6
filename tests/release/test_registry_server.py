import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.mlmodel import META, write_mlmodel
from anadil.artifacts.storage import store
from anadil.cli import main
from anadil.core.errors import DataError, IntegrityError, PreflightError, RetryableError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release import run as release
from anadil.release.registry.client import RegisteredModel, Registry, open_registry, resolve
from anadil.release.registry.promotion import Promotable, check_promotable, promote, roll_back, source_of
from anadil.release.run import ReleaseRecord, read_release
from anadil.runtime.alerts import Event
from anadil.runtime.compared_champion import DIGEST_TAG
from anadil.runtime.evidence import run_tags
from anadil.runtime.execute import execute
from anadil.runtime.tracking_spool import SPOOL_VARIABLE
from tests.kit.http_server import Reply, http_server
from tests.kit.marks import matrix
from tests.kit.mlflow_server import MlflowServer
from tests.kit.promotable import model, scores
from tests.kit.releasing import UNSURE, retraining, week

pytestmark = [
    pytest.mark.slow,  # MLflow takes seconds to import
    pytest.mark.filterwarnings("ignore"),  # its own
]
LOAD = """
import sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
said = mlflow.transformers.load_model(sys.argv[2])([{"role": "user", "content": "Salam"}], max_new_tokens=2)
served = mlflow.pyfunc.load_model(sys.argv[2]).predict({"messages": [{"role": "user", "content": "Salam"}], "max_tokens": 2})
print(said[0]["generated_text"][-1]["role"], served[0]["choices"][0]["message"]["role"])
"""


@pytest.fixture
def champion(
    registry: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RegisteredModel:
    """The first champion, made by a run and promoted by hand; no step starts a sender, which takes seconds to import."""
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))
    made = model(tmp_path / "model" / "first", "first")
    promote(
        registry, name, check_promotable(str(scores(tmp_path / "scores/1", made)), str(made)), None, "anadil"
    )
    found = registry.by_alias(name, "champion")
    assert found is not None
    return found


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Alerts that would have been sent."""
    sent: list[Event] = []
    monkeypatch.setattr(release, "notify", sent.append)
    return sent


def released(recipe: Recipe, inputs: dict[str, str]) -> ReleaseRecord:
    return read_release(execute(STAGES["release"], recipe, inputs, (), None).uri)


def test_a_candidate_that_beats_the_champion_takes_its_place_and_says_who_what_and_why(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)

    record = released(recipe, week(tmp_path, "second", champion.digest))

    assert (record.outcome, record.alias, record.version, record.previous) == (
        "champion",
        "champion",
        "2",
        "1",
    )
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}
    assert record.reasons == (
        f"Version 2 of {champion.name}, the adapted model, is champion: it beats version 1 with 95 % confidence.",
        "Bits per byte over the champion's is 0.9 (0.8500 to 0.9500), the limit 1.02.",
    )
    assert record.uri == f"{tmp_path}/model/second"
    assert {check["name"] for check in record.checks} >= {"adapted.bits_per_byte_to_champion"}
    assert record.by["user"]
    assert len(record.by["recipe"]) == 64
    assert [(each.kind, each.artifact) for each in events] == [("released", record.uri)]
    assert "95 % confidence" in events[0].message
    assert f"anadil rollback --name {champion.name}" in events[0].resume


def test_a_version_names_its_corpora_and_the_champion_that_its_training_began_with(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)
    told = recipe.model_copy(
        update={"pretrain": recipe.pretrain.model_copy(update={"start_from": champion.uri})}
    )
    inputs = week(tmp_path, "second", champion.digest, recipe=told.model_dump(mode="json"))

    released(recipe, inputs)

    tags = registry.client.get_model_version(champion.name, "2").tags
    assert tags["anadil.parent"] == f"{champion.name}/1"
    assert tags["anadil.parent_sha256"] == champion.digest
    assert json.loads(tags["anadil.corpora"]) == {"corpus": "c" * 64}
    assert {"anadil.parent", "anadil.parent_sha256"} <= run_tags(told, STAGES["pretrain"]).keys()
    assert "anadil.parent" not in run_tags(recipe, STAGES["pretrain"]), "a run from the base has no parent"


def test_a_candidate_that_beats_nobody_for_sure_becomes_challenger(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)

    record = released(recipe, week(tmp_path, "second", champion.digest, **UNSURE))

    assert (record.outcome, record.alias, record.version) == ("challenger", "challenger", "2")
    assert aliases(registry, champion.name) == {"champion": "1", "challenger": "2"}
    assert (
        "nothing shows with 95 % confidence that it beats version 1, which stays champion"
        in record.reasons[0]
    )
    assert events[0].kind == "released"


def test_a_candidate_that_was_compared_with_no_champion_becomes_challenger_and_says_so(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    record = released(retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", "0" * 64))

    assert record.outcome == "challenger"
    assert "the scores do not compare it with version 1, which stays champion" in record.reasons[0]


def test_a_gate_that_released_none_leaves_the_champion_and_sends_the_reasons(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    inputs = week(tmp_path, "second", champion.digest, by_gate=False)

    record = released(retraining(tmp_path, registry.uri, champion), inputs)

    assert (record.outcome, record.alias, record.version, record.previous) == ("refused", "", "", "1")
    assert record.reasons == (
        f"The gate released none, so version 1 of {champion.name} stays champion.",
        "Adapted: tokens per word over the base's is 0.5, the limit 1.",
    )
    assert aliases(registry, champion.name) == {"champion": "1"}
    assert [each.kind for each in events] == ["refused"]
    assert "tokens per word" in events[0].message
    assert inputs["scores"] in events[0].resume


def test_a_champion_that_another_has_moved_meanwhile_is_not_replaced(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    other = week(tmp_path, "by hand", champion.digest)
    promote(registry, champion.name, check_promotable(other["scores"], other["model"]), "champion", "anadil")
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)

    with pytest.raises(
        RetryableError,
        match="is version 2 now, and this retraining began with version 1; nothing was moved; run anadil retrain again",
    ):
        released(recipe, inputs)
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}
    registry.client.delete_registered_model_alias(champion.name, "champion")
    with pytest.raises(RetryableError, match="is no version now, and this retraining began with version 1"):
        released(recipe, inputs)
    assert events == []


@pytest.mark.matrix
def test_a_champion_that_moves_while_files_are_read_is_not_replaced(
    registry: Registry,
    champion: RegisteredModel,
    tmp_path: Path,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = week(tmp_path, "by hand", champion.digest)
    place = "anadil.release.registry.promotion.source_of"

    def late(*given: Any) -> Any:
        monkeypatch.setattr(place, source_of)
        promote(
            registry, champion.name, check_promotable(other["scores"], other["model"]), "champion", "anadil"
        )
        return source_of(*given)

    monkeypatch.setattr(place, late)

    with pytest.raises(RetryableError, match="another promotion moved the aliases"):
        released(retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest))
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}


def test_a_version_that_was_rolled_back_is_made_champion_by_name_only(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)
    first = execute(STAGES["release"], recipe, inputs, (), None)
    roll_back(registry, champion.name)

    again = execute(STAGES["release"], recipe, inputs, (), None)
    anew = read_release(execute(STAGES["release"], recipe, inputs, (), str(tmp_path / "anew")).uri)

    assert again.uri == first.uri, "what is done is not done again"
    assert anew.outcome == "challenger"
    assert "it was rolled back at 20" in anew.reasons[0]
    assert aliases(registry, champion.name) == {"champion": "1", "previous": "2", "challenger": "2"}


def test_an_artifact_that_is_remade_elsewhere_moves_and_tells_nothing_twice(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)
    first = released(recipe, inputs)

    again = read_release(execute(STAGES["release"], recipe, inputs, (), str(tmp_path / "again")).uri)

    assert (again.outcome, again.version, again.previous, again.reasons) == (
        first.outcome, first.version, first.previous, first.reasons,
    )  # fmt: skip
    versions = registry.client.search_model_versions(f"name = '{champion.name}'")
    assert sorted(str(each.version) for each in versions) == ["1", "2"]
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}


def test_without_a_champion_in_the_recipe_no_alias_is_moved(tmp_path: Path, events: list[Event]) -> None:
    recipe = parse_recipe(f"{{language: az, storage: {{root: {tmp_path}}}, retrain: {{}}}}", "r")

    record = released(recipe, week(tmp_path, "second", "0" * 64))

    assert record.outcome == "refused"
    assert "retrain.champion is not set" in record.reasons[0]
    assert events == []


def test_without_a_registry_the_remedy_is_said(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)
    away = recipe.model_copy(update={"tracking": recipe.tracking.model_copy(update={"uri": None})})

    with pytest.raises(
        PreflightError, match=r"no registry is named that could release it; set tracking\.uri or"
    ):
        released(away, week(tmp_path, "second", champion.digest))


@pytest.mark.parametrize("kills", [matrix(4), matrix(20)])
def test_a_step_that_is_killed_at_any_moment_ends_the_same_when_it_is_repeated(
    mlflow_server: MlflowServer, tmp_path: Path, kills: int
) -> None:
    worker = [
        sys.executable,
        "-m",
        "tests.kit.release_worker",
        mlflow_server.uri,
        str(tmp_path),
        str(kills),  # also the seed, and in the names: the tests share a server
        str(kills),
    ]

    done = subprocess.run(
        worker, cwd=Path(__file__).parents[2], check=True, timeout=900, stdout=subprocess.PIPE, text=True
    )

    trials: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(trials) == kills + 2
    wholes = {trial["record"][0]: trial for trial in trials[:2]}  # those that were left alone
    assert set(wholes) == {"champion", "challenger"}
    assert sum(trial["killed"] for trial in trials) >= kills // 4, "the others had ended before"
    for trial in trials[2:]:
        whole = wholes[trial["record"][0]]
        same = ("record", "aliases", "versions", "runs", "artifacts", "leftovers", "again")
        assert {name: trial[name] for name in same} == {name: whole[name] for name in same}
        assert set(trial["alerts"]) == {"released"}
        assert len(trial["alerts"]) <= 2, "once more at most"
    expected = {"champion": "2", "previous": "1"}
    assert wholes["champion"]["aliases"] == expected
    assert (wholes["champion"]["versions"], wholes["champion"]["runs"]) == (["1", "2"], 2)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A registered model of the test's own, on a server that tests share."""
    return f"model-{request.node.name[:60].replace('[', '-').replace(']', '')}"


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> Registry:
    return open_registry(mlflow_server.uri)


def passed(folder: Path, text: str = "weights", kind: str = "model") -> Promotable:
    """A model that passed its gate, in a directory of its own."""
    made = model(folder / kind / "1", text, kind)
    return check_promotable(str(scores(folder / "scores/1", made)), str(made))


def aliases(registry: Registry, name: str) -> dict[str, str]:
    found = registry.model(name)
    return {alias: str(number) for alias, number in found.aliases.items()} if found else {}


def state(registry: Registry, name: str) -> tuple[object, ...]:
    """All that a promotion may leave behind."""
    client = registry.client
    experiments = client.search_experiments()
    runs = client.search_runs([each.experiment_id for each in experiments])
    return (
        sorted(each.name for each in client.search_registered_models()),
        sorted(each.version for each in client.search_model_versions(f"name = '{name}'")),
        aliases(registry, name),
        sorted(each.info.run_id for each in runs),
    )


def test_champion_challenger_previous_and_the_way_back(
    registry: Registry, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = passed(tmp_path / "1"), passed(tmp_path / "2", "more weights")
    server = ["--name", name, "--set", f"tracking.uri={registry.uri}"]

    assert main.main(["promote", first.uri, *server]) == 0
    assert aliases(registry, name) == {"champion": "1"}
    assert main.main(["promote", second.uri, *server]) == 0
    assert aliases(registry, name) == {"champion": "1", "challenger": "2"}
    assert main.main(["promote", f"models:/{name}@challenger", "--as", "champion", *server]) == 0
    assert aliases(registry, name) == {"champion": "2", "previous": "1"}
    assert main.main(["promote", second.uri, *server]) == 0
    assert aliases(registry, name) == {"champion": "2", "previous": "1"}, "equal bytes stay one version"
    assert main.main(["rollback", "--dry-run", *server]) == 0
    assert main.main(["rollback", *server]) == 0
    assert aliases(registry, name) == {"champion": "1", "previous": "2"}
    assert main.main(["promote", "--rollback", *server]) == 0
    assert aliases(registry, name) == {"champion": "2", "previous": "1"}
    out, err = capsys.readouterr()
    assert f"{name} would go back to version 1 in the registry at {registry.uri}\n" in out
    assert f"{name} version 1 is champion\n{name} version 2 is previous" in out
    assert "version 1, which is replaced, was not compared with; evaluate again for that" in err


def test_a_version_tells_its_run_scores_gate_and_digests(
    registry: Registry, name: str, tmp_path: Path
) -> None:
    made = passed(tmp_path, name)
    experiment = registry.client.create_experiment(name)
    run = registry.client.create_run(experiment, tags={"anadil.artifact": made.uri}).info.run_id
    logged = registry.client.create_logged_model(
        experiment, name="adapted", source_run_id=run, tags={DIGEST_TAG: made.manifest.digest}
    )

    promote(registry, name, made, None, "anadil")

    found = resolve(f"models:/{name}@champion", registry.uri)
    assert (found.uri, found.digest, found.kind) == (made.uri, made.manifest.digest, "model")
    assert (found.scores, found.aliases) == (made.scores, ("champion",))
    assert found == resolve(f"models:/{name}/1", registry.uri)
    version = registry.client.get_model_version(name, "1")
    assert version.run_id == run
    linked = json.loads(registry.client.get_logged_model(logged.model_id).tags["mlflow.modelVersions"])
    assert linked == [{"name": name, "version": 1}]
    assert json.loads(version.tags["anadil.gate"])[1]["name"] == "adapted.bits_per_byte"
    assert version.tags["anadil.scores_sha256"] == made.scores_manifest.whole_digest
    assert "How to use it" in version.description, "the model card"


def test_a_failure_at_any_write_leaves_nothing(registry: Registry, name: str, tmp_path: Path) -> None:
    calls = (
        "create_run", "log_artifacts", "create_registered_model", "create_model_version",
        "set_model_version_tag", "set_registered_model_alias", "delete_registered_model_alias",
    )  # fmt: skip
    client = registry.client

    def failing(number: int) -> Any:
        wrapped, count = mock.Mock(wraps=client), iter(range(100))

        def call(which: str) -> Callable[..., object]:
            def run(*values: Any, **options: Any) -> object:
                if next(count) == number:
                    raise ConnectionError("reset by peer")
                return getattr(client, which)(*values, **options)

            return run

        for which in calls:
            setattr(wrapped, which, call(which))
        return wrapped

    first, second = passed(tmp_path / "1"), passed(tmp_path / "2", "more weights")
    for made, alias in ((first, None), (second, "challenger"), (second, "champion")):
        before, tried = state(registry, name), 0
        while tried < 20:
            try:
                promote(Registry(registry.uri, failing(tried)), name, made, alias, name)
            except RetryableError:
                assert state(registry, name) == before, f"write {tried}"
                tried += 1
            else:
                break
        assert tried >= 3
    assert resolve(f"models:/{name}@champion", registry.uri).digest == second.manifest.digest
    assert resolve(f"models:/{name}@previous", registry.uri).digest == first.manifest.digest
    assert set(aliases(registry, name)) == {"champion", "previous"}


def test_a_champion_that_is_gone_or_changed_is_replaced_by_name_alone_and_never_gone_back_to(
    registry: Registry, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (passed(tmp_path / str(number), f"weights {number}") for number in range(3))
    server = ["--name", name, "--set", f"tracking.uri={registry.uri}"]
    promote(registry, name, first, None, "anadil")
    promote(registry, name, second, "champion", "anadil")
    (Path(first.uri) / "model.safetensors").write_text("other b 0")  # of the same length

    assert main.main(["rollback", *server]) == 5
    assert "model.safetensors: differs from its manifest" in capsys.readouterr().err
    assert aliases(registry, name) == {"champion": "2", "previous": "1"}
    shutil.rmtree(first.uri)
    assert main.main(["rollback", *server]) == 5
    assert "the artifact was deleted, or is not visible on this host" in capsys.readouterr().err
    shutil.rmtree(second.uri)
    assert main.main(["promote", third.uri, *server]) == 5
    assert "--as champion replaces it, anadil rollback goes back to the one before" in capsys.readouterr().err
    assert aliases(registry, name) == {"champion": "2", "previous": "1"}
    assert main.main(["promote", third.uri, "--as", "champion", *server]) == 0
    assert aliases(registry, name) == {"champion": "3", "previous": "1"}, "no broken one becomes previous"


def test_a_file_mlmodel_that_was_exchanged_is_noticed(registry: Registry, name: str, tmp_path: Path) -> None:
    first, second = passed(tmp_path / "1"), passed(tmp_path / "2", "more")
    promote(registry, name, first, None, "anadil")
    promote(registry, name, second, "champion", "anadil")
    place = Path(first.uri)
    (place / "MLmodel").write_text("flavors: {python_function: {loader_module: evil}}")
    sealed = artifact.seal(place, kind="model", origin={"stage": "pretrain"}, varying=["MLmodel"])

    assert sealed.digest == first.manifest.digest
    with pytest.raises(IntegrityError, match="its bytes differ from those that were promoted"):
        roll_back(registry, name)


def test_without_a_champion_before_there_is_no_way_back(
    registry: Registry, name: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no earlier version to roll back to"):
        roll_back(registry, name)
    promote(registry, name, passed(tmp_path), None, "anadil")
    with pytest.raises(
        DataError, match=rf"no earlier version to roll back to; {name} has @champion \(version 1\)"
    ):
        roll_back(registry, name)


@pytest.mark.matrix
def test_on_postgresql_and_s3_a_version_is_the_model_where_it_lies(
    mlflow_server_on_postgres: MlflowServer, bucket: str, name: str, tmp_path: Path
) -> None:
    registry = open_registry(mlflow_server_on_postgres.uri)
    first, second = passed(tmp_path / "1", kind="adapter"), passed(tmp_path / "2", "more", "adapter")
    for number, made in enumerate((first, second), start=1):
        for kind, local in (("adapter", made.uri), ("scores", made.scores)):
            store(bucket).put_directory(Path(local), f"{bucket}/{kind}/{number}")
        uri = f"{bucket}/adapter/{number}"
        promote(registry, name, check_promotable(f"{bucket}/scores/{number}", uri), "champion", "anadil")

    assert registry.client.get_model_version(name, "2").source == f"{bucket}/adapter/2/merged"
    assert resolve(f"models:/{name}@previous", registry.uri).uri == f"{bucket}/adapter/1"
    store(bucket).write(f"{bucket}/adapter/1/model.safetensors", b"other")
    with pytest.raises(IntegrityError, match=r"size differs|differs from its manifest"):
        roll_back(registry, name)
    store(bucket).write(f"{bucket}/adapter/1/model.safetensors", b"weights")
    assert roll_back(registry, name).version == "1"
    assert aliases(registry, name) == {"champion": "1", "previous": "2"}


@pytest.mark.parametrize("through", ["server", pytest.param("database", marks=pytest.mark.matrix)])
def test_the_champion_loads_in_a_fresh_process_from_another_directory(
    through: str, registry: Registry, name: str, tmp_path: Path
) -> None:
    from tests.evaluate.conftest import save_model

    merged = save_model(tmp_path / "adapter/1/merged", chat=True)
    written = write_mlmodel(merged, chats=True)
    files = [f"merged/{file}" for file in written]
    adapter = tmp_path / "adapter/1"
    artifact.seal(adapter, kind="adapter", origin={"stage": "finetune"}, varying=files)
    made = check_promotable(str(scores(tmp_path / "scores/1", adapter)), str(adapter))
    if through == "database":
        registry = open_registry(f"sqlite:///{tmp_path}/mlflow.db")
    promote(registry, name, made, None, "anadil")
    (tmp_path / "elsewhere").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", LOAD, registry.uri, f"models:/{name}@champion"], check=False, timeout=300,
        cwd=tmp_path / "elsewhere", env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "assistant assistant"
    # A client that loads from a path leaves a note there, which is no damage.
    assert (merged / META).exists() is (through == "database")
    promote(registry, name, made, "champion", "anadil")
    assert resolve(f"models:/{name}@champion", registry.uri).version == "1"


@pytest.fixture
def old_server() -> Iterator[str]:
    """A server that says that it is MLflow 2."""
    with http_server(lambda _: Reply(text="2.22.1")) as port:
        yield f"http://user:hunter2-hunter2@127.0.0.1:{port}"


def test_a_registry_that_is_away_old_or_cannot_be_written_is_said_without_its_password(
    old_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = passed(tmp_path / "1")
    database = tmp_path / "mlflow.db"
    open_registry(f"sqlite:///{database}")
    monkeypatch.chdir(tmp_path)  # MLflow makes the folder of a path that begins with `file:`
    cases = (
        ("http://user:hunter2-hunter2@127.0.0.1:9", 138, "the registry does not answer"),
        ("postgresql+psycopg2://user:hunter2-hunter2@127.0.0.1:9/x", 138, "the registry does not answer"),
        (old_server, 4, "a server of MLflow 2.22.1; this program needs 3 or newer: upgrade the server"),
        (f"sqlite:///file:{database}?mode=ro&uri=true", 4, "the registry can only be read"),
        ("nonsense://user:hunter2-hunter2@host", 4, "is not an address of MLflow"),
    )
    for uri, code, reason in cases:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert main.main(["promote", made.uri, "--name", "az"]) == code, uri
        said = " ".join(capsys.readouterr().err.split())
        assert reason in said
        assert "hunter2" not in said


def test_names_that_are_not_there_are_told_with_those_that_are(
    registry: Registry, name: str, tmp_path: Path
) -> None:
    promote(registry, name, passed(tmp_path), None, "anadil")

    for uri in (f"models:/{name}@previous", f"models:/{name}/9"):
        with pytest.raises(
            DataError, match=rf"not in the registry at http.*{name} has @champion \(version 1\)"
        ):
            resolve(uri, registry.uri)
    with pytest.raises(DataError, match=r"not in the registry at http.*; it has .*; correct the name"):
        resolve("models:/none@champion", registry.uri)
    with pytest.raises(DataError, match="no such database; promote a model first"):
        resolve(f"models:/{name}@champion", f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
