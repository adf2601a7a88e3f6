"""Tasks as files of a directory that several machines see: one writes them, the others run one each.

The one that runs a task knows the digest of the list of digests, so that only bytes that were written become objects.
"""

import argparse
import hashlib
import json
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anadil.artifacts.storage import LocalStore
from anadil.core import log as logs
from anadil.core.errors import BY_EXIT_CODE, AnadilError, IntegrityError, PreflightError
from anadil.runtime.executor import Task
from anadil.runtime.executors.processes import Processes
from anadil.runtime.termination import exit_code_of

log = logging.getLogger(__name__)

LIST = "tasks.json"
"""Digest of each task's file, in order."""
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Number of a pod of an Indexed Job. Source: Kubernetes, "Indexed Job for Parallel Processing"."""


def write_tasks(folder: Path, function: Callable[[Any], None], tasks: Sequence[Task]) -> str:
    """Write tasks into a new folder; return the digest that `run_task` asks for."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    digests = []
    for index, task in enumerate(tasks):
        content = pickle.dumps((function, task))
        digests.append(hashlib.sha256(content).hexdigest())
        _task_file(folder, index).write_bytes(content)
    content = json.dumps(digests).encode()
    (folder / LIST).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def run_task(folder: Path, digest: str, index: int) -> None:
    """Run one task, in a process of its own with the limits that it has everywhere."""
    function, task = _read_task(folder, digest, index)
    try:
        with Processes(1) as process:
            process.map(function, [task])
    except AnadilError as error:
        words = {"exit_code": error.exit_code, "message": str(error)}
        LocalStore().write(str(folder / f"error-{index:06}.json"), json.dumps(words).encode())
        raise


def first_error(folder: Path) -> AnadilError | None:
    """Exception that a task raised; None where none has said anything."""
    for path in sorted(folder.glob("error-*.json")):
        words = json.loads(path.read_text(encoding="utf-8"))
        return BY_EXIT_CODE.get(words["exit_code"], AnadilError)(words["message"])
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the task whose number the environment tells."""
    parser = argparse.ArgumentParser(prog="python -m anadil.runtime.executors.task_files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("digest")
    options = parser.parse_args(argv)
    logs.set_up("clean", container=True, verbose=False)

    def run() -> int:
        run_task(options.folder, options.digest, int(os.environ[INDEX_VARIABLE]))
        return 0

    return exit_code_of(run)


def _read_task(folder: Path, digest: str, index: int) -> tuple[Callable[[Any], None], Task]:
    try:
        listed = (folder / LIST).read_bytes()
        content = _task_file(folder, index).read_bytes()
    except OSError as error:
        raise PreflightError(
            f"{folder}: no task {index} ({error.strerror}); every pod must see this directory: put cluster.work on a "
            "claim of cluster.volumes that can be mounted by many (ReadWriteMany)"
        ) from None
    if (
        hashlib.sha256(listed).hexdigest() != digest
        or json.loads(listed)[index] != hashlib.sha256(content).hexdigest()
    ):
        raise IntegrityError(f"{folder}: task {index} is not the one that was written; start the run again")
    function, task = pickle.loads(content)  # noqa: S301  of the digest that whoever wrote it gave
    return function, task


def _task_file(folder: Path, index: int) -> Path:
    return folder / f"task-{index:06}.pickle"


if __name__ == "__main__":
    sys.exit(main())
