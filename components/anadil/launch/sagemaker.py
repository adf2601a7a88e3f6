"""The backend `sagemaker`: start or adopt, follow, explain and stop training jobs of Amazon SageMaker.

A job that has ended keeps its name for ever, so a new start of the same work is called
`NAME-r1`, `NAME-r2`, ...; all of them share one directory of checkpoints. NAME stands for the newest.
"""

import functools
import json
import logging
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.core import errors
from anadil.core.aws import aws_client, aws_errors, error_code, request_differences
from anadil.core.format import human_seconds
from anadil.core.json_text import json_sha256
from anadil.core.stages import STAGES
from anadil.estimate.instances import LOCAL, Machine
from anadil.launch import job as jobs
from anadil.launch.kubernetes.manifests import EFA_ENVIRONMENT, GPU_ENVIRONMENT
from anadil.runtime.job import earlier_place, named_side_files
from anadil.runtime.sagemaker import CHECKPOINTS, RECIPE, SECRETS
from anadil.runtime.signals import Stop

log = logging.getLogger(__name__)

PYTHON = "/opt/anadil/bin/python"  # Interpreter of every image.
# Environment variable with the hash of the request, by which a launcher knows a job again.
SPEC = "ANADIL_SPEC"
ATTEMPT_CHARS = 4  # Room in the name for `-r99`, the 99th new start of a job that failed.
MAX_ARGUMENT_CHARS = 256
MAX_ARGUMENTS = 100
MAX_HYPERPARAMETER_CHARS = 2_500
MAX_HYPERPARAMETERS = 100
MAX_ENVIRONMENT_CHARS = 512
MAX_TAG_CHARS = 256
MAX_RETRIES = 30
MAX_RUNTIME_S = 28 * 24 * 3_600
# Without `cluster.deadline_hours`: the longest that AWS allows an account that has not asked for more.
# Source: AWS, Service Quotas, "Longest run time for a training job". The API's own default is a day.
DEFAULT_RUNTIME_S = 5 * 24 * 3_600
SPOT_WAIT_S = 24 * 3_600  # Time to wait for spot capacity, beside that of the training itself. Assumption.
ECR = re.compile(r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/.+")
# Keys of `cluster` that only Kubernetes understands.
MEANINGLESS = (
    "namespace", "hyperpod", "queue", "priority", "topology", "pull_secrets", "service_account", "volumes", "work",
    "node_selector", "tolerations",
)  # fmt: skip
POLL_S = 15.0
MAX_SILENT_POLLS = 20  # Failed questions in a row until the follower gives up: five minutes.
MAX_ATTEMPTS = 10 ** (ATTEMPT_CHARS - 2)
QUEUED = ("Pending",)
STARTING = (
    "Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Downloading", "DownloadingTrainingImage",
)  # fmt: skip
AGAIN = ("Interrupted", "Restarting", "Updating")
# Beginnings of FailureReason that say nothing about the job.
CAPACITY = ("CapacityError", "InternalServerError", "InsufficientCapacity")
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LOG_ACTIONS = f"logs:DescribeLogStreams and logs:GetLogEvents on {LOG_GROUP}"
FIRST_MACHINE = "algo-1"  # Name of the first machine; a stream is called `<job>/algo-1-<time of its start>`.
# Pages of 1 MB that are read at a time, so that a job which shouts does not stop the follower.
MAX_PAGES = 10
TAIL_LINES = 40  # Last lines that are kept for the message of a failure.


def request_of(job: jobs.TrainingJob) -> dict[str, Any]:
    """Return the request that starts a job."""
    machine = _machine(job)
    _check_places(job)
    _warn(job)
    settings = job.recipe.cluster.sagemaker
    root = (job.recipe.storage.root or job.target.rpartition("/")[0]).rstrip("/")
    request: dict[str, Any] = {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {
            "TrainingImage": job.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [PYTHON, "-m", "anadil.runtime.sagemaker", job.stage],
            "ContainerArguments": _arguments(job),
            "MetricDefinitions": metric_definitions(job.stage),
        },
        "HyperParameters": _hyperparameters(job),
        "Environment": _environment(job),
        "RoleArn": settings.role,
        "OutputDataConfig": {"S3OutputPath": f"{root}/sagemaker"},
        "CheckpointConfig": {"S3Uri": f"{root}/checkpoints/{job.name}", "LocalPath": CHECKPOINTS},
        "ResourceConfig": {
            "InstanceType": f"ml.{machine.name}",
            "InstanceCount": job.nodes,
            "VolumeSizeInGB": settings.volume_gb,
            **({"TrainingPlanArn": settings.training_plan} if settings.training_plan else {}),
        },
        "StoppingCondition": _stopping_condition(job),
        "EnableManagedSpotTraining": settings.spot,
        "EnableNetworkIsolation": False,  # the stage itself reads and writes S3
        # EFA passes the encrypted network by; the hardware of such machines encrypts between them.
        "EnableInterContainerTrafficEncryption": job.nodes > 1 and not machine.efa,
        "ProfilerConfig": {"DisableProfiler": True},
        "RemoteDebugConfig": {"EnableRemoteDebug": False},
        "Tags": _tags(job),
    }
    if settings.subnets:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(settings.security_groups),
            "Subnets": list(settings.subnets),
        }
    if job.recipe.cluster.restarts:
        attempts = min(job.recipe.cluster.restarts, MAX_RETRIES)
        request["RetryStrategy"] = {"MaximumRetryAttempts": attempts}
    return _sealed(request)


