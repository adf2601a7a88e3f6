import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from anadil.core.errors import (
    AnadilError,
    BudgetReached,
    DataError,
    PreflightError,
    RecipeError,
    RetryableError,
    Stopped,
)
from anadil.launch import sagemaker
from anadil.launch.sagemaker import SPEC, SageMakerBackend
from tests.kit.aws import Fakes
from tests.launch.sagemaker.golden import sagemaker as sample

NAME = "anadil-pretrain-b78f5ad1e0"
START = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sagemaker, "POLL_S", 0.0)


@pytest.fixture
def aws() -> Fakes:
    return Fakes("sagemaker", "logs")


def described(status: str, second: str, *seen: str, **more: Any) -> dict[str, Any]:
    asked = SageMakerBackend().render(sample("azerbaijani-1b"))
    transitions = [
        {"Status": name, "StartTime": START + timedelta(minutes=i), "StatusMessage": f"message {i}"}
        for i, name in enumerate(seen or (second,))
    ]
    return {
        **{key: value for key, value in asked.items() if key != "Tags"},
        "TrainingJobArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{asked['TrainingJobName']}",
        "ModelArtifacts": {"S3ModelArtifacts": "s3://b/model.tar.gz"},
        "TrainingJobStatus": status,
        "SecondaryStatus": second,
        "SecondaryStatusTransitions": transitions,
        "CreationTime": START,
        **more,
    }


def not_there(aws: Fakes) -> None:
    aws.refuse("sagemaker", "describe_training_job", "ValidationException", "Requested resource not found.")


def it_runs(aws: Fakes) -> None:
    """The only start of the job is at work."""
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Training"))
    not_there(aws)


def no_log(aws: Fakes, times: int = 1) -> None:
    for _ in range(times):
        aws.refuse("logs", "describe_log_streams", "ResourceNotFoundException", "no group")


