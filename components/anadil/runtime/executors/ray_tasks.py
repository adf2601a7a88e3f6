"""Tasks on Ray: on this machine, or on the cluster that RAY_ADDRESS names.

A task runs in a process of its own below Ray's worker, with the usual limits, and a record that kills it is skipped as
usual. Ray gives the tasks of a dead worker or node to another one. Texts do not go through Ray: tasks read and write
files that every node sees.
"""

import atexit
import importlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from anadil.core.errors import PreflightError
from anadil.runtime.executor import Task
from anadil.runtime.executors.processes import TICK_S, Processes
from anadil.runtime.threads import num_cores

log = logging.getLogger(__name__)

ADDRESS_VARIABLE = "RAY_ADDRESS"
MAX_RETRIES = 5
"""Workers or nodes that a task may lose; a record that kills its process costs none."""
ATTEMPTS, PAUSE_S = 3, 5.0
"""To connect: the head of a cluster that has just started, or a loaded one, is slow to start a server for a client."""
CHECKED_PLACES = 4
"""Times the nodes: tasks that look whether their node sees the directory."""

_process: Processes | None = None
"""Processes of a worker of Ray: kept from one task to the next."""


class RayTasks:
    """Tasks on Ray of this machine, or of the cluster that RAY_ADDRESS names."""

    def __init__(self, num_workers: int | None, work: Path, cluster: Any = None) -> None:
        """Start nothing yet.

        Args:
            num_workers: Tasks at a time; None: as many as Ray has CPUs.
            work: Directory that every node must see.
            cluster: Context manager that starts a cluster and gives its address.
        """
        self.num_workers = num_workers or num_cores()
        self._wanted = num_workers
        self._work = work
        self._cluster = cluster
        self._ray: Any = None

    def __enter__(self) -> Self:
        """Start Ray here, or connect to the cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray = importlib.import_module("ray")
        address = self._cluster.__enter__() if self._cluster else os.environ.get(ADDRESS_VARIABLE)
        try:
            self._connect(address)
            if address:
                self.num_workers = self._wanted or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
                self._check_directory()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()
        if self._cluster:
            self._cluster.__exit__(None, None, None)

    def map(
        self, function: Callable[[Any], None], tasks: Sequence[Task], tick: Callable[[], None] = lambda: None
    ) -> None:
        """See `Executor.map`."""
        remote = self._ray.remote(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")(_work)
        left, running = list(reversed(tasks)), dict[Any, Task]()
        try:
            while left or running:
                while left and len(running) < self.num_workers:
                    task = left.pop()
                    running[remote.remote(function, task, logging.getLogger().level)] = task
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=TICK_S)
                tick()
                for reference in ready:
                    self._result(reference, running.pop(reference))
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _connect(self, address: str | None) -> None:
        here: dict[str, Any] = {"num_cpus": self._wanted, "include_dashboard": False}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._ray.init(
                    address=address or "local", log_to_driver=True, logging_level=logging.WARNING,
                    **({} if address else here),
                )  # fmt: skip
                return
            except (ConnectionError, RuntimeError, OSError) as error:
                self._ray.shutdown()
                if attempt == ATTEMPTS:
                    raise PreflightError(
                        f"Ray does not answer at {address or 'this machine'}: {error}; correct {ADDRESS_VARIABLE}, and "
                        "set RAY_AUTH_MODE and RAY_AUTH_TOKEN where the cluster asks for a token"
                    ) from None
                log.warning("Ray does not answer yet (%s); trying again", " ".join(str(error).split())[-200:])
                time.sleep(PAUSE_S)

    def _result(self, reference: Any, task: Task) -> None:
        errors = self._ray.exceptions
        try:
            self._ray.get(reference)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except errors.RayError as error:
            raise PreflightError(
                f"{task.name}: Ray lost it {MAX_RETRIES + 1} times ({' '.join(str(error).split())[:300]}); see the "
                "log of its workers, and give them more memory"
            ) from None

    def _check_directory(self) -> None:
        """Make sure that every node sees what the driver writes."""
        self._work.mkdir(parents=True, exist_ok=True)
        probe = self._work / f".seen-by-ray-{uuid.uuid4().hex}"
        probe.touch()
        try:
            look = self._ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_sees)
            nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
            seen = self._ray.get([look.remote(str(probe)) for _ in range(CHECKED_PLACES * nodes)])
        finally:
            probe.unlink()
        if not all(seen):
            raise PreflightError(
                f"{self._work}: a node of Ray does not see this directory; put cluster.work on a volume that every "
                "node mounts"
            )


def _work(function: Callable[[Any], None], task: Task, level: int) -> None:
    global _process  # noqa: PLW0603  one for each worker
    if _process is None:
        logging.getLogger().setLevel(level)
        _process = Processes(1, may_fork=False)  # Ray's own threads are not made for copies
        atexit.register(_process.__exit__)
    _process.map(function, [task])


def _sees(path: str) -> bool:
    return Path(path).exists()
