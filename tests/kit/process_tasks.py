"""Tasks for executors, in a module that a process loads quickly."""

import faulthandler
import logging
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts import sealed_dir
from anadil.core.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What is to be done, and a file that tells how often it was begun."""

    name: str
    what: str
    folder: Path


def work(task: Work) -> None:
    task.folder.mkdir(exist_ok=True)
    tries = task.folder / f"{task.name}.tries"
    with tries.open("a") as file:
        file.write(f"{os.getpid()}\n")
    num_tries = len(tries.read_text().split())
    if task.what == "die once writing" and num_tries == 1:
        with sealed_dir.create(task.folder, {"key": ""}):
            os.kill(os.getpid(), signal.SIGKILL)
    if task.what == "die":
        faulthandler.disable()  # the stacks say nothing, and look like a failure among the tests' output
        os.kill(os.getpid(), signal.SIGSEGV)
    if task.what == "refuse":
        raise DataError("no good")
    if task.what == "bug":
        raise Odd("one", "two")
    if task.what == "fill":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        (task.folder / "large").write_bytes(bytes(10))
    log.warning("done with %s", task.name)


class Odd(Exception):
    """One that cannot be made again from what it was pickled to."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)