def metric_definitions(stage: str) -> list[dict[str, str]]:
    """Return the numbers that SageMaker draws, as patterns of lines of `anadil.core.log.JsonFormatter`."""
    training = STAGES[stage].training
    if training is None:
        return []
    progress = rf'"stage": "{stage}", "rank": 0, "msg": "{training.progress_name}: [^"]*'
    figures = rf'"stage": "{stage}", "rank": 0, .*"figures": \{{[^}}]*'
    number = r"([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
    definitions = {f"{stage}:loss": rf"{progress}, loss {number}"}
    for name in training.figures:
        definitions[f"{stage}:final_{name}"] = rf'{figures}"{name}": {number}'
    return [{"Name": name, "Regex": regex} for name, regex in definitions.items()]


def _machine(job: jobs.TrainingJob) -> Machine:
    cluster = job.recipe.cluster
    settings = cluster.sagemaker
    if settings.role is None:
        raise errors.RecipeError(
            "cluster.sagemaker.role: not set; give the ARN of the IAM role that the job takes, such as "
            "arn:aws:iam::123456789012:role/anadil-training"
        )
    machine = job.machine
    if machine is None or machine.name == LOCAL:
        raise errors.RecipeError(
            "cluster.instance: not set; SageMaker needs a machine type such as p5.48xlarge (anadil plan)"
        )
    disk = machine.disk_bytes // 10**9
    if disk and settings.volume_gb > disk:
        raise errors.RecipeError(
            f"cluster.sagemaker.volume_gb: {settings.volume_gb} is more than the {disk} GB of local NVMe that "
            f"{machine.name} uses instead; lower it or take another machine"
        )
    return machine


def _check_places(job: jobs.TrainingJob) -> None:
    """Refuse places that are not on S3: a job mounts nothing of ours."""
    root, base = job.recipe.storage.root, job.recipe.base.model
    files = job.files or (job.recipe.finetune.inputs if job.stage == "finetune" else ())
    places = [("--out", job.target), *((f"--{word}", uri) for word, uri in job.inputs.items())]
    places += [("storage.root", root)] if root is not None else []
    places += [(f"{job.stage}.inputs", uri) for uri in files]
    beside = named_side_files(STAGES[job.stage], job.recipe)
    places += [(key, uri) for key, uris in beside.items() for uri in uris]
    places += earlier_place(STAGES[job.stage], job.recipe).items()
    for key, uri in places:
        if not uri.startswith(("s3://", "builtin:")):
            raise errors.RecipeError(
                f"{key}: {uri} is not on S3, and a SageMaker job sees nothing else; use s3://"
            )
    if job.stage == "pretrain" and (Path(base).is_absolute() or base.startswith(".")):
        raise errors.RecipeError(f"base.model: {base} is a directory of this machine; give a name of the hub")


def _warn(job: jobs.TrainingJob) -> None:
    cluster = job.recipe.cluster
    ignored = [f"cluster.{key}" for key in MEANINGLESS if getattr(cluster, key)]
    if ignored:
        log.warning("%s: has no meaning on SageMaker and is ignored", ", ".join(ignored))
    if not ECR.match(job.image):
        log.warning(
            "cluster.image: %s is not in Amazon ECR, from where alone SageMaker takes images; push it there "
            "and give such as 123456789012.dkr.ecr.us-east-1.amazonaws.com/anadil/{stage}:{version}",
            job.image,
        )