def test_a_job_is_created_followed_and_each_line_said_once(
    aws: Fakes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    work = sample("azerbaijani-1b")
    asked = SageMakerBackend().render(work)
    stream = f"{asked['TrainingJobName']}/algo-1-1700000000"
    not_there(aws)
    answer = {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"}
    aws.answer("sagemaker", "create_training_job", answer, asked)
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Starting"))
    no_log(aws)
    steps = ("Starting", "Training")
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Training", *steps))
    pages = [("f/1", None, ["one", "two"]), ("f/1", "f/1", [])]
    again = [("f/2", "f/1", ["three"]), ("f/2", "f/2", [])]
    for some in (pages, again):
        aws.answer(
            "logs", "describe_log_streams", {"logStreams": [{"logStreamName": stream}]},
            {
                "logGroupName": "/aws/sagemaker/TrainingJobs", "orderBy": "LogStreamName",
                "logStreamNamePrefix": f"{asked['TrainingJobName']}/algo-1-",
            },
        )  # fmt: skip
        for after, token, lines in some:
            events = [{"timestamp": 1, "message": line, "ingestionTime": 1} for line in lines]
            wanted = {
                "logGroupName": "/aws/sagemaker/TrainingJobs", "logStreamName": stream, "startFromHead": True,
                **({"nextToken": token} if token else {}),
            }  # fmt: skip
            aws.answer("logs", "get_log_events", {"events": events, "nextForwardToken": after}, wanted)
    done = described("Completed", "Completed", *steps, "Completed", BillableTimeInSeconds=3_600)
    aws.answer("sagemaker", "describe_training_job", done)

    SageMakerBackend(clients=aws).run(work)

    aws.done()
    assert capsys.readouterr().err == "one\ntwo\nthree\n"
    assert caplog.text.count("Training: message 1") == 1
    assert "billed 1 h" in caplog.text


def test_the_same_job_is_adopted(aws: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    it_runs(aws)

    SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"), detach=True)

    aws.done()
    assert "runs already; following it" in caplog.text


def test_a_launcher_that_comes_second_adopts_the_job_of_the_first(aws: Fakes) -> None:
    not_there(aws)
    aws.refuse("sagemaker", "create_training_job", "ResourceInUse", "Training job names must be unique")
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Starting"))

    SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"), detach=True)

    aws.done()


def test_another_job_of_the_same_name_is_told_with_its_differences(aws: Fakes) -> None:
    it_runs(aws)

    with pytest.raises(RecipeError, match=r"\(ResourceConfig\.InstanceCount: 2 instead of 4\).*anadil stop"):
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b", "cluster.nodes=4"))


def test_a_job_that_failed_is_started_again_under_another_name_with_its_checkpoints(
    aws: Fakes, bucket: str
) -> None:
    overrides = (f"storage.root={bucket}",)
    work = sample("azerbaijani-1b", *overrides)
    work = type(work)(stage=work.stage, recipe=work.recipe, inputs=work.inputs, target=f"{bucket}/model/2")
    asked = SageMakerBackend().render(work)
    aws.answer("sagemaker", "describe_training_job", described("Failed", "Failed"))
    not_there(aws)
    answer = {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/x"}
    renamed = {**asked, "TrainingJobName": f"{asked['TrainingJobName']}-r1"}
    aws.answer("sagemaker", "create_training_job", answer, renamed)

    SageMakerBackend(clients=aws).run(work, detach=True)

    aws.done()
    assert renamed["CheckpointConfig"]["S3Uri"].endswith(asked["TrainingJobName"])


@pytest.mark.parametrize(
    ("second", "reason", "error", "message"),
    [
        ("Failed", 'AlgorithmError: {"exit_code": 3, "message": "corpus"}, exit code: 3', DataError, "corpus"),
        ("Failed", "AlgorithmError: , exit code: 137", RetryableError, "exit code: 137"),
        ("Failed", "AlgorithmError: , exit code: 1", AnadilError, "see its log"),
        ("Failed", "CapacityError: Unable to provision requested ML compute capacity.", RetryableError, "take another"),
        ("Failed", "InternalServerError: We encountered an internal error.", RetryableError, "run the same"),
        ("Stopped", "", Stopped, "resume from its checkpoint"),
        ("MaxRuntimeExceeded", "", BudgetReached, "cluster.deadline_hours"),
        ("MaxWaitTimeExceeded", "", RetryableError, "no spot capacity"),
    ],
)  # fmt: skip
def test_an_end_is_an_error_of_the_right_class(
    aws: Fakes, second: str, reason: str, error: type[AnadilError], message: str
) -> None:
    it_runs(aws)
    status, more = ("Failed", {"FailureReason": reason}) if reason else ("Stopped", {})
    aws.answer("sagemaker", "describe_training_job", described(status, second, "Training", second, **more))
    no_log(aws)

    with pytest.raises(error, match=re.escape(message)) as raised:
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))

    assert type(raised.value) is error


def test_a_failure_shows_the_last_lines_as_sentences(aws: Fakes) -> None:
    line = json.dumps({"ts": "x", "level": "error", "stage": "pretrain", "rank": 0, "msg": "corpus is empty"})
    it_runs(aws)
    ended = described("Failed", "Failed", FailureReason="AlgorithmError: , exit code: 3")
    aws.answer("sagemaker", "describe_training_job", ended)
    aws.answer("logs", "describe_log_streams", {"logStreams": [{"logStreamName": f"{NAME}/algo-1-1"}]})
    for _ in range(2):
        events = [{"timestamp": 1, "message": line, "ingestionTime": 1}]
        aws.answer("logs", "get_log_events", {"events": events, "nextForwardToken": "f/1"})
        line = "later"

    with pytest.raises(DataError, match=r"exit code: 3\n  pretrain: error: corpus is empty\n  later"):
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))


def test_a_spot_interruption_is_explained(aws: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    it_runs(aws)
    seen = ("Starting", "Training", "Interrupted", "Starting", "Training")
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Training", *seen))
    aws.answer("sagemaker", "describe_training_job", described("Completed", "Completed", *seen, "Completed"))
    no_log(aws, 2)

    SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))

    assert caplog.text.count("spot capacity was taken away; it resumes from its checkpoint") == 1


