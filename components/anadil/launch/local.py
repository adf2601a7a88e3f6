"""A training stage as a process of this machine, followed or left running; known by its name.

What is known of a job lies in `$ANADIL_WORK/jobs/<name>.json`, its log beside it where nobody
followed it. The process that wrote the file passes signals on to the stage and notes how it ended:

    python -m anadil.launch.local FILE
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from anadil.core import errors
from anadil.core.errors import DataError, PreflightError, RecipeError, Stopped
from anadil.launch.backend import FINAL, State, Status
from anadil.launch.exit_codes import error_of
from anadil.launch.job import TrainingJob
from anadil.launch.log_format import said
from anadil.runtime.environment import PARENT_VARIABLE

log = logging.getLogger(__name__)

PATIENCE_S = 130.0
"""Between SIGTERM and SIGKILL: more than the 110 s that torchrun waits for its processes."""
START_S = 30.0
"""Within which a detached process says that it lives."""
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a job."""

    name: str
    command: list[str]
    environment: dict[str, str]
    artifact: str
    log: str = ""
    """File; empty where the job was followed."""
    pid: int = 0
    """Process that looks after the stage."""
    born: str = ""
    """When that process started, in the system's own words: numbers of processes are used again."""
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
        asked = Known(name=job.name, artifact=job.target, **self.render(job))
        with _only_one(job.name):
            found = _read(job.name)
            if found and _lives(found):
                if found.command != asked.command:
                    raise RecipeError(
                        f"{job.name}: runs already with another recipe; wait for its end, or stop it: "
                        f"anadil stop {job.name} --backend local"
                    )
                log.info("%s runs already as process %s", job.name, found.pid)
            elif detach:
                found = _detached(asked)
                log.info("%s runs as process %s; its log is %s", job.name, found.pid, found.log)
            else:
                found = _write(_own(asked))
        if detach:
            return
        code = _supervise(found) if found.pid == os.getpid() else self._await(found)
        if code:
            raise error_of(code, f"{job.stage}: ended with exit code {code}; see its messages")

    def status(self, name: str) -> Status:
        """Where the job stands."""
        found = _required(name)
        state = _state(found)
        ended = found.ended or time.time()
        return Status(
            name=name,
            state=state,
            message="" if state in ("running", "succeeded") else _last_line(found),
            nodes=1,
            running=int(state == "running"),
            seconds=round(ended - found.began, 1) if found.began else None,
            artifact=found.artifact,
            exit_code=found.exit_code,
        )

    def logs(self, name: str, *, follow: bool = False) -> Iterator[str]:
        """Log lines of a detached job."""
        found = _required(name)
        if not found.log:
            raise DataError(f"{name}: was followed by process {found.pid}, and its log went there")
        with Path(found.log).open(encoding="utf-8", errors="replace") as file:
            while True:
                is_final = self.status(name).state in FINAL
                for line in file:
                    yield line.rstrip("\n")
                if is_final or not follow:
                    return
                time.sleep(POLL_S)

    def stop(self, name: str) -> None:
        """SIGTERM, time to save, and SIGKILL for what does not end.

        The signal goes to the process that looks after the stage, not to the group: torchrun
        sends it to its processes itself, and a second one would end them before they have saved.
        """
        found = _required(name)
        if not _lives(found):
            log.info("%s: has ended already", name)
            return
        _signal(found, signal.SIGTERM)
        if not _gone(found, PATIENCE_S):
            log.warning("%s: does not end; killed, and what it did since its last checkpoint is lost", name)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(_required(name).stage_pid, signal.SIGKILL)
            _gone(found, PATIENCE_S)

    def _await(self, found: Known) -> int:
        """Wait for a job that another process looks after; its exit code."""
        try:
            if found.log:
                for line in self.logs(found.name, follow=True):
                    sys.stderr.write(f"{line}\n")
            else:
                while _lives(found):
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            log.info("%s goes on; anadil stop %s --backend local ends it", found.name, found.name)
            raise
        ended = _required(found.name)
        return errors.BUG if ended.exit_code is None else ended.exit_code


def main(file: str) -> int:
    """Look after a detached stage."""
    known = _write(_own(_parsed(Path(file))))
    return _supervise(known)


def _supervise(known: Known) -> int:
    """Run the stage, pass signals on to it, and note how it ended."""
    environment = os.environ | known.environment | {PARENT_VARIABLE: str(os.getpid())}
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
            known.command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:  # fmt: skip
            children.append(child)
            known = _write(replace(known, stage_pid=child.pid))
            code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        code = code if code >= 0 else 128 - code
        _write(replace(known, exit_code=code, ended=time.time()))
    return code


def _detached(asked: Known) -> Known:
    """The job, running in a session of its own, with its log in a file."""
    path = _path(asked.name)
    file = path.with_suffix(".log")
    _write(replace(asked, log=str(file)))
    with file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "anadil.launch.local", str(path)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        found = _required(asked.name)
        if found.pid:
            process.returncode = 0  # it is left to itself, of which Popen would complain
            return found
        time.sleep(POLL_S / 10)
    raise PreflightError(f"{asked.name}: did not start; see {file}")


def _own(known: Known) -> Known:
    return replace(known, pid=os.getpid(), born=_born(os.getpid()) or "", began=time.time())


def _work() -> Path:
    return Path(os.environ.get("ANADIL_WORK", Path(tempfile.gettempdir()) / "anadil-work"))


def _path(name: str) -> Path:
    return _work() / "jobs" / f"{Path(name).name}.json"


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Between launchers that look for a job and start it."""
    path = _path(name).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(known: Known) -> Known:
    path = _path(known.name)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(known), ensure_ascii=False), encoding="utf-8")
    draft.replace(path)
    return known


def _read(name: str) -> Known | None:
    path = _path(name)
    return _parsed(path) if path.is_file() else None


def _parsed(path: Path) -> Known:
    try:
        return Known(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: says nothing about a job ({error}); remove it") from None


def _required(name: str) -> Known:
    found = _read(name)
    if found is None:
        raise DataError(f"{name}: no such job on this machine ({_path(name)} is not there); set ANADIL_WORK")
    return found


def _state(found: Known) -> State:
    if _lives(found):
        return "running"
    if found.exit_code == 0:
        return "succeeded"
    return "stopped" if found.exit_code in (Stopped.exit_code, errors.INTERRUPTED) else "failed"


def _last_line(found: Known) -> str:
    if found.exit_code is None:
        return "the process is gone and left no word; see the system's log (out of memory?)"
    lines = Path(found.log).read_text(errors="replace").splitlines() if found.log else []
    return said(lines[-1])[:500] if lines else ""


def _lives(found: Known) -> bool:
    return bool(found.pid and found.born) and found.exit_code is None and _born(found.pid) == found.born


def _born(pid: int) -> str | None:
    """When a process started; None where there is no such process, or only what its parent has to collect."""
    if Path("/proc/self/stat").exists():
        try:
            # Source: proc(5): the name, in parentheses, may hold anything; then state (3) ... starttime (22).
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    listed = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False  # noqa: S607
    )  # fmt: skip
    return listed.stdout.strip() or None


def _signal(found: Known, number: signal.Signals) -> None:
    try:
        os.kill(found.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise PreflightError(
            f"{found.name}: process {found.pid} is another user's; stop it as that user"
        ) from None


def _gone(found: Known, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while _lives(found):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S / 10)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