def _arguments(job: jobs.TrainingJob) -> list[str]:
    """Return the command line without the recipe, which is too long for it."""
    recipe = job.arguments.index("--recipe")
    arguments = [*job.arguments[:recipe], *job.arguments[recipe + 2 :]]
    long = [text for text in arguments if len(text) > MAX_ARGUMENT_CHARS]
    if long:
        raise errors.RecipeError(
            f"{long[0][:80]}...: longer than the {MAX_ARGUMENT_CHARS} characters that SageMaker takes; "
            "choose a shorter storage.root"
        )
    if len(arguments) > MAX_ARGUMENTS:
        raise errors.RecipeError(
            f"{job.stage}: {len(arguments)} arguments, and SageMaker takes {MAX_ARGUMENTS}; name a prefix "
            "or a glob on S3 instead of single files"
        )
    return arguments


def _hyperparameters(job: jobs.TrainingJob) -> dict[str, str]:
    # ASCII, because what SageMaker does to other letters is not documented.
    text = json.dumps(json.loads(job.arguments[job.arguments.index("--recipe") + 1]))
    parts = [text[at : at + MAX_HYPERPARAMETER_CHARS] for at in range(0, len(text), MAX_HYPERPARAMETER_CHARS)]
    if len(parts) > MAX_HYPERPARAMETERS:
        raise errors.RecipeError(f"recipe: {len(text):,} characters are more than SageMaker takes; use globs")
    return {f"{RECIPE}{number}": part for number, part in enumerate(parts)}


def _environment(job: jobs.TrainingJob) -> dict[str, str]:
    cluster, machine = job.recipe.cluster, job.machine
    environment = {
        "ANADIL_LOG": "json",
        "ANADIL_IMAGE": job.image,
        "ANADIL_RUN_ID": job.run or job.name,
        "ANADIL_WORK": CHECKPOINTS,
        # The disk of the job is under /opt/ml and /tmp; the image's own file system is small.
        "ANADIL_CACHE": "/tmp/anadil-cache",  # noqa: S108  a volume of the job's own
        "HF_HOME": "/tmp/huggingface",  # noqa: S108  as above
        "PET_NPROC_PER_NODE": str(job.processes),
    }
    if cluster.sagemaker.region:
        environment["AWS_DEFAULT_REGION"] = cluster.sagemaker.region
    if cluster.secrets:
        environment[SECRETS] = json.dumps({name: list(keys) for name, keys in cluster.secrets.items()})
    if job.devices:
        environment |= GPU_ENVIRONMENT
    if job.nodes > 1 and machine is not None and machine.efa:
        environment |= EFA_ENVIRONMENT
    for name, value in environment.items():
        if len(value) > MAX_ENVIRONMENT_CHARS:
            raise errors.RecipeError(
                f"{name}: {len(value)} characters, and SageMaker takes {MAX_ENVIRONMENT_CHARS}; name fewer keys in "
                "cluster.secrets"
            )
    return environment


def _stopping_condition(job: jobs.TrainingJob) -> dict[str, int]:
    hours = job.recipe.cluster.deadline_hours
    runtime = DEFAULT_RUNTIME_S if hours is None else max(1, round(hours * 3_600))
    if runtime > MAX_RUNTIME_S:
        raise errors.RecipeError(
            f"cluster.deadline_hours: {hours:g} is more than SageMaker's {MAX_RUNTIME_S // 3_600} (28 days); "
            "lower it: the next start resumes from the checkpoint"
        )
    if not job.recipe.cluster.sagemaker.spot:
        return {"MaxRuntimeInSeconds": runtime}
    return {"MaxRuntimeInSeconds": runtime, "MaxWaitTimeInSeconds": runtime + SPOT_WAIT_S}


def _tags(job: jobs.TrainingJob) -> list[dict[str, str]]:
    tags = {**job.labels, jobs.TARGET_ANNOTATION: job.target}
    # The end of a URI that is too long says more than its beginning.
    short = {key: re.sub(r"[^\w .:/=+@-]", "_", value)[-MAX_TAG_CHARS:] for key, value in tags.items()}
    return [{"Key": key, "Value": value} for key, value in short.items()]


