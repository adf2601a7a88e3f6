"""What a run leaves on a real MLflow server, over HTTP."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import storage
from anadil.recipe.load import parse_recipe
from anadil.runtime import mlflow_sender
from anadil.runtime.mlflow_sender import Sender
from anadil.runtime.reachable import SAGEMAKER_VARIABLE
from anadil.runtime.tracking_spool import SPOOL, Tracker, has_unsent, run_sender, send_left
from tests.kit.http_server import Reply, Request, http_server
from tests.kit.marks import matrix
from tests.kit.mlflow_server import MlflowServer
from tests.kit.proxy import proxy
from tests.kit.tracked_run import STEPS, artifacts, end_pretrain, write_pretrain, write_scores

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PASSWORD = "hunter2-and-more"


def write_run(folder: Path, name: str) -> Path:
    """The spool of a whole run."""
    spool = folder / "spool"
    spool.mkdir()
    end_pretrain(write_pretrain(spool, name), name, folder)
    write_scores(spool, name, folder)
    return spool


def send(spool: Path, uri: str, experiment: str, shared: str = "") -> None:
    """Send a closed spool, in this process: MLflow takes seconds to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        for name, value in mlflow_sender.LIMITS.items():
            patch.setenv(name, value)
        Sender(spool, experiment, "smoke 2026-11-23 02:35", shared).follow(lambda: True)


