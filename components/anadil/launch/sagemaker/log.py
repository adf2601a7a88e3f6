"""Read the log of a SageMaker training job's first machine from CloudWatch."""

import logging
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from anadil.core.aws import aws_errors
from anadil.core.errors import AnadilError, DataError, PreflightError

log = logging.getLogger(__name__)

GROUP = "/aws/sagemaker/TrainingJobs"
ACTIONS = f"logs:DescribeLogStreams and logs:GetLogEvents on {GROUP}"
FIRST = "algo-1"  # Name of the first machine; a stream is called `<job>/algo-1-<time of its start>`.
# Pages of 1 MB that are read at a time, so that a job which shouts does not stop the follower.
MAX_PAGES = 10
TAIL = 40  # Last lines that are kept for the message of a failure.


class Tail:
    """A log whose lines each come once, also over new starts of the machine."""

    def __init__(self, client: Any, job: str) -> None:
        """Read the log of `job` by `client`, one of CloudWatch Logs."""
        self._client = client
        self._job = job
        self._tokens: dict[str, str] = {}
        self._is_denied = False
        self.last: deque[str] = deque(maxlen=TAIL)

    def new(self) -> Iterator[str]:
        """Yield lines since the last call; none where there is no log or it may not be read."""
        if self._is_denied:
            return
        try:
            yield from self.read()
        except PreflightError as error:
            self._is_denied = True
            log.warning("the job's log cannot be read: %s", error)
        except AnadilError as error:
            log.debug("%s", error)  # the next call asks again

    def read(self) -> Iterator[str]:
        """Yield lines since the last call.

        Raises:
            AnadilError: The log cannot be read.
        """
        try:
            with aws_errors(f"log of {self._job}", ACTIONS):
                answer = self._client.describe_log_streams(
                    logGroupName=GROUP, logStreamNamePrefix=f"{self._job}/{FIRST}-", orderBy="LogStreamName"
                )
                for stream in answer.get("logStreams", ()):
                    yield from self._read(str(stream["logStreamName"]))
        except DataError:
            return  # no machine has written yet

    def _read(self, stream: str) -> Iterator[str]:
        for _ in range(MAX_PAGES):
            token = self._tokens.get(stream)
            more = {"nextToken": token} if token else {}
            page = self._client.get_log_events(
                logGroupName=GROUP, logStreamName=stream, startFromHead=True, **more
            )
            # CloudWatch gives the same token again at the end of what there is.
            self._tokens[stream] = page["nextForwardToken"]
            for event in page["events"]:
                self.last.append(str(event["message"]))
                yield str(event["message"])
            if page["nextForwardToken"] == token:
                return


def log_lines(client: Any, job: str) -> Iterator[str]:
    """Yield every line that there is now.

    Raises:
        PreflightError: It may not be read.
    """
    tail = Tail(client, job)
    while lines := list(tail.read()):
        yield from lines


def exit_code_in(reason: str) -> int | None:
    """Return the exit code that a FailureReason names, such as `exit code: 3` or our own `"exit_code": 3`."""
    match = re.search(r"exit[ _]?code\"?:? ?'?(\d{1,3})\b", reason, re.IGNORECASE)
    return int(match[1]) if match else None
