"""Processes that do a part of another one's work."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def run_child(
    command: Sequence[str],
    timeout_s: float,
    stdin: str | bytes = "",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a short command to its end and return its exit code, stdout and stderr, read as UTF-8.

    After `timeout_s` it is killed, and `subprocess.TimeoutExpired` is raised.
    """
    given = stdin.encode(errors="replace") if isinstance(stdin, str) else stdin
    done = subprocess.run(
        command, input=given, env=environment, capture_output=True, timeout=timeout_s, check=False
    )
    out, error = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, out, error)


def last_line(text: str, otherwise: str = "no message") -> str:
    """The last line of what a command wrote, which is its error."""
    return text.strip().rpartition("\n")[2] or otherwise


def die_with(parent: int) -> None:
    """Let the end of another process end this one, at once and however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us
    if not bind_to_parent(parent, signal.SIGKILL):
        os._exit(1)


def bind_to_parent(parent: int, number: int) -> bool:
    """Let this process get a signal when its parent ends, on Linux; return False if that has ended already."""
    if not sys.platform.startswith("linux"):
        return True
    import ctypes

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    return os.getppid() == parent


def start_of(pid: int) -> str:
    """When a process began, in ticks since boot: it tells a process from a later one of the same id. Empty if unknown."""
    try:
        # Field 22 of proc(5); the second is a name, which may hold blanks.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:  # no Linux, no such process, or one outside of the container
        return ""


def do_without(*packages: str) -> None:
    """Make imports of some packages fail in this process: PyArrow and numba load pandas and scipy wherever they are installed.

    They take .3 CPU seconds and 40 MB.
    """
    sys.meta_path.insert(0, _Unused(packages))


class _Unused:
    """Importer that reports packages as not installed: Cython takes None in `sys.modules` for the package."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, *_: object) -> None:
        if name in self._packages:
            raise ModuleNotFoundError(f"{name} is not used in this process", name=name)


def allow_more_memory(num_bytes: int) -> None:
    """Leave room for what the process holds all the time, such as a model of the user's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        soft += num_bytes
        resource.setrlimit(
            resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Let this process take no more than `num_bytes` beside what it has now, while the block runs.

    What is beyond is a `MemoryError`. A limit that is lower already stays; other threads are held to it, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if now := data_bytes():
        most = [each for each in (soft, hard, now + num_bytes) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int:
    """Memory that counts against the limit: pages of its own that may be written, as Linux counts it; 0 elsewhere."""
    return _status_bytes("VmData")


def resident_bytes() -> int:
    """Memory that this process has in the machine now, as Linux counts it; 0 elsewhere."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith(f"{name}:")), f"{name}: 0 kB")
    return int(line.split()[1]) * 1024


def limit(what: int, most: int) -> None:
    """Set a limit of this process, such as `resource.RLIMIT_CPU`, where none that is set is lower."""
    _, hardest = resource.getrlimit(what)
    resource.setrlimit(what, (most if hardest == resource.RLIM_INFINITY else min(most, hardest), hardest))
