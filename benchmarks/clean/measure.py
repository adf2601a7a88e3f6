"""CPU time, time on the clock and memory of a command with all processes that it starts (Linux)."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.05
"""Between two looks at memory; what comes and goes in less is not seen."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a command."""

    cpu_s: float
    """User and system time of all its processes."""
    wall_s: float
    peak_bytes: int
    """Largest sum of the resident memory of all its processes at one time; shared pages count for each."""
    exit_code: int
    output: str
    """Its last line."""


class CommandError(RuntimeError):
    """A command of the benchmark failed."""


def run(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    is_time_to_kill: Callable[[], bool] | None = None,
) -> Cost:
    """Run a command to its end, and say what it took.

    Args:
        command: What to run; it gets a session of its own, by which its processes are known.
        log: File for its standard error.
        environment: Variables beside those of this process.
        is_time_to_kill: Asked again and again; once it says so, all processes are killed. None: it runs to its end.

    Raises:
        CommandError: It failed, and nobody killed it.
    """
    started = time.monotonic()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
    peak, cpu_of = 0, dict[int, float]()
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        members = _session(process.pid)
        cpu_of |= members
        peak = max(peak, sum(map(_resident, members)))
        if is_time_to_kill and is_time_to_kill():
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(SAMPLE_S)
    wall_s = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read().decode(errors="replace").strip()
    if process.returncode and not is_time_to_kill:
        raise CommandError(f"{' '.join(command)}: exit code {process.returncode}; see {log}")
    return Cost(
        # A process that nobody waits for is missing in its parent's account.
        cpu_s=max(usage.ru_utime + usage.ru_stime, sum(cpu_of.values())), wall_s=wall_s, peak_bytes=peak,
        exit_code=process.returncode, output=output.split("\n")[-1],
    )  # fmt: skip


def _session(leader: int) -> dict[int, float]:
    """The processes of a session, and the CPU seconds of each."""
    processes = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            processes[int(each.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return processes


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def machine() -> str:
    """The processor, how many of it, and how busy it is."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    return f"{os.cpu_count()} CPUs ({name}), load {os.getloadavg()[0]:.1f}"
