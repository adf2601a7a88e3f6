"""A stage inside a training job of SageMaker: its command line, its secrets, where its machines meet.

    python -m anadil.runtime.sagemaker pretrain --corpus URI --tokenizer URI --out URI

An argument of a container has at most 256 characters there, so the recipe comes as
hyperparameters `recipe_0`, `recipe_1`, ... of 2,500 each; everything else is as on any machine.

Source: Amazon SageMaker AI developer guide, "How Amazon SageMaker AI provides training
information"; the limits are those of the API model of CreateTrainingJob.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from anadil.core.aws import aws_client, aws_errors
from anadil.core.errors import AnadilError, DataError, PreflightError
from anadil.core.format import visible_lines

CONFIG = Path("/opt/ml/input/config")
RESOURCES = CONFIG / "resourceconfig.json"
"""File in which SageMaker tells each container about the others."""
HYPERPARAMETERS = CONFIG / "hyperparameters.json"
FAILURE = Path("/opt/ml/output/failure")
"""File whose first 1,024 characters become the job's FailureReason."""
CHECKPOINTS = "/opt/ml/checkpoints"
"""Directory that SageMaker copies to S3 as it changes, and back before a job starts again."""
PORT = 29_400
"""Any free one; torchrun's own default."""
RECIPE = "recipe_"
"""Prefix of the hyperparameters that hold the recipe; a number follows."""
SECRETS = "ANADIL_SECRETS"
"""Environment variable: JSON, secret of AWS Secrets Manager -> its keys that become variables."""


def rendezvous(resources: Path = RESOURCES) -> dict[str, str]:
    """Return torchrun's variables for where the machines of this job meet; none on one machine alone."""
    if not resources.is_file():
        return {}
    try:
        resource_config = json.loads(resources.read_text(encoding="utf-8"))
        # SageMaker sorts as text, which puts algo-10 before algo-2; the log that people read is algo-1's.
        hosts, here = (
            sorted(resource_config["hosts"], key=lambda host: (len(host), host)),
            resource_config["current_host"],
        )
        rank = hosts.index(here)
    except (ValueError, LookupError, TypeError) as error:
        raise PreflightError(
            f"{resources}: not SageMaker's ({error!r}); run the image on SageMaker"
        ) from None
    if len(hosts) == 1:
        return {}
    interface = resource_config.get("network_interface_name")
    sockets = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {
        "PET_NNODES": str(len(hosts)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": hosts[0],
        "PET_MASTER_PORT": str(PORT),
        "PET_NPROC_PER_NODE": os.environ.get("PET_NPROC_PER_NODE", "auto"),
        **{name: value for name, value in sockets.items() if name not in os.environ},
    }


def command(arguments: Sequence[str], hyperparameters: Path = HYPERPARAMETERS) -> list[str]:
    """Return the command line of a stage, given its name and arguments, with its recipe put together again."""
    try:
        given = json.loads(hyperparameters.read_text(encoding="utf-8"))
        parts = sorted((int(name.removeprefix(RECIPE)), given[name]) for name in given if RECIPE in name)
        recipe = "".join(text for _, text in parts)
        stage, *rest = arguments
    except (OSError, ValueError, TypeError) as error:
        raise PreflightError(f"{hyperparameters}: no recipe in it ({error}); use anadil launch") from None
    return [sys.executable, "-m", f"anadil.{stage}", "--recipe", recipe, *rest]


def secrets(names: str) -> dict[str, str]:
    """Return variables out of AWS Secrets Manager, which neither the request nor the log of a job shows.

    `names` is JSON: secret -> keys of the JSON object that it holds.
    """
    values = {}
    for name, keys in json.loads(names).items():
        what = f"secret {name}"
        try:
            with aws_errors(what, "the job's role secretsmanager:GetSecretValue", place="Secrets Manager"):
                answer = aws_client("secretsmanager").get_secret_value(SecretId=name)
            secret = json.loads(answer["SecretString"])
            values.update({key: str(secret[key]) for key in keys})
        except DataError as error:  # no data of the user's are wrong
            raise PreflightError(f"{error}; create it there") from None
        except (ValueError, LookupError, TypeError):
            raise PreflightError(f"{what}: write it as a JSON object with {', '.join(keys)}") from None
    return values


def check_work(work: str) -> None:
    """Refuse to train for days where nothing can be saved."""
    if not os.access(work, os.W_OK):
        raise PreflightError(
            f"{work}: user {os.getuid()} may not write there, so no checkpoint would be kept; SageMaker "
            "gives these directories to root: build the image for SageMaker with USER 0 as its last line"
        )


def tell_failure(words: str, file: Path = FAILURE) -> None:
    """Leave the reason of a failure where SageMaker looks; that of the process that failed first stays."""
    with contextlib.suppress(OSError), file.open("x", encoding="utf-8") as stream:
        stream.write(words[:1_024])


def main(arguments: Sequence[str]) -> int:
    """Become the stage, so that signals and the exit code are its own; an exit code only of a failure."""
    try:
        line = command(arguments)
        check_work(os.environ.get("ANADIL_WORK", CHECKPOINTS))
        if "AWS_REGION" in os.environ:  # which SageMaker sets, and boto3 does not read
            os.environ.setdefault("AWS_DEFAULT_REGION", os.environ["AWS_REGION"])
        os.environ.update(secrets(os.environ.get(SECRETS, "{}")))
    except AnadilError as error:
        tell_failure(json.dumps({"exit_code": error.exit_code, "message": str(error)}))
        sys.stderr.write(f"error: {visible_lines(str(error))}\n")
        return error.exit_code
    return os.execv(line[0], line)  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