def _sealed(request: dict[str, Any]) -> dict[str, Any]:
    """Add the hash of what a request asks for, where DescribeTrainingJob gives it back."""
    decides = {key: value for key, value in request.items() if key not in ("TrainingJobName", "Tags")}
    digest = json_sha256(decides)
    request["Environment"][SPEC] = digest
    request["Tags"].append({"Key": jobs.SPEC_ANNOTATION, "Value": digest})
    return request


class Tail:
    """A log whose lines each come once, also over new starts of the machine; the client is of CloudWatch Logs."""

    def __init__(self, client: Any, job: str) -> None:
        self._client, self._job = client, job
        self._tokens: dict[str, str] = {}
        self._is_denied = False
        self.last: deque[str] = deque(maxlen=TAIL_LINES)

    def new(self) -> Iterator[str]:
        """Yield lines since the last call; none where there is no log or it may not be read."""
        if self._is_denied:
            return
        try:
            yield from self.read()
        except errors.PreflightError as error:
            self._is_denied = True
            log.warning("the job's log cannot be read: %s", error)
        except errors.AnadilError as error:
            log.debug("%s", error)  # the next call asks again

    def read(self) -> Iterator[str]:
        """Yield lines since the last call."""
        try:
            with aws_errors(f"log of {self._job}", LOG_ACTIONS):
                answer = self._client.describe_log_streams(
                    logGroupName=LOG_GROUP,
                    logStreamNamePrefix=f"{self._job}/{FIRST_MACHINE}-",
                    orderBy="LogStreamName",
                )
                for stream in answer.get("logStreams", ()):
                    yield from self._read(str(stream["logStreamName"]))
        except errors.DataError:
            return  # no machine has written yet

    def _read(self, stream: str) -> Iterator[str]:
        for _ in range(MAX_PAGES):
            token = self._tokens.get(stream)
            more = {"nextToken": token} if token else {}
            page = self._client.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **more
            )
            # CloudWatch gives the same token again at the end of what there is.
            self._tokens[stream] = page["nextForwardToken"]
            for event in page["events"]:
                self.last.append(str(event["message"]))
                yield str(event["message"])
            if page["nextForwardToken"] == token:
                return