def signals_itself(number: int) -> Callable[[float], None]:
    """A `time.sleep` that is interrupted; threads that other tests have left sleep on."""
    sleep, main = time.sleep, threading.main_thread()

    def interrupted(seconds: float) -> None:
        if threading.current_thread() is main:
            os.kill(os.getpid(), number)
        else:
            sleep(seconds)

    return interrupted


def test_sigterm_stops_the_job_first_thing(aws: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    it_runs(aws)
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Training"))
    no_log(aws)
    asked = {"TrainingJobName": described("InProgress", "Training")["TrainingJobName"]}
    aws.answer("sagemaker", "stop_training_job", {}, asked)
    monkeypatch.setattr(time, "sleep", signals_itself(signal.SIGTERM))

    with pytest.raises(Stopped):
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))

    aws.done()


def test_ctrl_c_leaves_a_job_that_ran_already(
    aws: Fakes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    it_runs(aws)
    aws.answer("sagemaker", "describe_training_job", described("InProgress", "Training"))
    no_log(aws)
    monkeypatch.setattr(time, "sleep", signals_itself(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))

    aws.done()
    assert "keeps running; `anadil stop anadil-pretrain-" in caplog.text


def test_a_refusal_names_the_actions_that_the_role_needs(aws: Fakes) -> None:
    not_there(aws)
    aws.refuse("sagemaker", "create_training_job", "AccessDeniedException", "User x is not authorized")

    with pytest.raises(PreflightError, match="grant sagemaker:CreateTrainingJob, iam:PassRole"):
        SageMakerBackend(clients=aws).run(sample("azerbaijani-1b"))


def test_status_tells_machines_restarts_and_the_artifact(aws: Fakes) -> None:
    seen = ("Starting", "Training", "Interrupted", "Starting", "Training")
    running = described(
        "InProgress", "Training", *seen, TrainingStartTime=START, TrainingEndTime=START + timedelta(hours=1)
    )
    aws.answer("sagemaker", "describe_training_job", running)
    not_there(aws)

    status = SageMakerBackend(clients=aws).status("anadil-pretrain-x")

    assert (status.state, status.running, status.nodes, status.restarts) == ("running", 2, 2, 1)
    assert (status.seconds, status.artifact) == (3_600.0, "s3://my-bucket/anadil/model/2")
    assert status.message == "message 4"


def test_a_job_that_is_not_there_is_a_data_error(aws: Fakes) -> None:
    not_there(aws)

    with pytest.raises(DataError, match="no such training job in this account and region"):
        SageMakerBackend(clients=aws).status("anadil-pretrain-x")


def test_a_job_that_has_ended_is_not_stopped_again(aws: Fakes) -> None:
    aws.answer("sagemaker", "describe_training_job", described("Completed", "Completed"))
    not_there(aws)

    assert SageMakerBackend(clients=aws).stop("anadil-pretrain-x") is False


def test_a_log_that_may_not_be_read_is_no_empty_log(aws: Fakes) -> None:
    aws.answer("sagemaker", "describe_training_job", described("Completed", "Completed"))
    not_there(aws)
    aws.refuse("logs", "describe_log_streams", "AccessDeniedException", "not authorized")

    with pytest.raises(PreflightError, match="grant logs:DescribeLogStreams and logs:GetLogEvents"):
        list(SageMakerBackend(clients=aws).logs("anadil-pretrain-x"))


def test_moto_takes_the_request_over_http(bucket: str) -> None:
    work = sample("azerbaijani-1b", f"storage.root={bucket}")
    work = type(work)(stage=work.stage, recipe=work.recipe, inputs=work.inputs, target=f"{bucket}/model/2")
    backend = SageMakerBackend(region="us-east-1")

    backend.run(work)  # moto's jobs are completed at once

    status = backend.status(work.name)
    assert (status.state, status.exit_code, status.artifact) == ("succeeded", 0, f"{bucket}/model/2")
    assert list(backend.logs(work.name)) == []
    assert SPEC in backend.render(work)["Environment"]
