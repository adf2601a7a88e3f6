import json

import pytest
import yaml

from anadil.core.errors import RecipeError
from anadil_pipelines.submit import kubeflow_cron
from tests.kit.fake_kubeflow import FakeKubeflow

from .conftest import Command

SUNDAYS = "0 3 * * 0"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0 3 * * 0", "0 0 3 * * 0"),
        ("*/15 8-18 * * mon-fri", "0 */15 8-18 * * mon-fri"),
        ("0 0 ? JAN-MAR/2 *", "0 0 0 ? JAN-MAR/2 *"),
        ("@weekly", "0 0 0 * * 0"),
    ],
)
def test_a_schedule_gets_the_seconds_that_the_server_reads_first(given: str, expected: str) -> None:
    assert kubeflow_cron(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0 3 * *", "has 4 fields; write minute, hour, day of the month, month, day of the week"),
        ("60 3 * * 0", "'60' is no minute; give 0 to 59"),
        ("0 3 0 * *", "'0' is no day of the month; give 1 to 31"),
        ("0 3 * * 7", "'7' is no day of the week; give 0 to 6 (Sunday is 0)"),
        ("0 18-8 * * *", "'18-8' is no hour"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("0 3 * maj *", "'maj' is no month"),
        ("@reboot", "has 1 field;"),
    ],
)
def test_a_schedule_that_the_server_would_misread_is_refused(given: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        kubeflow_cron(given)

    assert str(caught.value).startswith(f"--cron {given!r}: ")
    assert words in str(caught.value)


def test_a_recurring_run_is_pinned_to_the_version_and_does_not_catch_up(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = anadil("schedule", recipe_file, "--cron", SUNDAYS, "-o", "json")

    told = capsys.readouterr()
    [made], [version] = kubeflow.recurring_runs, kubeflow.pipeline_versions
    shown = json.loads(told.out)
    assert code == 0
    assert shown["recurring_run"] == made["recurring_run_id"]
    assert shown["version"] == version["name"]
    assert made["display_name"] == "bakı"
    assert made["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * 0"}}
    assert made["mode"] == "ENABLE"
    assert made["no_catchup"] is True
    assert made["max_concurrency"] == "1"
    assert made["pipeline_version_reference"] == {
        "pipeline_id": version["pipeline_id"],
        "pipeline_version_id": version["pipeline_version_id"],
    }
    assert "UTC unless the server's CRON_SCHEDULE_TIMEZONE differs" in told.err


def test_a_new_schedule_takes_the_place_of_all_of_its_name(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str
) -> None:
    anadil("schedule", recipe_file, "--cron", SUNDAYS)
    for number in range(3):
        kubeflow.recurring_runs.append(kubeflow.recurring_runs[0] | {"recurring_run_id": f"by-hand-{number}"})
    anadil("schedule", recipe_file, "--cron", SUNDAYS, "--name", "other")

    anadil("schedule", recipe_file, "--cron", "0 4 * * 0", "--set", "seed=1")

    found = {
        each["display_name"]: each["trigger"]["cron_schedule"]["cron"] for each in kubeflow.recurring_runs
    }
    assert found == {"bakı": "0 0 4 * * 0", "other": "0 0 3 * * 0"}
    assert len(kubeflow.recurring_runs) == 2
    changes = [r.method for r in kubeflow.requests if "/recurringruns" in r.path and r.method != "GET"]
    assert changes[-5:] == ["DELETE"] * 4 + ["POST"]  # never two at a time


@pytest.mark.parametrize(
    ("failing", "status", "code", "left", "words"),
    [
        ("DELETE /recurringruns/.*", 404, 0, ["0 0 4 * * 0"], ""),
        ("DELETE /recurringruns/.*", 403, 4, ["0 0 3 * * 0"], ""),
        ("POST /recurringruns", 503, 138, [], "bakı: the old schedule was deleted, and the new one was refused"),
    ],
    ids=["gone already", "cannot be removed", "the new one is refused"],
)  # fmt: skip
def test_a_schedule_that_cannot_be_replaced_stays_alone_or_is_said_to_be_gone(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str],
    failing: str, status: int, code: int, left: list[str], words: str,
) -> None:  # fmt: skip
    anadil("schedule", recipe_file, "--cron", SUNDAYS)
    kubeflow.failures = [(failing, status)]

    assert anadil("schedule", recipe_file, "--cron", "0 4 * * 0") == code

    assert [each["trigger"]["cron_schedule"]["cron"] for each in kubeflow.recurring_runs][-1:] == left
    assert words in capsys.readouterr().err