class SageMakerBackend:
    """The backend `sagemaker`."""

    def __init__(self, region: str | None = None, clients: Callable[[str], Any] | None = None) -> None:
        """Prepare for a region, else that of the environment; `clients` gives the client of a service, else boto3."""
        self._client = clients or functools.cache(lambda service: aws_client(service, region))
        self._is_adopted = False  # True if the job ran already, so that another launcher may follow it.

    def render(self, job: jobs.TrainingJob) -> dict[str, Any]:
        """Return the request CreateTrainingJob; see `JobBackend.render`."""
        return request_of(job)

    def run(self, job: jobs.TrainingJob, *, detach: bool = False) -> None:
        """Start or adopt the job and follow it; see `JobBackend.run`."""
        stop = Stop()
        stop.listen()
        name = self._start(job, stop)
        if detach or name is None:
            return
        log.info(
            "following %s; %s stops it", name, "SIGTERM" if self._is_adopted else "a signal to this program"
        )
        try:
            if stop.signal:
                stop.leave()
            self._follow(name)
        except (errors.Stopped, KeyboardInterrupt):
            if stop.signal == signal.SIGINT and self._is_adopted:
                log.info("%s keeps running; `anadil stop %s --backend sagemaker` ends it", name, job.name)
            elif stop.signal is not None:  # else somebody else has stopped the job
                self._stop_training(name)  # first thing, because a pipeline gives a second
                log.info("stopping %s: it has 120 s to save", name)
            raise

    def status(self, name: str) -> jobs.JobStatus:
        """Return the state of the newest start of a job; see `JobBackend.status`."""
        return status_of(self._newest(name), name)

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Yield log lines of the first machine; see `JobBackend.logs`."""
        job = self._newest(name)["TrainingJobName"]
        tail = Tail(self._client("logs"), job)
        if not follow:
            while lines := list(tail.read()):
                yield from lines
            return
        while True:
            is_final = status_of(self._describe(job), name).state in jobs.FINAL
            yield from tail.new()
            if is_final:
                return
            time.sleep(POLL_S)

    def stop(self, name: str) -> bool:
        """End the job, which has 120 s to save; see `JobBackend.stop`."""
        result = self._newest(name)
        if result["TrainingJobStatus"] not in ("InProgress", "Stopping"):
            return False
        self._stop_training(result["TrainingJobName"])
        return True

    def _start(self, job: jobs.TrainingJob, stop: Stop) -> str | None:
        """Return the name of the running job, created or adopted; None where its artifact exists already."""
        request = self.render(job)
        base = request["TrainingJobName"]
        attempts = self._attempts(base)
        if attempts and attempts[-1]["TrainingJobStatus"] in ("Stopping", "Deleting"):
            log.info("%s is stopping; waiting for its end", attempts[-1]["TrainingJobName"])
            while attempts[-1]["TrainingJobStatus"] in ("Stopping", "Deleting"):
                time.sleep(POLL_S)
                attempts[-1] = self._describe(attempts[-1]["TrainingJobName"])
        if attempts and attempts[-1]["TrainingJobStatus"] == "InProgress":
            self._is_adopted = True
            return _adopted(request, attempts[-1])
        if attempts and artifact.read_manifest(job.target):
            log.info("%s is there already", job.target)
            return None
        name = f"{base}-r{len(attempts)}" if attempts else base
        with stop.deferred():  # a job that is being created would be left behind
            return self._create({**request, "TrainingJobName": name})

    def _create(self, request: dict[str, Any]) -> str:
        from botocore.exceptions import ClientError

        name = str(request["TrainingJobName"])
        with aws_errors(
            f"training job {name}", "sagemaker:CreateTrainingJob, iam:PassRole and sagemaker:AddTags"
        ):
            try:
                self._client("sagemaker").create_training_job(**request)
            except ClientError as error:
                if error_code(error) != "ResourceInUse":
                    raise
                # Another launcher was faster, or our own first try reached AWS and its answer did not reach us.
                return _adopted(request, self._describe(name))
        log.info("created %s", name)
        return name

    def _attempts(self, base: str) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for number in range(MAX_ATTEMPTS):
            try:
                results.append(self._describe(f"{base}-r{number}" if number else base))
            except errors.DataError:  # it does not exist
                break
        return results

    def _newest(self, name: str) -> dict[str, Any]:
        attempts = self._attempts(name)
        if not attempts:
            raise errors.DataError(f"{name}: no such training job in this account and region; check --region")
        return attempts[-1]

    def _describe(self, name: str) -> dict[str, Any]:
        with aws_errors(f"training job {name}", "sagemaker:DescribeTrainingJob"):
            return dict(self._client("sagemaker").describe_training_job(TrainingJobName=name))

    def _follow(self, name: str) -> None:
        tail = Tail(self._client("logs"), name)
        num_logged = silent = 0
        while True:
            try:
                described = self._describe(name)
                silent = 0
            except errors.RetryableError as error:
                silent += 1
                if silent > MAX_SILENT_POLLS:
                    raise
                log.warning("%s; asking again", error)
                time.sleep(POLL_S)
                continue
            transitions = described.get("SecondaryStatusTransitions", [])
            for transition in transitions[num_logged:]:
                log.info("%s: %s", name, _words(transition, described))
            num_logged = len(transitions)
            for line in tail.new():
                # For collectors the line of the job as it is, for people a sentence.
                for_people = sys.stderr.isatty() and os.environ.get("ANADIL_LOG") != "json"
                sys.stderr.write(f"{jobs.format_log_line(line) if for_people else line}\n")
            if status_of(described, name).state in jobs.FINAL:
                _judge(described, tail)
                return
            time.sleep(POLL_S)

    def _stop_training(self, name: str) -> None:
        from botocore.exceptions import ClientError

        with aws_errors(f"training job {name}", "sagemaker:StopTrainingJob"):
            try:
                self._client("sagemaker").stop_training_job(TrainingJobName=name)
            except ClientError as error:
                if error_code(error) != "ValidationException":  # it has ended meanwhile
                    raise


def status_of(described: dict[str, Any], name: str) -> jobs.JobStatus:
    """Translate an answer of DescribeTrainingJob into the terms of every backend."""
    second = described.get("SecondaryStatus", "")
    state = _state(described["TrainingJobStatus"], second)
    arguments = described.get("AlgorithmSpecification", {}).get("ContainerArguments", [])
    transitions = described.get("SecondaryStatusTransitions", [])
    nodes = int(described.get("ResourceConfig", {}).get("InstanceCount", 1))
    reason = described.get("FailureReason", "")
    return jobs.JobStatus(
        name=name, state=state, reason=second,
        message=reason or (str(transitions[-1].get("StatusMessage", "")) if transitions else ""), nodes=nodes,
        running=nodes if state == "running" else 0,
        restarts=max(0, sum(each["Status"] == "Training" for each in transitions) - 1), seconds=_seconds(described),
        artifact=arguments[arguments.index("--out") + 1] if "--out" in arguments[:-1] else "",
        exit_code=exit_code_in(reason) if state == "failed" else 0 if state == "succeeded" else None,
    )  # fmt: skip


def _state(main: str, second: str) -> jobs.JobState:
    final: dict[str, jobs.JobState] = {"Completed": "succeeded", "Failed": "failed", "Stopped": "stopped"}
    if main in final:
        return final[main]
    if second in QUEUED:
        return "queued"
    if second in STARTING:
        return "starting"
    return "restarting" if second in AGAIN else "running"


def _seconds(described: dict[str, Any]) -> float | None:
    started: datetime | None = described.get("TrainingStartTime")
    if started is None:
        return None
    ended: datetime = described.get("TrainingEndTime") or datetime.now(UTC)
    return round((ended - started).total_seconds(), 1)


def _adopted(request: dict[str, Any], described: dict[str, Any]) -> str:
    """Return the name of a job that runs already, unless it was asked for something else."""
    name = str(described["TrainingJobName"])
    if described.get("Environment", {}).get(SPEC) == request["Environment"][SPEC]:
        log.info("%s runs already; following it", name)
        return name
    # The recipe differs with everything that it decides; its text would hide the rest.
    hidden = ("Tags", "TrainingJobName", "HyperParameters")
    visible = {key: value for key, value in request.items() if key not in hidden}
    causes = "; ".join([text for text in request_differences(visible, described) if SPEC not in text][:5])
    raise errors.RecipeError(
        f"{name}: runs already with another definition ({causes or 'see it'}); wait for its end, or stop it: "
        f"anadil stop {name} --backend sagemaker"
    )


def _words(transition: dict[str, Any], described: dict[str, Any]) -> str:
    status, message = transition["Status"], transition.get("StatusMessage", "")
    if status == "Interrupted":
        return "spot capacity was taken away; it resumes from its checkpoint when there is some again"
    if status == "Restarting":
        return f"SageMaker starts it again from its checkpoint ({message})"
    if status == "Pending" and described.get("ResourceConfig", {}).get("TrainingPlanArn"):
        return f"waits for the capacity of its training plan ({message})"
    return f"{status}: {message}" if message else str(status)


def _judge(described: dict[str, Any], tail: Tail) -> None:
    """Return where a job ended well; else raise the error that its end is."""
    name = described["TrainingJobName"]
    state, second = described["TrainingJobStatus"], described.get("SecondaryStatus", "")
    if state == "Completed":
        billed = described.get("BillableTimeInSeconds")
        log.info(
            "%s ended well%s", name, f"; billed {human_seconds(billed)} of each machine" if billed else ""
        )
        return
    if state == "Stopped" and second == "MaxRuntimeExceeded":
        raise errors.BudgetReached(
            f"{name}: reached its deadline and saved; raise cluster.deadline_hours and run the same command again"
        )
    if state == "Stopped" and second == "MaxWaitTimeExceeded":
        raise errors.RetryableError(
            f"{name}: no spot capacity in time; run the same command again later, or set cluster.sagemaker.spot=false"
        )
    if state == "Stopped":
        raise errors.Stopped(f"{name}: stopped; run the same command again to resume from its checkpoint")
    reason = str(described.get("FailureReason", "no reason given"))
    if reason.startswith(CAPACITY):
        raise errors.RetryableError(
            f"{name}: {reason}; run the same command again, or take another cluster.instance"
        )
    lines = "".join(f"\n  {jobs.format_log_line(line)[:500]}" for line in list(tail.last)[-15:])
    raise jobs.error_from_exit_code(exit_code_in(reason), f"{name}: failed: {reason}{lines}")


def exit_code_in(reason: str) -> int | None:
    """Return the exit code that a FailureReason names, such as `exit code: 3` or our own `"exit_code": 3`."""
    match = re.search(r"exit[ _]?code\"?:? ?'?(\d{1,3})\b", reason, re.IGNORECASE)
    return int(match[1]) if match else None
