"""A training stage in the background of this machine, followed or left running; known by its name.

`$ANADIL_WORK/jobs/NAME.json` holds what is known of a job, `NAME.log` its log. The supervisor of the
stage holds a lock on `NAME.lock`, which the system releases with it: so no job is taken for running
because another process got its number.

    python -m anadil.launch.local FILE    the supervisor
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from anadil.core import errors
from anadil.core.errors import DataError, PreflightError, RecipeError, Stopped
from anadil.core.own_folder import work_folder
from anadil.launch.backend import FINAL, JobState, JobStatus, format_log_line
from anadil.launch.exit_codes import KILLED, error_from_exit_code
from anadil.launch.job import TrainingJob
from anadil.launch.kubernetes.pods.pod_log import write_log_line
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.signals import Stop

log = logging.getLogger(__name__)

KILL_AFTER_S = 130.0
"""Between SIGTERM and SIGKILL: more than the 110 s that torchrun waits for its processes."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What is known of a job."""

    name: str
    command: list[str]
    artifact: str
    pid: int = 0
    """Process of the supervisor, which leads the group of all processes of the job."""
    began: float = 0
    """Seconds since the epoch."""
    ended: float = 0
    exit_code: int | None = None


class LocalBackend:
    """The backend `local`."""

    def render(self, job: TrainingJob) -> dict[str, Any]:
        """Command line and environment of the stage.

        Raises:
            RecipeError: It asks for several machines.
        """
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
        """Start the stage, or find it running, and wait for its end."""
        name, rendered, stop = job.name, self.render(job), Stop()
        stop.listen()
        lock = _take_lock(name)
        if lock:
            with lock, stop.deferred():  # a job that is being started would be left behind
                _start(LocalJob(name=name, artifact=job.target, command=rendered["command"]), rendered, lock)
        elif _read(name).command != rendered["command"]:
            raise RecipeError(
                f"{name}: runs already with another recipe; wait for its end, or stop it: "
                f"anadil stop {name} --backend local"
            )
        log.info("%s runs as process %s; its log is %s", name, _read(name).pid, _path(name, ".log"))
        if detach:
            return
        try:
            stop.check()
            for line in self.logs(name, follow=True):
                write_log_line(line)
        except (Stopped, KeyboardInterrupt):
            if not lock:
                log.info("%s runs on; anadil stop %s --backend local ends it", name, name)
                raise
            self.stop(name)
            if stop.signal == signal.SIGINT:
                raise
        code = _read(name).exit_code
        if code != 0:
            code = errors.BUG if code is None else code
            raise error_from_exit_code(code, f"{job.stage}: ended with exit code {code}; see its messages")

    def status(self, name: str) -> JobStatus:
        """Where the job stands."""
        is_running = _is_running(name)
        job = _read(name)  # after the lock was checked: the supervisor writes before it lets go
        state: JobState = "running" if is_running else "succeeded" if job.exit_code == 0 else "failed"
        if not is_running and job.exit_code in (Stopped.exit_code, errors.INTERRUPTED):
            state = "stopped"
        return JobStatus(
            name=name,
            state=state,
            message="" if state in ("running", "succeeded") else _last_line(job),
            nodes=1,
            running=int(is_running),
            seconds=round((job.ended or time.time()) - job.began, 1) if job.began else None,
            artifact=job.artifact,
            exit_code=job.exit_code,
        )

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Log lines of the job."""
        _read(name)
        with _path(name, ".log").open(encoding="utf-8", errors="replace") as file:
            while True:
                is_final = self.status(name).state in FINAL
                yield from (line.rstrip("\n") for line in file)
                if is_final or not follow:
                    return
                time.sleep(POLL_S)

    def stop(self, name: str) -> bool:
        """SIGTERM, time to save, and SIGKILL for what does not end; False where it had ended before.

        The first signal goes to the supervisor alone, which passes it on: torchrun sends it to its
        processes itself, and a second one would end them before they have saved.
        """
        job = _read(name)
        if not job.pid or not _is_running(name):
            return False
        try:
            os.kill(job.pid, signal.SIGTERM)
        except PermissionError:
            raise PreflightError(
                f"{name}: process {job.pid} is another user's; stop it as that user"
            ) from None
        deadline = time.monotonic() + KILL_AFTER_S
        while _is_running(name):
            if time.monotonic() > deadline:
                log.warning(
                    "%s: does not end; killed, and what it did since its last checkpoint is lost", name
                )
                os.killpg(job.pid, signal.SIGKILL)
                _write(replace(job, exit_code=KILLED, ended=time.time()))
                break
            time.sleep(POLL_S / 10)
        return True


def supervise(name: str) -> None:
    """Run the stage, pass SIGTERM on to it, and write down how it ended."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if not children:
            sys.exit()
        children[0].send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    job = _write(replace(_read(name), pid=os.getpid(), began=time.time()))
    code = Stopped.exit_code
    try:
        # What a stage prints on stdout is the place of its artifact, which `anadil launch` prints.
        environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
        with subprocess.Popen(job.command, env=environment, stdout=subprocess.DEVNULL) as child:
            children.append(child)
            code = child.wait()
    finally:
        _write(replace(job, exit_code=code if code >= 0 else 128 - code, ended=time.time()))


def _start(job: LocalJob, rendered: dict[str, Any], lock: IO[str]) -> None:
    """Leave the job to a supervisor in a session of its own, which takes the lock over."""
    _write(job)
    environment = os.environ | rendered["environment"]
    if sys.stderr.isatty():
        environment.setdefault("ANADIL_LOG", "text")  # followed by people
    with _path(job.name, ".log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "anadil.launch.local", job.name], env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            pass_fds=[lock.fileno()],
        )  # fmt: skip
    while not _read(job.name).pid and process.poll() is None:
        time.sleep(POLL_S / 10)
    process.returncode = 0  # it is left to itself, of which Popen would complain


def _path(name: str, ending: str = ".json") -> Path:
    return work_folder() / "jobs" / f"{Path(name).name}{ending}"


def _take_lock(name: str, attempts: int = 5) -> IO[str] | None:
    """The lock of a job that does not run; None where it runs."""
    path = _path(name, ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    for attempt in range(attempts):  # `_is_running` of somebody else holds it for a moment
        time.sleep(attempt * POLL_S / 10)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
    file.close()
    return None


def _is_running(name: str) -> bool:
    lock = _take_lock(name, attempts=1)
    if lock:
        lock.close()
    return lock is None


def _write(job: LocalJob) -> LocalJob:
    draft = _path(job.name, f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(job), ensure_ascii=False), encoding="utf-8")
    draft.replace(_path(job.name))
    return job


def _read(name: str) -> LocalJob:
    path = _path(name)
    if not path.is_file():
        raise DataError(f"{name}: no such job on this machine ({path} is not there); set ANADIL_WORK")
    try:
        return LocalJob(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: says nothing about a job ({error}); remove it") from None


def _last_line(job: LocalJob) -> str:
    if job.exit_code is None:
        return "the process is gone and left no word; see the system's log (out of memory?)"
    lines = _path(job.name, ".log").read_text(errors="replace").splitlines()
    return format_log_line(lines[-1])[:500] if lines else ""


if __name__ == "__main__":
    supervise(sys.argv[1])
