"""Tasks in processes of this machine.

The task of a process that dies goes to a new one, whose function knows from what was left where the last one died.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from anadil.artifacts import sealed_dir
from anadil.core.errors import PreflightError
from anadil.core.processes import die_with, do_without
from anadil.runtime.executor import Task
from anadil.runtime.executors import process_limits
from anadil.runtime.signals import Stop
from anadil.runtime.threads import num_cores

log = logging.getLogger(__name__)

TICK_S = 1.0
YOUNG_OBJECTS = 50_000
"""Before the next look for cycles: what is held of a batch of documents is no garbage, and a tenth of the time."""
MAX_DEATHS = 50
"""Processes that one task may take with it: each had another document, or something else is wrong."""
Function = Callable[[Any], None]


class Processes:
    """As many processes as there are CPUs, or as the recipe says."""

    def __init__(
        self, num_workers: int | None = None, *, may_fork: bool = True, stop: Stop | None = None
    ) -> None:
        """Start nothing yet.

        Args:
            num_workers: Tasks at a time; None: as many as there are CPUs.
            may_fork: Whether a process may be a copy of this one, if this one is safe to copy.
            stop: What signals do to this process.
        """
        self.num_workers = num_workers or num_cores()
        self._may_fork = may_fork
        self._stop = stop or Stop()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        """Begin; processes are started with the first tasks."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def map(self, function: Function, tasks: Sequence[Task], tick: Callable[[], None] = lambda: None) -> None:
        """See `Executor.map`."""
        left, deaths = deque(tasks), Counter[str]()
        while len(self._workers) < min(self.num_workers, len(tasks)):
            self._start(len(self._workers))
        while left or any(worker.task for worker in self._workers):
            for worker in self._workers:
                if worker.task is None and left:
                    worker.begin(function, left.popleft())
            ready = wait([worker.connection for worker in self._workers if worker.task], timeout=TICK_S)
            tick()
            for place, worker in enumerate(self._workers):
                task = worker.task
                if worker.connection in ready and not worker.receive() and task is not None:
                    deaths[task.name] += 1
                    log.warning("%s: its process died (%s); another one continues", task.name, worker.death)
                    if deaths[task.name] >= MAX_DEATHS:
                        raise PreflightError(
                            f"{task.name}: {MAX_DEATHS} processes died at it, the last one {worker.death}; look for what "
                            "kills them (the machine's kernel log tells of memory), or set clean.workers lower"
                        )
                    self._start(place)
                    left.appendleft(task)

    def _start(self, place: int) -> None:
        # Between its start and its place in the list a signal would leave a process behind that nobody ends.
        with self._stop.deferred():
            self._workers[place : place + 1] = [_Worker(self._may_fork)]
        self._stop.check()


class _Worker:
    def __init__(self, may_fork: bool) -> None:
        forked, spawned = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
        context = forked if may_fork and can_fork() else spawned
        self.connection, theirs = context.Pipe()
        self.task: Task | None = None
        self.death = ""
        self._process = context.Process(
            target=_serve, args=(theirs, os.getpid(), logging.getLogger().level), name="anadil-clean"
        )
        with warnings.catch_warnings():
            # From 3.12 on Python also counts threads of libraries; see `can_fork`.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def begin(self, function: Function, task: Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it is dead, which `receive` sees next
            self.connection.send((function, task))

    def receive(self) -> bool:
        """Take one message; False if the process has died."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self._remove_draft()
            self.death = process_limits.describe_exit(self._process.exitcode)
            return False
        if isinstance(message, logging.LogRecord):
            logging.getLogger(message.name).handle(message)
            return True
        self.task = None
        if message is not None:
            raise message
        return True

    def end(self) -> None:
        """End the process; what it has not finished is done again."""
        self._process.kill()
        self._process.join()
        self._remove_draft()
        self.connection.close()

    def _remove_draft(self) -> None:
        if self.task and self._process.pid:
            sealed_dir.remove_draft(self.task.folder, self._process.pid)


class _LogToParent(logging.Handler):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        self._connection.send(record)


def can_fork() -> bool:
    """Return whether a copy of this process works: it saves the .6 CPU seconds of imports that a new one begins with."""
    # A lock that another thread holds stays locked in a copy for ever, and S3 outputs and MLflow have threads. Those of
    # OpenBLAS and Arrow are no threads of Python, and both libraries ask the system to be told of copies.
    return sys.platform == "linux" and threading.active_count() == 1


def _serve(connection: Connection, parent: int, level: int) -> None:
    do_without("pandas", "scipy")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what a copied process does with it is not ours to do
    die_with(parent)
    process_limits.limit_process()
    logging.getLogger().handlers = [_LogToParent(connection)]
    logging.getLogger().setLevel(level)
    gc.set_threshold(YOUNG_OBJECTS)
    while True:
        try:
            function, task = connection.recv()
        except EOFError:
            return
        # The hundred thousands of objects that imports have made stay: no collection needs to look at them.
        gc.freeze()
        try:
            function(task)
        except MemoryError:
            os._exit(process_limits.OUT_OF_MEMORY)
        except BaseException as error:  # noqa: BLE001  the parent raises it
            _send_error(connection, error)
        else:
            connection.send(None)


def _send_error(connection: Connection, error: BaseException) -> None:
    import pickle
    import traceback

    error.add_note("".join(traceback.format_exception(error)))
    # An error is made again by calling its class with its `args`. A library's class may want other arguments, be one
    # that no module holds, or raise anything else; the parent would then fail in `recv` and never see the error.
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  code of any library
        error = RuntimeError("".join(traceback.format_exception(error)))
    connection.send(error)