def test_a_schedule_can_be_switched_and_removed_once(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anadil("schedule", recipe_file, "--cron", SUNDAYS)

    for word, mode in (("--disable", "DISABLE"), ("--enable", "ENABLE")):
        assert anadil("schedule", recipe_file, word) == 0
        assert [each["mode"] for each in kubeflow.recurring_runs] == [mode]
    codes = [anadil("schedule", recipe_file, "--remove") for _ in range(2)]

    assert codes == [0, 3]
    assert kubeflow.recurring_runs == []
    assert "bakı: no such recurring run in experiment anadil" in capsys.readouterr().err


def test_a_dry_run_of_a_schedule_prints_what_would_be_sent(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    anadil("schedule", recipe_file, "--cron", SUNDAYS, "--dry-run", "-o", "yaml")
    printed = capsys.readouterr().out
    nothing = list(kubeflow.requests)
    anadil("schedule", recipe_file, "--cron", SUNDAYS)

    requests, spec, platform = yaml.safe_load_all(printed)
    *_, removed, made = requests["requests"]
    [sent] = kubeflow.sent("POST", "/recurringruns")
    assert nothing == []
    assert removed == {"DELETE": "/apis/v2beta1/recurringruns/<recurring_run_id>", "if": "named bakı"}
    ids = ("experiment_id", "pipeline_version_reference")
    assert {key: value for key, value in sent.items() if key not in ids} == {
        key: value for key, value in made["body"].items() if key not in ids
    }
    assert kubeflow.pipeline_versions[0]["pipeline_spec"] == {
        "pipeline_spec": spec,
        "platform_spec": platform,
    }


def test_a_recurring_retraining_is_pinned(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("schedule", recipe_file, "--retrain", "--cron", SUNDAYS)
    registry = ("--set", "tracking.uri=http://mlflow:5000")

    assert anadil(*words) == 2
    assert "tracking.uri: not set: the steps of a retraining ask MLflow's registry" in capsys.readouterr().err
    assert anadil(*words, "--set", "tracking.uri=wandb://az-team/az") == 2
    said = capsys.readouterr().err
    assert "tracking.uri: wandb://az-team/az: the steps of a retraining ask MLflow's registry" in said
    assert "or give MLFLOW_TRACKING_URI by a Secret of cluster.secrets" in said
    assert anadil(*words, "--set", "tracking.uri=sqlite:////data/mlflow.db") == 2
    assert anadil(*words, *registry) == 0

    [made], [version] = kubeflow.recurring_runs, kubeflow.pipeline_versions
    assert made["pipeline_version_reference"]["pipeline_version_id"] == version["pipeline_version_id"]
    assert made["description"].startswith(
        "Retrain the az champion on the text and chats that came since, anadil"
    )
    tasks = version["pipeline_spec"]["pipeline_spec"]["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert "retrain" in tasks


def test_a_registry_may_come_by_a_secret_and_a_dry_run_warns_where_none_is_named(
    anadil: Command, kubeflow: FakeKubeflow, recipe_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("submit", recipe_file, "--retrain")

    assert anadil(*words, "--dry-run") == 0
    assert "tracking.uri: not set: the steps of a retraining ask" in capsys.readouterr().err
    assert anadil(*words, "--set", "cluster.secrets={mlflow: [MLFLOW_TRACKING_URI]}") == 0
