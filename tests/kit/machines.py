"""Machines of a job as real processes: torchrun agents whose ends a fake cluster tells the launcher of."""

import os
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from anadil.runtime import termination
from tests.kit.mlflow_server import free_port
from tests.kit.ranks import Fork

WORKER = (
    "import os, pathlib, signal, sys, time\n"
    "import torch\n"
    "from anadil.core import errors\n"
    "from anadil.model.process_group import peers\n"
    "from anadil.model.process_group import group\n"
    "from anadil.runtime import termination\n"
    "here = pathlib.Path({folder!r})\n"
    "termination.TERMINATION_LOG = pathlib.Path(os.environ['WORDS'])\n"
    "rank = int(os.environ['RANK'])\n"
    "def work():\n"
    "    ended = termination.repeat_end()\n"
    "    if ended is not None:\n"
    "        return ended\n"
    "    with peers(rank), group(torch.device('cpu')) as others:\n"
    "        others.wait()\n"
    "        (here / f'ready-{{rank}}').touch()\n"
    "        {body}\n"
    "    return 0\n"
    "sys.exit(termination.exit_code_of(work))\n"
)
WAIT = "while not (here / 'go').exists(): time.sleep(0.05); others.wait()"
"""What a step is: nobody goes on before all are there."""


@dataclass(slots=True)
class Machines:
    """Machines that meet at the first one's store, as the training operator tells them to.

    Source: kubeflow/trainer v1.9, pkg/controller.v1/pytorch/elastic.go
    """

    folder: Path
    body: str = WAIT
    nodes: int = 2
    processes: int = 1
    restarts: int = 1
    port: int = field(default_factory=free_port)
    _running: dict[int, Fork] = field(default_factory=dict)

    def start(self, index: int) -> None:
        """A machine's container starts."""
        script = WORKER.format(folder=str(self.folder), body=self.body)
        (self.folder / "worker_of_a_test.py").write_text(script)
        words = self.folder / f"words-{index}"
        words.write_text("")
        told = {
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ID": "job",
            "PET_RDZV_CONF": f"timeout=60,is_host={int(index == 0)}",
            "PET_NNODES": f"{self.nodes}:{self.nodes}",
            "PET_MAX_RESTARTS": str(self.restarts),
            "PET_NPROC_PER_NODE": str(self.processes),
            "PYTHONPATH": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "WORDS": str(words),
        }
        log = self.folder / f"machine-{index}.log"
        self._running[index] = Fork(partial(run_agent, words, self.processes), log, told)

    def await_ready(self, ranks: int = 2) -> None:
        """Until so many processes are at work."""
        deadline = time.monotonic() + 120
        while len(list(self.folder.glob("ready-*"))) < ranks:
            assert time.monotonic() < deadline, "the machines do not meet"
            time.sleep(0.05)

    def kill(self, index: int) -> int:
        """A node is lost, all its processes at once; the exit code that the kubelet tells."""
        agent = self._running[index]
        for process in [agent.pid, *descendants(agent.pid)]:
            os.kill(process, signal.SIGKILL)
        agent.wait()
        return 137

    def end(self, index: int) -> tuple[int, str]:
        """Exit code and termination message of a machine that ends by itself."""
        code = self._running[index].wait(180)
        return code, (self.folder / f"words-{index}").read_text()

    def close(self) -> None:
        """Leave no process behind."""
        for index, agent in self._running.items():
            if agent.poll() is None:
                self.kill(index)


def run_agent(words: Path, processes: int) -> None:
    """Start the workers of a machine as a stage does; what the machine says at its end is in `words`."""
    from anadil.runtime.torchrun import launch_group

    termination.TERMINATION_LOG = words
    raise SystemExit(termination.exit_code_of(lambda: launch_group("worker_of_a_test", [], processes)))


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found
