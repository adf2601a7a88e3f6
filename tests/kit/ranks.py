"""Functions of tests in several processes that are one gloo group.

Python's fork server imports torch and transformers once for all tests, in a process without threads, and
forks the ranks: each then costs milliseconds and not the seconds of an import.
"""

import atexit
import contextlib
import functools
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.kit.mlflow_server import free_port

TIMEOUT_S = 300
PRELOADED = (
    "tests.kit.uncollected",
    "pytest",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "transformers.models.llama.modeling_llama",
    "anadil.pretrain.run",
    "anadil.finetune.run",
    "boto3",
    "tests.kit.frozen",
)


@functools.cache
def _forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    # Ended and waited for, so that what it used is counted as the tests'.
    atexit.register(forkserver._forkserver._stop)  # type: ignore[attr-defined]  # a part that is not public
    return context


def in_ranks(function: Callable[..., None], world: int, *arguments: Any, killed: int | None = None) -> None:
    """Call `function(rank, *arguments)` in `world` processes; fails with what they wrote if one fails."""
    wanted = [-signal.SIGKILL if rank == killed else 0 for rank in range(world)]
    with tempfile.TemporaryDirectory(prefix="anadil-ranks-") as folder:
        codes = in_forks(
            [
                functools.partial(_in_group, function, rank, world, f"{folder}/store", arguments)
                for rank in range(world)
            ],
            Path(folder),
        )
        written = "".join(file.read_text(errors="replace") for file in sorted(Path(folder).glob("*.log")))
    assert codes == wanted, f"exit codes {codes}\n{written}"


def in_forks(works: list[Callable[[], object]], folder: Path) -> list[int]:
    """Run each in a process of its own, all at once; exit codes, or minus a signal.

    What they write is in `<number>.log` below the folder.
    """
    forks = [Fork(work, folder / f"{number}.log") for number, work in enumerate(works)]
    try:
        return [fork.wait() for fork in forks]
    finally:
        for fork in forks:
            fork.kill()


def module_in_ranks(
    processes: int, log: Path, name: str, *arguments: str, **environment: str
) -> list["Fork"]:
    """Start what `python -m name arguments` does in processes that train together, as torchrun would start them."""
    work = functools.partial(run_module, name, *arguments)
    groups = variables_of_ranks(processes) if processes > 1 else [{}]
    return [Fork(work, log, environment | group) for group in groups]


def variables_of_ranks(processes: int) -> list[dict[str, str]]:
    """What torchrun would give to each of the processes of one node."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


class Fork:
    """A process that runs a function, with what tests ask of a `subprocess.Popen`."""

    def __init__(self, work: Callable[[], object], log: Path, environment: Mapping[str, str] = {}) -> None:
        """Start it."""
        self.log = log
        variables = {**os.environ, **environment}
        self._process = _forks().Process(target=_fork, args=(work, variables, log), daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        """Its exit code, or minus the signal that ended it."""
        self._process.join(timeout)
        code: int | None = self._process.exitcode
        assert code is not None, f"process {self.pid} still runs after {timeout} s"
        return code

    def poll(self) -> int | None:
        """As `wait`; nothing while it runs."""
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        """Such as SIGTERM; as with a `Popen`, nothing where the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.join()


def run_module(name: str, *arguments: str) -> None:
    """What `python -m name arguments` does, in this process."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_script(file: Path, *arguments: str) -> None:
    """What `python file arguments` does, in this process."""
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.parent))
    runpy.run_path(str(file), run_name="__main__")


def _fork(work: Callable[[], object], environment: dict[str, str], log: Path) -> None:
    import torch

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(environment)
    code = 99
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001  nothing may leave the fork
        traceback.print_exc()
        code = int(getattr(error, "exit_code", code))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Others wait for this process in a collective and are ended by their peer's end.
        os._exit(code)


def _in_group(
    function: Callable[..., None], rank: int, world: int, store: str, arguments: tuple[Any, ...]
) -> None:
    from torch import distributed as dist
    from torch._C._distributed_c10d import FileStore

    # A store that is a file needs no port, and no waiting for one.
    dist.init_process_group("gloo", store=FileStore(store, world), rank=rank, world_size=world)
    function(rank, *arguments)
