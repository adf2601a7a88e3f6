"""The description of a cluster: every mistake at once, with its line."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from anadil.cli import main
from anadil.core.errors import RecipeError
from anadil.launch.hyperpod.commands import deletions
from anadil.launch.hyperpod.config import REPOSITORIES, load_description
from anadil.launch.hyperpod.requests import cluster, requests_of
from tests.kit.aws import mistakes_of
from tests.kit.hyperpod import EXAMPLE, described, example
from tests.launch.hyperpod.golden import FOLDER, GOLDEN

PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/spring"


def test_the_example_has_no_mistake() -> None:
    description = load_description(EXAMPLE)

    assert description.eks_name == "anadil"
    assert [group.count for group in description.groups] == [8, 2]


def test_every_mistake_is_told_at_once_with_line_and_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    text = EXAMPLE.read_text(encoding="utf-8")
    text = text.replace("node_recovery: Automatic", "node_recover: Automatic").replace(
        "count: 8", "count: eight"
    )
    file.write_text(text.replace("capacity_gib: 4800", "capacity_gib: 5000"), encoding="utf-8")
    lines = file.read_text(encoding="utf-8").splitlines()

    with pytest.raises(RecipeError) as raised:
        load_description(file)

    message = str(raised.value)
    assert message.startswith(f"{file}: 3 mistakes")
    where = {
        key: next(i for i, line in enumerate(lines, 1) if key in line)
        for key in ("node_recover:", "count: eight", "5000")
    }
    assert (
        f"line {where['node_recover:']}: node_recover: unknown key; did you mean 'node_recovery'?" in message
    )
    assert f"line {where['count: eight']}: groups.0.count: " in message
    assert (
        f"line {where['5000']}: fsx.capacity_gib: FSx has 1200, 2400 and multiples of 2400; take 4800 or 7200"
        in message
    )


@pytest.mark.parametrize("size", [1_200, 2_400, 4_800, 48_000])
def test_sizes_that_fsx_has_are_taken(size: int) -> None:
    assert described(fsx={**example()["fsx"], "capacity_gib": size}).fsx is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fsx": {"capacity_gib": 600, "subnet": "subnet-0a"}}, "take 1200 or 2400"),
        ({"fsx": {"capacity_gib": 3600, "subnet": "subnet-0a"}}, "take 2400 or 4800"),
        ({"fsx": {"capacity_gib": 2400, "subnet": "subnet-0a", "throughput": 200}}, "125, 250, 500 or 1000"),
        ({"fsx": {"capacity_gib": 2400, "subnet": "subnet-0a", "links": [
            {"path": "/data", "s3": "s3://b/a"}, {"path": "/data/raw", "s3": "s3://b/c"}]}}, "/data/raw/ lies in /data/"),
        ({"fsx": {"capacity_gib": 2400, "subnet": "subnet-0a", "links": [
            {"path": "/a", "s3": "s3://b"}, {"path": "/c", "s3": "s3://b/c"}]}}, "s3://b/c/ lies in s3://b/"),
        ({"groups": [{"name": "a", "type": "ml.p5.48xlarge", "count": 1, "spot": True,
            "training_plan": PLAN.replace("west-2", "east-1")}]}, "spot contradicts training_plan"),
        ({"groups": [{"name": "a", "type": "ml.p5.48xlarge", "count": 1, "min": 2}]}, "min 2 is more than count 1"),
        ({"groups": [{"name": "a", "type": "ml.m5.large", "count": 1}] * 2}, "a is given twice"),
        ({"groups": [{"name": "a", "type": "ml.p5.48xlarge", "count": 1, "training_plan": PLAN}]}, "is in us-west-2"),
        ({"groups": [{"name": "a", "type": "p5.48xlarge", "count": 1}]}, "should match pattern"),
        ({"region": "eu-west-1"}, "eks: is in us-east-1, and the cluster in eu-west-1"),
        ({"groups": []}, "at least 1 item"),
    ],
)  # fmt: skip
def test_what_aws_would_refuse_later_is_refused_now(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        described(**changes)

    assert message in str(raised.value)


def test_a_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("- a\n", encoding="utf-8")

    with pytest.raises(RecipeError, match="is a table of keys; see examples/hyperpod"):
        load_description(file)
    with pytest.raises(RecipeError, match=r"none\.yaml: cannot be read"):
        load_description(tmp_path / "none.yaml")


def test_every_image_has_a_repository() -> None:
    assert {
        "clean",
        "clean-ray",
        "tokenizer",
        "pretrain",
        "finetune",
        "tasks",
        "evaluate",
        "tools",
        "pipelines",
        "mlflow",
    } == set(REPOSITORIES)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_requests_are_the_kept_ones(path: Path) -> None:
    assert GOLDEN[path]() == path.read_text(encoding="utf-8"), "run `make golden` and read the difference"


def test_no_kept_request_is_left_over() -> None:
    assert set(FOLDER.glob("*.yaml")) == set(GOLDEN)


def test_botocore_takes_every_request() -> None:
    spot = {"name": "spot", "type": "ml.g5.48xlarge", "count": 4, "min": 1, "spot": True}
    description = described(
        groups=[*example()["groups"], spot], ecr={"kms_key": "arn:aws:kms:us-east-1:1:key/k"}
    )
    asked = [*requests_of(description), *deletions(None, cluster="anadil", with_file_system=True)]

    mistakes = {each.what: mistakes_of(each.service, each.operation, each.arguments) for each in asked}

    assert len(mistakes) == len(REPOSITORIES) + 1 + 2 + 1 + 1
    assert set(mistakes.values()) == {""}


def test_spot_and_a_smaller_number_need_continuous_provisioning() -> None:
    group = {"name": "a", "type": "ml.g5.48xlarge", "count": 4}

    plain = cluster(described(groups=[group])).arguments
    some = cluster(described(groups=[{**group, "min": 2}])).arguments
    spot = cluster(described(groups=[{**group, "spot": True}])).arguments

    assert "NodeProvisioningMode" not in plain
    assert some["NodeProvisioningMode"] == spot["NodeProvisioningMode"] == "Continuous"
    assert spot["InstanceGroups"][0]["CapacityRequirements"] == {"Spot": {}}


def test_yaml_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for output in ("yaml", "json"):
        words = ["cluster", "create", str(EXAMPLE), "--dry-run", "-o", output]
        options = main.command_parser("cluster").parse_args(words)
        assert options.command(options) == 0
        told.append(capsys.readouterr().out)

    assert yaml.safe_load(told[0]) == json.loads(told[1])
    assert "&id" not in told[0]
