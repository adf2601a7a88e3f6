"""A training stage as a process of this machine, followed or left running; known by its name.

`$ANADIL_WORK/jobs/NAME.json` holds what is known of a job, `NAME.log` the log of a detached one.
Whoever supervises the stage holds a lock on `NAME.lock`. The system releases it with the process, so
a job is never taken for running because another process got its number.

    python -m anadil.launch.local FILE LOCK    supervises a detached stage
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from anadil import errors
from anadil.entry import PARENT_VARIABLE
from anadil.errors import DataError, PreflightError, RecipeError, Stopped
from anadil.launch.backend import FINAL, JobState, JobStatus, format_log_line
from anadil.launch.ends import error_from_exit_code
from anadil.launch.job import TrainingJob

log = logging.getLogger(__name__)

PATIENCE_S = 130.0
"""Between SIGTERM and SIGKILL: more than the 110 s that torchrun waits for its processes."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What is known of a job."""

    name: str
    command: list[str]
    artifact: str
    log: str = ""
    """File; empty where the job was followed."""
    pid: int = 0
    """Process that supervises the stage."""
    stage_pid: int = 0
    """Process of the stage, the first of its group."""
    began: float = 0
    """Seconds since the epoch."""
    ended: float = 0
    exit_code: int | None = None


class Local:
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
            "environment": {"ANADIL_WORK": str(_work()), "ANADIL_RUN_ID": job.run or job.name},
        }

    def run(self, job: TrainingJob, *, detach: bool = False) -> None:
        """Start the stage, or find it running, and wait for its end."""
        rendered = self.render(job)
        record = LocalJob(name=job.name, artifact=job.target, command=rendered["command"])
        environment = os.environ | rendered["environment"]
        lock = _take_lock(job.name)
        if lock is None:
            running = _read(job.name)
            if running.command != record.command:
                raise RecipeError(
                    f"{job.name}: runs already with another recipe; wait for its end, or stop it: "
                    f"anadil stop {job.name} --backend local"
                )
            log.info("%s runs already as process %s", job.name, running.pid)
            code = 0 if detach else self._await(running)
        else:
            with lock:
                start = _start_detached if detach else _supervise
                code = start(record, environment, lock.fileno())
        if code:
            raise error_from_exit_code(code, f"{job.stage}: ended with exit code {code}; see its messages")

    def status(self, name: str) -> JobStatus:
        """Where the job stands."""
        job = _read(name)
        state = _state(job)
        return JobStatus(
            name=name,
            state=state,
            message="" if state in ("running", "succeeded") else _last_line(job),
            nodes=1,
            running=int(state == "running"),
            seconds=round((job.ended or time.time()) - job.began, 1) if job.began else None,
            artifact=job.artifact,
            exit_code=job.exit_code,
        )

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Log lines of a detached job."""
        job = _read(name)
        if not job.log:
            raise DataError(f"{name}: was followed by process {job.pid}, and its log went there")
        with Path(job.log).open(encoding="utf-8", errors="replace") as file:
            while True:
                is_final = self.status(name).state in FINAL
                yield from (line.rstrip("\n") for line in file)
                if is_final or not follow:
                    return
                time.sleep(POLL_S)

    def stop(self, name: str) -> None:
        """SIGTERM, time to save, and SIGKILL for what does not end.

        The signal goes to the supervisor, not to the group: torchrun sends it to its processes
        itself, and a second one would end them before they have saved.
        """
        job = _read(name)
        if not job.pid or not _is_running(name):
            log.info("%s: has ended already", name)
            return
        try:
            os.kill(job.pid, signal.SIGTERM)
        except PermissionError:
            raise PreflightError(
                f"{name}: process {job.pid} is another user's; stop it as that user"
            ) from None
        if not _await_end(name):
            log.warning("%s: does not end; killed, and what it did since its last checkpoint is lost", name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(_read(name).stage_pid, signal.SIGKILL)
            _await_end(name)

    def _await(self, job: LocalJob) -> int:
        """Wait for a job that another process supervises; its exit code."""
        try:
            for line in self.logs(job.name, follow=True) if job.log else ():
                sys.stderr.write(f"{line}\n")
            while _is_running(job.name):
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            log.info("%s runs on; anadil stop %s --backend local ends it", job.name, job.name)
            raise
        code = _read(job.name).exit_code
        return errors.BUG if code is None else code


def _supervise(job: LocalJob, environment: Mapping[str, str], _lock: int) -> int:
    """Run the stage, pass signals on to it, and write down how it ended."""
    job = _write(replace(job, pid=os.getpid(), began=time.time()))
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)
        if not children:
            raise Stopped("stopped before the stage began; run the same command again")

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    code = Stopped.exit_code
    try:
        # A session of its own: Ctrl-C on a terminal would reach the stage twice. What a stage prints
        # on stdout is the place of its artifact, which `anadil launch` prints.
        with subprocess.Popen(
            job.command, env={**environment, PARENT_VARIABLE: str(os.getpid())}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        ) as child:  # fmt: skip
            children.append(child)
            job = _write(replace(job, stage_pid=child.pid))
            code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        code = code if code >= 0 else 128 - code
        _write(replace(job, exit_code=code, ended=time.time()))
    return code


def _start_detached(job: LocalJob, environment: Mapping[str, str], lock: int) -> int:
    """Leave the job to a supervisor in a session of its own, which takes the lock over."""
    path = _path(job.name)
    file = path.with_suffix(".log")
    _write(replace(job, log=str(file)))
    with file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "anadil.launch.local", str(path), str(lock)], env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, pass_fds=[lock],
        )  # fmt: skip
    while not _read(job.name).pid:
        if process.poll() is not None:
            raise PreflightError(f"{job.name}: did not start; see {file}")
        time.sleep(POLL_S / 10)
    process.returncode = 0  # it is left to itself, of which Popen would complain
    log.info("%s runs as process %s; its log is %s", job.name, process.pid, file)
    return 0


def _work() -> Path:
    return Path(os.environ.get("ANADIL_WORK", Path(tempfile.gettempdir()) / "anadil-work"))


def _path(name: str) -> Path:
    return _work() / "jobs" / f"{Path(name).name}.json"


def _take_lock(name: str, attempts: int = 5) -> IO[str] | None:
    """The lock of a job that does not run; None where it runs."""
    path = _path(name).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    for _ in range(attempts):  # `_is_running` of somebody else holds it for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        time.sleep(POLL_S / 10)
    file.close()
    return None


def _is_running(name: str) -> bool:
    lock = _take_lock(name, attempts=1)
    if lock:
        lock.close()
    return lock is None


def _await_end(name: str) -> bool:
    """Whether a job ends within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while _is_running(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S / 10)
    return True


def _write(job: LocalJob) -> LocalJob:
    path = _path(job.name)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(job), ensure_ascii=False), encoding="utf-8")
    draft.replace(path)
    return job


def _read(name: str) -> LocalJob:
    path = _path(name)
    if not path.is_file():
        raise DataError(f"{name}: no such job on this machine ({path} is not there); set ANADIL_WORK")
    try:
        return LocalJob(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: says nothing about a job ({error}); remove it") from None


def _state(job: LocalJob) -> JobState:
    if _is_running(job.name):
        return "running"
    # Read after the lock was looked at: the supervisor writes before it lets go.
    code = _read(job.name).exit_code
    if code == 0:
        return "succeeded"
    return "stopped" if code in (Stopped.exit_code, errors.INTERRUPTED) else "failed"


def _last_line(job: LocalJob) -> str:
    if job.exit_code is None:
        return "the process is gone and left no word; see the system's log (out of memory?)"
    lines = Path(job.log).read_text(errors="replace").splitlines() if job.log else []
    return format_log_line(lines[-1])[:500] if lines else ""


if __name__ == "__main__":
    sys.exit(_supervise(_read(Path(sys.argv[1]).stem), os.environ, int(sys.argv[2])))
