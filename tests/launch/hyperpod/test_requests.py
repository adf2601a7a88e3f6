"""What a cluster asks AWS for."""

import json
from pathlib import Path

import pytest
import yaml

from anadil.cli import main
from anadil.launch.hyperpod.commands import deletions
from anadil.launch.hyperpod.config import REPOSITORIES
from anadil.launch.hyperpod.requests import cluster, requests_of
from tests.kit.aws import mistakes_of
from tests.kit.hyperpod import EXAMPLE, described, example
from tests.launch.hyperpod.golden import FOLDER, GOLDEN


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