def runs_of(client: Any, experiment: str) -> dict[str, Any]:
    """Name -> run, of all runs; no two may have one name."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    names = [run.info.run_name for run in found]
    assert len(set(names)) == len(names), names
    return dict(zip(names, found, strict=True))


def models_of(client: Any, experiment: str) -> dict[str, Any]:
    found = client.search_logged_models([client.get_experiment_by_name(experiment).experiment_id])
    assert len({model.name for model in found}) == len(found)
    return {model.name: model for model in found}


@pytest.fixture(scope="module", params=["mlflow_server", matrix("mlflow_server_on_postgres")])
def sent(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[MlflowServer, str]:
    """A server that a whole run was sent to, and the experiment."""
    server: MlflowServer = request.getfixturevalue(request.param)
    send(write_run(tmp_path_factory.mktemp("run"), "whole"), server.uri, "whole")
    return server, "whole"


def test_a_run_has_its_scores_tags_and_files_and_a_child_for_each_stage(
    sent: tuple[MlflowServer, str],
) -> None:
    client, experiment = sent[0].client(), sent[1]

    runs = runs_of(client, experiment)
    parent = runs.pop("smoke 2026-11-23 02:35")

    assert sorted(runs) == ["evaluate", "pretrain", "report"]
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in [parent, *runs.values()]} == {"FINISHED"}
    # By the lines, not by the time at which they are sent.
    assert parent.info.start_time == runs["pretrain"].info.start_time
    assert parent.info.end_time == runs["report"].info.end_time
    assert parent.data.metrics["bits_per_byte/adapted"] == 1.36
    assert parent.data.params["language"] == "az"
    assert PASSWORD not in json.dumps(parent.data.to_dictionary())
    assert {"anadil.version", "mlflow.user", "anadil.language"} <= set(parent.data.tags)
    assert parent.data.tags["mlflow.note.content"] == "Release the **adapted** model."
    files = {each.path: each.file_size for each in client.list_artifacts(parent.info.run_id)}
    assert sorted(files) == ["recipe.yaml", "report.html", "report.md", "scores.json"]
    assert all(files.values())


def test_what_was_read_is_linked_with_digest_and_source(sent: tuple[MlflowServer, str]) -> None:
    client, experiment = sent[0].client(), sent[1]
    runs = runs_of(client, experiment)

    for name in ("smoke 2026-11-23 02:35", "evaluate"):
        data = {each.dataset.name: each.dataset for each in runs[name].inputs.dataset_inputs}
        assert sorted(data) == ["corpus", "questions.jsonl"]
        corpus = data["corpus"]
        assert corpus.digest == artifacts("whole")["corpus"].digest[:36]
        assert (corpus.source_type, json.loads(corpus.source)) == ("s3", {"uri": "s3://bucket/corpus/1"})
        assert json.loads(corpus.profile) == {"num_rows": 363}
    assert len(runs["pretrain"].inputs.dataset_inputs) == 1


def test_models_stand_beside_their_figures_data_and_run_and_their_weights_elsewhere(
    sent: tuple[MlflowServer, str],
) -> None:
    client, experiment = sent[0].client(), sent[1]
    runs, models = runs_of(client, experiment), models_of(client, experiment)

    adapted = models["adapted"]
    metrics = {each.key: each for each in adapted.metrics}

    assert sorted(models) == ["adapted", "finetuned"]
    assert adapted.source_run_id == runs["pretrain"].info.run_id
    assert adapted.tags["anadil.sha256"] == artifacts("whole")["model"].digest
    assert adapted.tags["anadil.uri"] == "s3://bucket/model/1"
    assert str(adapted.status) == "READY"
    assert sorted(metrics) == ["bits_per_byte/adapted", "fertility/adapted", "pretrain_loss"]
    score = metrics["bits_per_byte/adapted"]
    assert (score.value, score.run_id) == (1.36, runs["evaluate"].info.run_id)
    assert (score.dataset_name, score.dataset_digest) == ("corpus", artifacts("whole")["corpus"].digest[:36])
    assert [each.path for each in client.list_logged_model_artifacts(adapted.model_id)] == ["MLmodel"]
    # A model is an input of a run or an output, never both.
    parent = client.get_run(runs["smoke 2026-11-23 02:35"].info.run_id)
    assert [each.model_id for each in parent.outputs.model_outputs] == [adapted.model_id]
    assert [each.model_id for each in parent.inputs.model_inputs] == [models["finetuned"].model_id]


def test_a_model_has_the_file_that_mlflow_itself_would_write(
    sent: tuple[MlflowServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own writer needs numpy and pandas, which no image holds."""
    from mlflow.models import Model
    from mlflow.models.utils import get_external_mlflow_model_spec

    client, experiment = sent[0].client(), sent[1]
    adapted = models_of(client, experiment)["adapted"]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", sent[0].uri)
    written = Model.load(f"models:/{adapted.model_id}").to_dict()

    expected = get_external_mlflow_model_spec(adapted).to_dict()
    ours = {name: value for name, value in written.items() if value is not None}
    assert ours.pop("utc_time_created")
    assert ours == {name: expected[name] for name in ours}
    assert {"signature", "metadata", "model_id", "run_id"} <= set(ours)


