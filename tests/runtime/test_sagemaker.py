"""A stage inside a training job of SageMaker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from anadil.core.errors import PreflightError
from anadil.runtime import sagemaker


def resources(folder: Path, hosts: list[str], here: str, interface: str = "eth0") -> Path:
    path = folder / "resourceconfig.json"
    told = {"current_host": here, "hosts": hosts, "network_interface_name": interface}
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


def test_machines_meet_at_the_first_one(tmp_path: Path) -> None:
    path = resources(tmp_path, ["algo-1", "algo-2"], "algo-2")

    assert sagemaker.rendezvous(path) == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "algo-1",
        "PET_MASTER_PORT": "29400",
        "PET_NPROC_PER_NODE": "auto",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }


def test_the_tenth_machine_is_the_tenth(tmp_path: Path) -> None:
    hosts = sorted(f"algo-{number}" for number in range(1, 12))

    found = sagemaker.rendezvous(resources(tmp_path, hosts, "algo-10"))

    assert hosts[1] == "algo-10"
    assert (found["PET_NODE_RANK"], found["PET_MASTER_ADDR"]) == ("9", "algo-1")


def test_what_the_request_says_about_the_network_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker,lo,veth")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "8")

    found = sagemaker.rendezvous(resources(tmp_path, ["algo-1", "algo-2"], "algo-1"))

    assert "NCCL_SOCKET_IFNAME" not in found
    assert found["PET_NPROC_PER_NODE"] == "8"


def test_one_machine_and_other_platforms_need_no_rendezvous(tmp_path: Path) -> None:
    assert sagemaker.rendezvous(tmp_path / "none.json") == {}
    assert sagemaker.rendezvous(resources(tmp_path, ["algo-1"], "algo-1")) == {}


def test_a_machine_that_is_not_in_the_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="not SageMaker's"):
        sagemaker.rendezvous(resources(tmp_path, ["algo-1"], "algo-3"))


def test_the_recipe_is_put_together_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "hyperparameters.json"
    parts = {f"recipe_{number}": str(number % 10) for number in range(12)}
    path.write_text(json.dumps(dict(sorted(parts.items()))), encoding="utf-8")

    line = sagemaker.command(["pretrain", "--corpus", "s3://b/c"], path)

    assert line[1:] == ["-m", "anadil.pretrain", "--recipe", "012345678901", "--corpus", "s3://b/c"]


def test_a_job_that_anadil_did_not_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="no recipe in it"):
        sagemaker.command(["pretrain"], tmp_path / "none.json")


def test_secrets_come_from_secrets_manager(bucket: str) -> None:
    del bucket  # its server answers for every service
    boto3.client("secretsmanager").create_secret(
        Name="hub", SecretString='{"HF_TOKEN": "hf_x", "OTHER": "y"}'
    )

    assert sagemaker.secrets('{"hub": ["HF_TOKEN"]}') == {"HF_TOKEN": "hf_x"}
    with pytest.raises(PreflightError, match="write it as a JSON object with TOKEN"):
        sagemaker.secrets('{"hub": ["TOKEN"]}')
    with pytest.raises(PreflightError, match=r"secret none: does not exist; check Secrets Manager"):
        sagemaker.secrets('{"none": ["HF_TOKEN"]}')


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_of_root_is_refused_before_training(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(PreflightError, match="USER 0"):
        sagemaker.check_work(str(tmp_path))


def test_a_directory_that_is_not_there_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="no checkpoint would be kept"):
        sagemaker.check_work(str(tmp_path / "none"))


def test_the_first_failure_is_the_one_that_sagemaker_tells(tmp_path: Path) -> None:
    file = tmp_path / "failure"

    sagemaker.tell_failure("corpus is empty", file)
    sagemaker.tell_failure("a worker was killed", file)
    sagemaker.tell_failure("elsewhere", tmp_path / "none" / "failure")

    assert file.read_text(encoding="utf-8") == "corpus is empty"


def test_the_process_becomes_the_stage(tmp_path: Path) -> None:
    hyperparameters = tmp_path / "hyperparameters.json"
    hyperparameters.write_text(json.dumps({"recipe_0": "{}"}), encoding="utf-8")
    code = (
        "import pathlib, sys; from anadil.runtime import sagemaker; "
        f"sagemaker.command.__defaults__ = (pathlib.Path({str(hyperparameters)!r}),); "
        "sys.exit(sagemaker.main(['clean', '--self-test']))"
    )
    environment = os.environ | {"ANADIL_WORK": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("clean: ready\n")
