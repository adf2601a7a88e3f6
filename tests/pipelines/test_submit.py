import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from anadil import __version__
from anadil.cli import main
from anadil.core.errors import PreflightError, RecipeError
from anadil.preflight.services import check_reach
from anadil.recipe.load import load_recipe
from anadil.runtime.kfp import VARIED
from anadil_pipelines.adapt import pipeline_yaml
from anadil_pipelines.server import Kubeflow
from anadil_pipelines.steps import with_clean_workers
from tests.kit.fake_kubeflow import FakeKubeflow, fake_kubeflow

from .conftest import Command


def test_a_run_is_started_of_an_uploaded_version_with_the_recipe(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = anadil("submit", recipe_file, "--name", "first", "-o", "json", "--service-account", "runner")

    shown = json.loads(capsys.readouterr().out)
    [run], [version] = kubeflow.runs, kubeflow.pipeline_versions
    assert code == 0
    assert shown == {"run": run["run_id"], "page": f"{kubeflow.url}/#/runs/details/{run['run_id']}"}
    assert run["display_name"] == "first"
    assert run["service_account"] == "runner"
    assert run["experiment_id"] == kubeflow.experiments[0]["experiment_id"]
    assert run["pipeline_version_reference"]["pipeline_version_id"] == version["pipeline_version_id"]
    assert load_recipe(run["runtime_config"]["parameters"]["recipe"]) == with_clean_workers(
        load_recipe(recipe_file)
    )
    shown_values = {name: run["runtime_config"]["parameters"][name] for name in VARIED}
    assert shown_values == {
        "base": "tiny",
        "steps": "[5000, 15000]",
        "learning_rate": "[0.0032, 0.0024]",
        "vocabulary": "[100000]",
        "inputs": '["s3://bucket/raw/*.jsonl"]',
        "root": "s3://bucket/root",
    }
    assert version["name"].startswith(f"anadil-adapt-{__version__}-")
    documents = list(yaml.safe_load_all(pipeline_yaml(with_clean_workers(load_recipe(recipe_file)))))
    assert version["pipeline_spec"] == {"pipeline_spec": documents[0], "platform_spec": documents[1]}


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("base.model=smollm2", "base.model: smollm2 needs gguf and pip, which the image of tokenizer does not hold; set base.model to"),
        ("tracking.uri=postgresql://host/it", "needs sqlalchemy and alembic, which the image of"),
        ("tokenizer.keep=[/data/a.PARQUET]", "set tokenizer.keep to the same text as .jsonl.zst or .txt, or run it on a machine"),
    ],
)  # fmt: skip
def test_a_value_whose_packages_no_image_holds_is_refused_before_anything_is_sent(
    setting: str, reason: str, anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "pipeline.yaml"

    codes = [
        anadil("submit", recipe_file, "--set", setting),
        main.main(["compile", recipe_file, "--set", setting, "-f", str(out)]),
    ]

    assert (codes, kubeflow.count(), out.exists()) == ([2, 2], {}, False)
    assert capsys.readouterr().err.count(reason) == 2


def test_the_same_recipe_is_uploaded_once_and_another_one_is_a_version_beside_it(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str
) -> None:
    for words in ([], ["--again"], ["--set", "seed=1"], ["--set", "seed=2"], ["--set", "seed=1", "--again"]):
        assert anadil("submit", recipe_file, *words) == 0

    assert kubeflow.count() == {
        "POST /experiments": 1,
        "POST /pipelines": 1,
        "POST /pipelines/upload_version": 3,
        "POST /runs": 5,
    }


def test_what_is_there_is_found_behind_the_first_page(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str
) -> None:
    for number in range(5):
        kubeflow.experiments.append({"experiment_id": f"e{number}", "display_name": f"other {number}"})
        kubeflow.pipelines.append({"pipeline_id": f"p{number}", "display_name": f"other {number}"})
    kubeflow.experiments.append({"experiment_id": "ours", "display_name": "anadil"})
    kubeflow.pipelines.append({"pipeline_id": "ours", "display_name": "anadil-adapt"})

    anadil("submit", recipe_file)

    assert kubeflow.count() == {"POST /pipelines/upload_version": 1, "POST /runs": 1}
    assert kubeflow.pipeline_versions[0]["pipeline_id"] == "ours"
    assert kubeflow.runs[0]["experiment_id"] == "ours"


def test_a_second_submission_attaches_to_the_run_that_is_under_way(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anadil("submit", recipe_file, "-o", "json")
    first = json.loads(capsys.readouterr().out)["run"]
    for number in range(4):
        kubeflow.runs.append(kubeflow.runs[0] | {"run_id": f"later-{number}", "state": "FAILED"})

    code = anadil("submit", recipe_file, "-o", "json")

    out, messages = capsys.readouterr()
    assert code == 0
    assert json.loads(out)["run"] == first
    assert f"run {first} of the same recipe is under way; --again starts another" in messages
    assert kubeflow.count()["POST /runs"] == 1
    # One that ended is no run under way.
    kubeflow.runs[0]["state"] = "FAILED"
    anadil("submit", recipe_file)
    assert kubeflow.count()["POST /runs"] == 2


@pytest.mark.parametrize("path", ["/experiments", "/pipelines", "/pipelines/upload_version"])
def test_somebody_who_is_faster_is_no_failure(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, path: str
) -> None:
    answer = kubeflow.answer

    def faster(request: Any) -> Any:
        made = answer(request)
        if request.method == "POST" and request.path.endswith(path):
            return answer(request)  # a second one, which the server refuses with 409
        return made

    kubeflow.answer = faster  # type: ignore[method-assign]  # the server's, not ours

    code = anadil("submit", recipe_file)

    assert code == 0
    assert len(kubeflow.experiments) == len(kubeflow.pipelines) == len(kubeflow.pipeline_versions) == 1


@pytest.mark.parametrize(
    ("failing", "status", "code", "words"),
    [
        ("GET /healthz", 401, 4, "does not know who asks"),
        ("GET /experiments", 403, 4, "ask the administrator for the role kubeflow-pipelines-edit"),
        ("POST /runs", 404, 4, "has no such thing"),
        ("POST /runs", 400, 4, "refuses what was sent (400: told to fail with 400)"),
        ("POST /runs", 500, 138, "failed for now (500: told to fail with 500); run the same command again"),
        ("POST /runs", 429, 138, "failed for now (429"),
    ],
)
def test_a_refusal_is_told_with_its_remedy_and_exit_code(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str],
    failing: str, status: int, code: int, words: str,
) -> None:  # fmt: skip
    kubeflow.failures = [(failing, status)]

    assert anadil("submit", recipe_file) == code

    out, messages = capsys.readouterr()
    assert words in messages
    assert kubeflow.url in messages
    assert out == ""
    assert "Traceback" not in messages


@pytest.mark.parametrize(
    ("host", "code", "words"),
    [
        ("http://127.0.0.1:9", 138, "http://127.0.0.1:9: Kubeflow Pipelines does not answer ("),
        ("http://nowhere.invalid:8888", 4, "give --host, or set KF_PIPELINES_ENDPOINT"),
    ],
)
def test_a_server_that_is_not_there_is_a_reason_to_try_again_and_an_unknown_host_a_mistake(
    anadil: Command, recipe_file: str, capsys: pytest.CaptureFixture[str], host: str, code: int, words: str
) -> None:
    assert anadil("submit", recipe_file, host=host) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"version": "2.15.2"}, "Kubeflow Pipelines 2.15.2 is too old; install 2.16 or newer"),
        ({"version": "v1.8.22"}, "too old"),
        ({"login_page": True}, "a login page"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_before_anything_is_sent(
    answers: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_kubeflow(**answers) as old, pytest.raises(PreflightError, match=message):
        Kubeflow(old.url)

    assert [request.method for request in old.requests] == ["GET"] * len(old.requests)
    with fake_kubeflow(version="unknown") as nightly:
        Kubeflow(nightly.url)
    assert "does not tell its version ('unknown'); 2.16 or newer is needed" in caplog.text


def test_the_token_of_the_service_account_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(token))

    with fake_kubeflow(token="s3cret") as fake:
        experiment = Kubeflow(fake.url).experiment("anadil")

    assert experiment == fake.experiments[0]["experiment_id"]


def test_several_users_need_a_namespace() -> None:
    with fake_kubeflow(multi_user=True) as fake:
        with pytest.raises(PreflightError, match="serves several users; say whose with --namespace"):
            Kubeflow(fake.url)
        Kubeflow(fake.url, "team").experiment("anadil")

    assert fake.experiments[0]["namespace"] == "team"


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert anadil("submit", recipe_file, "--name", "first", "--dry-run") == 0
    summary = capsys.readouterr().out
    assert len(summary.splitlines()) < 15
    assert re.search(r"steps +.*clean, tokenizer, .*report\n", summary)
    assert re.search(
        r"requests +POST /apis/v2beta1/experiments \(if not there\), .*POST /apis/v2beta1/runs\n", summary
    )
    code = anadil("submit", recipe_file, "--name", "first", "--dry-run", "-o", "yaml")
    printed = capsys.readouterr().out
    nothing = list(kubeflow.requests)
    anadil("submit", recipe_file, "--name", "first")

    requests, spec, platform = yaml.safe_load_all(printed)
    ids = {
        "<experiment_id>": kubeflow.experiments[0]["experiment_id"],
        "<pipeline_id>": kubeflow.pipelines[0]["pipeline_id"],
        "<pipeline_version_id>": kubeflow.pipeline_versions[0]["pipeline_version_id"],
    }
    text = json.dumps(requests)
    for name, number in ids.items():
        text = text.replace(name, number)
    shown = {each["POST"]: each for each in json.loads(text)["requests"]}
    assert (code, nothing) == (0, [])
    for path in ("/experiments", "/pipelines", "/runs"):
        assert kubeflow.sent("POST", path) == [shown[f"/apis/v2beta1{path}"]["body"]]
    [upload] = [each for each in kubeflow.requests if each.path.endswith("upload_version")]
    assert upload.query == shown["/apis/v2beta1/pipelines/upload_version"]["query"]
    expected = {"pipeline_spec": spec, "platform_spec": platform}
    assert kubeflow.pipeline_versions[0]["pipeline_spec"] == expected


def test_places_of_one_machine_are_refused_and_a_dry_run_warns_of_them(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = (
        "storage.root=null",
        "clean.inputs=[/data/raw.jsonl]",
        "finetune.inputs=[chats.jsonl]",
        "base.model=/models/llama",
    )
    with pytest.raises(RecipeError) as caught:
        check_reach(load_recipe(recipe_file, places))

    lines = str(caught.value).splitlines()
    assert {"  storage.root: not set", "  clean.inputs: /data/raw.jsonl"} < set(lines)
    assert {"  finetune.inputs: chats.jsonl", "  base.model: /models/llama"} < set(lines)
    assert lines[-1].startswith("  put it on s3://, or on a claim of cluster.volumes")
    claimed = (
        "storage.root=/fsx/root",
        "base.model=/fsx/llama",
        "clean.inputs=['builtin:az/prose.jsonl', '/fsx/raw/*']",
    )
    check_reach(load_recipe(recipe_file, ["cluster.volumes=[{claim: fsx, path: /fsx}]", *claimed]))
    assert anadil("submit", "smoke", "--dry-run", "-o", "yaml") == 0
    out, messages = capsys.readouterr()
    assert (
        "would be refused: no step on the cluster would see\n  storage.root: not set\n  put it on" in messages
    )
    assert len(list(yaml.safe_load_all(out))) == 3
    assert kubeflow.requests == []


def test_a_tracker_that_pods_cannot_log_in_to_is_told_before_a_run(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("submit", recipe_file, "--dry-run", "--set", "tracking.uri=wandb://az-team/az")
    said = "wandb: wandb://az-team/az: pods have no login of W&B, so nothing would arrive"

    assert anadil(*words) == 0
    assert said in capsys.readouterr().err
    assert anadil(*words, "--set", "cluster.secrets={team: [WANDB_API_KEY]}") == 0
    assert "no login of W&B" not in capsys.readouterr().err


def settings(*given: str) -> list[str]:
    return [word for each in given for word in ("--set", each)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["base.model=meta-llama/Llama-3.1-8B", "cluster.instance=g5.48xlarge"], "pretrain does not fit"),
        (
            ["cluster.backend=pytorchjob", "cluster.nodes=2", "pretrain.parallelism.shard=2"],
            "cluster.work: not set, and beside s3://bucket/root each of the 2",
        ),
    ],
)
def test_what_machines_cannot_do_is_refused_before_anything_is_sent(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str],
    given: list[str], words: str,
) -> None:  # fmt: skip
    code = anadil("submit", recipe_file, *settings(*given))

    assert code == 4
    assert words in capsys.readouterr().err
    assert kubeflow.requests == []
