import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.core import log as logs
from anadil.core import progress
from anadil.core.errors import RecipeError
from anadil.launch.sagemaker import SageMakerBackend, metric_definitions
from anadil.recipe.load import parse_recipe
from anadil.runtime.lookup import log_figures
from anadil.runtime.sagemaker import command
from tests.kit.aws import mistakes_of
from tests.kit.jobs import job
from tests.launch.sagemaker.golden import GOLDEN, JOBS, ON_AWS, request
from tests.launch.sagemaker.golden import sagemaker as sample


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_request_is_the_kept_one(path: Path) -> None:
    assert GOLDEN[path]() == path.read_text(encoding="utf-8"), "run `make golden` and read the difference"


@pytest.mark.parametrize("name", JOBS)
def test_botocore_takes_the_request(name: str) -> None:
    assert mistakes_of("sagemaker", "CreateTrainingJob", request(name)) == ""


@pytest.mark.parametrize("name", JOBS)
def test_the_request_keeps_the_limits_that_only_aws_checks(name: str) -> None:
    asked = request(name)
    algorithm = asked["AlgorithmSpecification"]

    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", asked["TrainingJobName"])
    assert max(len(text) for text in algorithm["ContainerArguments"]) <= 256
    assert max(len(each["Regex"]) for each in algorithm["MetricDefinitions"]) <= 500
    assert max(len(text) for text in asked["Environment"].values()) <= 512
    assert max(len(text) for text in asked["HyperParameters"].values()) <= 2_500
    assert all(re.fullmatch(r"[\w .:/=+@-]*", tag["Key"] + tag["Value"]) for tag in asked["Tags"])


def test_the_container_gets_back_the_recipe_that_was_launched(tmp_path: Path) -> None:
    launched = sample(
        "japanese-70b", "evaluate.prompts=[日本の首都は、 Bakı şəhəri]", f"report.title={'x' * 3_000}"
    )
    asked = SageMakerBackend().render(launched)
    path = tmp_path / "hyperparameters.json"
    path.write_text(json.dumps(asked["HyperParameters"]), encoding="utf-8")

    line = command(["pretrain", *asked["AlgorithmSpecification"]["ContainerArguments"]], path)

    assert len(asked["HyperParameters"]) == 2
    assert parse_recipe(line[4], "recipe") == launched.recipe
    assert line[5:] == list(launched.arguments[2:])


def test_metrics_are_read_from_the_lines_that_the_trainer_writes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.JsonFormatter("pretrain", 0))
    caplog.set_level(logging.INFO)
    logging.getLogger().addHandler(handler)
    shown = progress.Progress("pre-training", 15_000, None)
    shown.advance(1_234, note=f"loss {3.14159:.3f}")
    log_figures({"loss": 2.5e-05, "steps": 15_000, "tokens_per_s": 81_234.5, "seconds": 3.1})
    logging.getLogger().removeHandler(handler)

    found = {
        each["Name"]: re.findall(each["Regex"], written.getvalue()) for each in metric_definitions("pretrain")
    }

    assert found == {
        "pretrain:loss": ["3.142"],
        "pretrain:final_loss": ["2.5e-05"],
        "pretrain:final_tokens_per_s": ["81234.5"],
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("cluster.sagemaker.role=null",), "cluster.sagemaker.role: not set"),
        (("cluster.instance=null",), "cluster.instance: not set"),
        (("storage.root=/data",), "storage.root: /data is not on S3"),
        (("base.model=/models/llama",), "base.model: /models/llama is a directory of this machine"),
        (("cluster.deadline_hours=700",), "700 is more than SageMaker's 672"),
        (("cluster.sagemaker.volume_gb=9000",), "more than the 8000 GB of local NVMe that p4d.24xlarge"),
        ((f"cluster.secrets={{hub: [{', '.join(f'TOKEN_{n:03}' for n in range(60))}]}}",), "name fewer keys"),
        (("finetune.inputs=[chats.jsonl]",), "finetune.inputs: chats.jsonl is not on S3"),
        (
            ("finetune.inputs=[s3://bucket/chats.jsonl]", "finetune.preference.inputs=[pairs.jsonl]"),
            "finetune.preference.inputs: pairs.jsonl is not on S3",
        ),
    ],
)
def test_what_sagemaker_cannot_run_is_refused(overrides: tuple[str, ...], message: str) -> None:
    stage = "finetune" if overrides[0].startswith("finetune") else "pretrain"
    with pytest.raises(RecipeError, match=re.escape(message)):
        SageMakerBackend().render(sample("azerbaijani-1b", *overrides, stage=stage))


def test_more_files_than_a_command_line_takes_are_refused() -> None:
    files = tuple(f"s3://bucket/{number}.jsonl" for number in range(100))
    asked = sample("azerbaijani-1b", f"finetune.inputs=[{', '.join(files)}]", stage="finetune")

    with pytest.raises(RecipeError, match=r"finetune: 10\d arguments, and SageMaker takes 100; name a"):
        SageMakerBackend().render(replace(asked, files=files))


def test_keys_of_kubernetes_and_images_elsewhere_are_told(caplog: pytest.LogCaptureFixture) -> None:
    overrides = [each for each in ON_AWS if "image" not in each]

    SageMakerBackend().render(
        job("azerbaijani-8b", *overrides, "cluster.queue=team", "cluster.hyperpod=true")
    )

    assert "cluster.hyperpod, cluster.queue: has no meaning on SageMaker" in caplog.text
    assert "not in Amazon ECR" in caplog.text