def test_a_server_that_is_killed_while_a_run_goes_on_loses_nothing(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    half = STEPS // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        write_pretrain(spool, "killed", stop=half)
        first = Sender(spool, "killed", "flow")
        first.records.ensure_parent("killed", "flow", "")
        first._send_file(spool / "pretrain.jsonl")
        mlflow_server.kill()
        try:
            end_pretrain(write_pretrain(spool, "killed", start=half + 1), "killed", tmp_path)
            write_scores(spool, "killed", tmp_path)
            with pytest.raises(Exception, match="onnection"):
                first.follow(lambda: True)
            assert has_unsent(spool)
        finally:
            mlflow_server.start()
    # A sender that is killed after the server took its lines, and before it could note that.
    noted = (spool / "sent.json").read_text(encoding="utf-8")
    send(spool, mlflow_server.uri, "killed")
    (spool / "sent.json").write_text(noted, encoding="utf-8")
    send(spool, mlflow_server.uri, "killed")

    client = mlflow_server.client()
    runs, models = runs_of(client, "killed"), models_of(client, "killed")
    losses = client.get_metric_history(runs["pretrain"].info.run_id, "train/loss")
    assert sorted((each.step, each.value) for each in losses) == [(n, 9.0 / n) for n in range(1, STEPS + 1)]
    assert sorted(runs) == ["evaluate", "flow", "pretrain", "report"]
    assert sorted(models) == ["adapted", "finetuned"]
    scores = [each for each in models["adapted"].metrics if each.key == "bits_per_byte/adapted"]
    assert len(scores) == 1
    files = [each.path for each in client.list_artifacts(runs["flow"].info.run_id)]
    assert sorted(files) == ["recipe.yaml", "report.html", "report.md", "scores.json"]


def test_figures_of_a_model_arrive_though_the_server_went_away_after_the_model_was_linked(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    away = True

    def no_figures(request: Request) -> Reply | None:
        return (
            Reply(status=503) if away and b"model_id" in request.content and "batch" in request.path else None
        )

    spool = write_run(tmp_path, "linked")
    with proxy(mlflow_server.uri, no_figures) as (uri, _):
        with pytest.raises(Exception, match="503"):
            send(spool, uri, "linked")
        away = False
        send(spool, uri, "linked")

    adapted = models_of(mlflow_server.client(), "linked")["adapted"]
    assert sorted(each.key for each in adapted.metrics) == [
        "bits_per_byte/adapted", "fertility/adapted", "pretrain_loss",
    ]  # fmt: skip


def test_an_artifact_store_that_is_away_holds_up_no_number_and_gets_its_files_later(
    mlflow_server: MlflowServer, tmp_path: Path
) -> None:
    away = True

    def no_files(request: Request) -> Reply | None:
        return Reply(status=503) if away and request.method == "PUT" else None

    spool, client = write_run(tmp_path, "files"), mlflow_server.client()
    with proxy(mlflow_server.uri, no_files) as (uri, _):
        with pytest.raises(OSError, match="artifacts: "):
            send(spool, uri, "files")
        assert runs_of(client, "files")["pretrain"].data.metrics["pretrain_loss"] == 3.68
        assert has_unsent(spool)
        away = False
        send(spool, uri, "files")

    parent = runs_of(client, "files")["smoke 2026-11-23 02:35"].info.run_id
    assert len(client.list_artifacts(parent)) == 4


def test_a_server_without_models_of_runs_takes_the_rest(
    mlflow_server: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def mlflow_2(request: Request) -> Reply | None:
        return Reply(status=404, text="<h1>Not Found</h1>") if "logged-models" in request.path else None

    with proxy(mlflow_server.uri, mlflow_2) as (uri, _):
        send(write_run(tmp_path, "two"), uri, "two")

    runs = runs_of(mlflow_server.client(), "two")
    assert runs["evaluate"].info.status == "FINISHED"
    assert len(runs["evaluate"].inputs.dataset_inputs) == 2
    assert caplog.text.count("this server knows no models of runs") == 1


def test_steps_with_senders_of_their_own_share_the_run_of_their_pipeline(
    mlflow_server: MlflowServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = mlflow_server.uri.replace("//", f"//me:{PASSWORD}@")
    for place in ("first", "second"):
        spool = tmp_path / place
        spool.mkdir()
        if place == "first":
            end_pretrain(write_pretrain(spool, "steps"), "steps", tmp_path)
        else:
            write_scores(spool, "steps", tmp_path)
        send(spool, uri, "steps", shared="run-77")

    assert PASSWORD not in "".join(capfd.readouterr())
    runs = runs_of(mlflow_server.client(), "steps")
    assert sorted(runs) == ["evaluate", "pretrain", "report", "smoke 2026-11-23 02:35"]
    assert len(models_of(mlflow_server.client(), "steps")) == 2


def test_a_short_step_costs_few_requests(mlflow_server: MlflowServer, tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "encode.jsonl", "encode")
    tracker.start()
    for kind in ("params", "tags", "run params", "run tags"):
        tracker.texts(kind, {f"{kind.replace(' ', '_')}{number}": "1" for number in range(60)})
    tracker.metrics({"tokens": 5.0, "seconds": 1.0})
    tracker.end("FINISHED")
    with proxy(mlflow_server.uri) as (uri, seen):
        send(tmp_path, uri, "few")

    run = runs_of(mlflow_server.client(), "few")["encode"].data
    assert (len(run.params), run.metrics["encode_tokens"]) == (60, 5)
    # One for each value would be 242; a server with passwords hashes one for each request, .5 to 2 s.
    assert len(seen) <= 16, [request.path for request in seen]


def test_what_a_step_could_not_send_the_end_of_its_run_sends(
    mlflow_server: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = str(tmp_path / "root" / "runs" / "run-78" / "unsent")
    with run_sender(tmp_path / "pod" / SPOOL, "http://127.0.0.1:9", "left", "az", "run-78", left):
        tracker = Tracker(tmp_path / "pod" / SPOOL / "encode.jsonl", "encode")
        tracker.start()
        tracker.metrics({"tokens": 5.0})
        tracker.end("FINISHED")
    assert "sends it" in caplog.text
    client = mlflow_server.client()
    experiment = client.create_experiment("left")
    parent = client.create_run(experiment, tags={"anadil.run": "run-78"}).info.run_id
    tags = {"mlflow.parentRunId": parent}
    killed = client.create_run(experiment, tags=tags, run_name="pretrain").info.run_id

    recipe = parse_recipe(
        "", "r",
        [f"tracking.uri={mlflow_server.uri}", "tracking.experiment=left", f"storage.root={tmp_path / 'root'}"],
    )  # fmt: skip
    send_left(recipe, "run-78", "FAILED")

    runs = runs_of(client, "left")
    assert (runs["encode"].info.status, runs["encode"].data.metrics["encode_tokens"]) == ("FINISHED", 5)
    assert client.get_run(killed).info.status == "KILLED"
    assert client.get_run(parent).info.status == "FAILED"
    assert list(Path(left).iterdir()) == []


def test_sagemakers_managed_mlflow_is_reached_by_its_arn(
    mlflow_server: MlflowServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its artifacts go to S3 directly, as there."""
    pytest.importorskip("sagemaker_mlflow", reason="the extra tracking is not installed")
    arn = "arn:aws:sagemaker:eu-central-1:123456789012:mlflow-tracking-server/az"
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"])
    mlflow_server.client().create_experiment("arn", artifact_location=f"{bucket}/mlflow")
    with proxy(mlflow_server.uri) as (uri, seen):
        monkeypatch.setenv(SAGEMAKER_VARIABLE, uri)
        send(write_run(tmp_path, "arn"), arn, "arn")

    assert len(runs_of(mlflow_server.client(), "arn")) == 4
    assert len(storage.expand([f"{bucket}/mlflow/**/report.html"], "x")) == 1
    signed = {request.headers["Authorization"].split("/")[0] for request in seen}
    assert signed == {"AWS4-HMAC-SHA256 Credential=testing-key"}
    assert {request.headers["x-mlflow-sm-tracking-server-arn"] for request in seen} == {arn}


def test_a_server_that_wants_a_login_says_what_to_set_and_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spool = write_run(tmp_path, "login")
    with http_server(lambda _: Reply(status=401, text="You are not authenticated.")) as port:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{PASSWORD}@127.0.0.1:{port}")
        monkeypatch.setattr("sys.argv", ["mlflow_sender", str(spool)])
        for name, value in mlflow_sender.LIMITS.items():
            monkeypatch.setenv(name, value)
        code = mlflow_sender.main()

    told = capfd.readouterr().err
    assert code == 1
    assert "MLflow refuses: " in told
    assert "MLFLOW_TRACKING_TOKEN" in told
    assert PASSWORD not in told
    assert has_unsent(spool)
