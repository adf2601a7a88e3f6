import argparse
import logging
from importlib import metadata

import pytest

from anadil.core.stages import STAGES
from anadil.launch.manifests.hyperpod_job import render
from anadil.launch.manifests.log_rules import log_rules
from anadil.runtime.entry_point import stage_parser
from tests.kit.crds import HYPERPOD_SPEC, mistakes
from tests.kit.jobs import container
from tests.kit.restricted import violations
from tests.launch.golden import cpu, hyperpod, japanese


@pytest.mark.parametrize("training", [cpu("cluster.nodes=2"), hyperpod(), japanese()])
def test_hyperpod_s_command_line_knows_every_field(training: object) -> None:
    manifest = render(training)  # type: ignore[arg-type]  # pytest's parameters have no types

    assert (manifest["apiVersion"], manifest["kind"]) == ("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob")
    assert mistakes(HYPERPOD_SPEC, manifest["spec"]) == []


def test_a_field_that_it_does_not_know_would_be_found() -> None:
    spec = render(hyperpod())["spec"]
    spec["runPolicy"]["backoffLimit"] = 3

    assert "backoffLimit" in mistakes(HYPERPOD_SPEC, spec)[0]


def test_hyperpod_s_launcher_starts_the_stage() -> None:
    [replica] = render(hyperpod())["spec"]["replicaSpecs"]

    main = container(replica["template"])
    assert main["command"] == ["hyperpodrun"]
    module = main["args"].index("-m")
    assert main["args"][:module] == ["--nproc-per-node=8", "--tee=3", "--log_dir=/tmp/hyperpod"]
    assert main["args"][module + 1] == "anadil.pretrain"
    options = stage_parser(STAGES["pretrain"]).parse_args(main["args"][module + 2 :])
    assert isinstance(options, argparse.Namespace)
    assert options.out == "s3://my-bucket/anadil/model/2"
    assert {"name": "agent", "containerPort": 8080} in main["ports"]
    assert replica["replicas"] == 2
    assert violations(replica["template"]["spec"]) == []


def test_restarts_deadline_and_log_rules_are_in_the_policy() -> None:
    policy = render(hyperpod())["spec"]["runPolicy"]

    assert policy["jobMaxRetryCount"] == 3
    assert policy["activeDeadlineSeconds"] == 72 * 3_600
    assert policy["logMonitoringConfiguration"] == log_rules("pretrain")


def test_it_is_said_that_the_image_lacks_the_launcher(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        render(hyperpod())

    assert "needs an image with hyperpodrun and torch below 2.12; anadil/pretrain:" in caplog.text
    # The day that this project's torch and the agent go together, the sentence is wrong.
    assert tuple(map(int, metadata.version("torch").split(".")[:2])) >= (2, 12)
