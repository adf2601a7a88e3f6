"""Runs a test's function in several processes that are one gloo group.

One fresh interpreter imports torch and transformers, and splits before anything starts a thread, so
that more processes cost little more than one.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def in_ranks(function: Callable[..., None], world: int, *arguments: Any) -> None:
    """Call `function(rank, *arguments)` in `world` processes; fails with what they wrote if one fails.

    Args:
        function: Of a test module's top level.
        world: Number of processes.
        arguments: What JSON can hold.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            __name__,
            function.__module__,
            function.__name__,
            str(world),
            *_texts(arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _texts(arguments: tuple[Any, ...]) -> list[str]:
    return [json.dumps(argument) for argument in arguments]


def _main(module: str, function: str, world: str, *arguments: str) -> int:
    work = getattr(importlib.import_module(module), function)
    values = [json.loads(argument) for argument in arguments]
    # A store that is forked needs no port, and no waiting for one.
    from torch._C._distributed_c10d import FileStore

    path = str(Path(tempfile.gettempdir(), f"anadil-ranks-{os.getpid()}"))
    children = []
    for rank in range(int(world)):
        child = os.fork()
        if not child:
            _child(work, rank, int(world), FileStore(path, int(world)), values)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    Path(path).unlink(missing_ok=True)
    return int(any(codes))


def _child(work: Callable[..., None], rank: int, world: int, store: Any, values: list[Any]) -> None:
    import torch
    from torch import distributed as dist

    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        work(rank, *values)
        code = 0
    except BaseException:  # noqa: BLE001  nothing may leave the fork
        print(f"process {rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    finally:
        sys.stderr.flush()
        # Others wait for this process in a collective and are ended by their peer's end.
        os._exit(code)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
