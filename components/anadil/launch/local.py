"""Run a training stage as a process of this command, in the foreground."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from anadil.core.errors import DataError, RecipeError
from anadil.core.own_folder import work_folder
from anadil.launch.backend import JobStatus, error_from_exit_code
from anadil.launch.job import TrainingJob
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.signals import handle_signals


class LocalBackend:
    """The backend `local`."""

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Return command line and environment of the stage, which takes one machine."""
        if job.nodes > 1:
            raise RecipeError(
                f"cluster.nodes: {job.nodes} machines, and the backend local has this one; set cluster.nodes=1, "
                "or cluster.backend to pytorchjob"
            )
        return {
            "command": [sys.executable, "-m", f"anadil.{job.stage}", *job.arguments],
            "environment": {"ANADIL_WORK": str(work_folder()), "ANADIL_RUN_ID": job.run or job.name},
        }

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Run the stage to its end; it cannot be detached."""
        if detach:
            raise RecipeError(
                "--detach: the backend local runs the stage in this command; use nohup, or cluster.backend=pytorchjob"
            )
        rendered = self.render(job)
        environment = os.environ | rendered["environment"] | {PARENT_VARIABLE: str(os.getpid())}
        if sys.stderr.isatty():
            environment.setdefault("ANADIL_LOG", "text")  # read by people
        # On stdout a stage prints the place of its artifact, which the command prints itself. A session of its own
        # keeps the terminal's Ctrl-C away: torchrun passes one signal on, and a second one ends it before it saves.
        with subprocess.Popen(
            rendered["command"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as child:
            received: list[int] = []

            def pass_on(number: int, _frame: FrameType | None) -> None:
                if not received:
                    child.terminate()
                received.append(number)

            with handle_signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT), pass_on)):
                code = child.wait()
        if signal.SIGINT in received:
            raise KeyboardInterrupt
        if code:
            code = code if code > 0 else 128 - code
            raise error_from_exit_code(code, f"{job.stage}: ended with exit code {code}; see its messages")

    def status(self, name: str) -> JobStatus:
        """Refuse: no job is kept."""
        _no_job(name)

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:  # noqa: ARG002  as in every backend
        """Refuse: no job is kept."""
        _no_job(name)

    def stop(self, name: str) -> bool:
        """Refuse: nothing runs apart from its command."""
        _no_job(name)


def _no_job(name: str) -> NoReturn:
    raise DataError(
        f"{name}: the backend local keeps no jobs; its `anadil launch` shows the log, and Ctrl-C there saves and ends it"
    )
