import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from anadil.core.stages import STAGES
from anadil.runtime.entry_point import _has_rendezvous
from anadil.runtime.termination import exit_code_of
from tests.kit.marks import matrix
from tests.kit.mlflow_server import free_port
from tests.kit.ranks import Fork


def launch_guarded(arguments: list[str], processes: int) -> None:
    """A launch of processes that run the module `worker_of_a_test`, as a stage's entry makes it."""
    from anadil.runtime.torchrun import launch_group

    sys.exit(exit_code_of(lambda: launch_group("worker_of_a_test", arguments, processes)))


def machine(tmp_path: Path, *arguments: str, processes: int, **told: str) -> Fork:
    """The same in a process of its own."""
    work = partial(launch_guarded, list(arguments), processes)
    return Fork(work, tmp_path / "said", told | {"PYTHONPATH": str(tmp_path)})


def launched(tmp_path: Path, code: str, stop_after: str = "") -> int:
    """Exit code of a launch of two processes that run `code`."""
    (tmp_path / "worker_of_a_test.py").write_text(f"import os, pathlib, signal, sys, time\n{code}\n")
    child = machine(tmp_path, "argument", processes=2)
    while stop_after and len(list(tmp_path.glob(f"{stop_after}*"))) < 2:
        time.sleep(0.05)
    if stop_after:
        child.send_signal(signal.SIGTERM)
    return child.wait()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("assert sys.argv[1:] == ['argument'] and os.environ['WORLD_SIZE'] == '2'", 0),
        ("sys.exit(42)", 42),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_code_is_that_of_the_worker(tmp_path: Path, code: str, expected: int) -> None:
    assert launched(tmp_path, code) == expected


def stage(tmp_path: Path, ends: str) -> str:
    """A stage whose first process leaves a file for each start that got as far as its work, and then `ends`."""
    return (
        "from anadil.runtime import entry_point\n"
        "from anadil.core.errors import DataError, RetryableError\n"
        "def work(*_):\n"
        "    start = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        f"    (pathlib.Path({str(tmp_path)!r}) / f'start-{{start}}-{{os.environ[\"RANK\"]}}').touch()\n"
        "    if os.environ['RANK'] == '1':\n"
        "        time.sleep(60)\n"
        f"    {ends}\n"
        "entry_point.execute = work\n"
        "sys.exit(entry_point.main('pretrain', ['--corpus', 'az=c', '--corpus', 'en=e', '--tokenizer', 't', '--recipe', 'smoke']))"
    )


def starts(tmp_path: Path) -> list[str]:
    """Starts whose first process has worked."""
    return sorted(path.name for path in tmp_path.glob("start-*-0"))


@pytest.mark.slow
def test_a_failure_that_would_come_again_is_not_worked_for_again_but_by_a_new_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    fails = stage(tmp_path, "raise DataError('no text')")

    first = launched(tmp_path, fails), starts(tmp_path)
    (tmp_path / "start-0-0").unlink()
    second = launched(tmp_path, fails), starts(tmp_path)

    assert first == second == (3, ["start-0-0"])


@pytest.mark.matrix
def test_processes_that_are_started_again_find_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    code = (
        "import torch\n"
        "from anadil.model.process_group import group\n"
        "if os.environ['RANK'] == '0':\n"
        "    time.sleep(1)\n"  # so that the other one would find what a start before has left
        "with group(torch.device('cpu')) as all_of_them:\n"
        "    all_of_them.wait()\n"
        "    told = all_of_them.gather(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'together-' + '-'.join(told)).touch()\n"
        "    all_of_them.wait()\n"
        "sys.exit(0 if told[0] == '1' else 138)"
    )

    result = launched(tmp_path, code)

    assert result == 0
    assert len(list(tmp_path.glob("together-*"))) == 2


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        matrix("raise RetryableError('lost')", 138),
        matrix("raise RuntimeError('CUDA error: uncorrectable ECC error encountered')", 70),
    ],
)
def test_what_may_go_better_is_started_again(
    tmp_path: Path, ends: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")

    result = launched(tmp_path, stage(tmp_path, ends))

    assert result == code
    assert starts(tmp_path) == ["start-0-0", "start-1-0"]


def test_a_signal_reaches_the_workers_and_the_launcher_ends_with_143(tmp_path: Path) -> None:
    code = (
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "def stop(*_):\n"
        "    (here / f'stopped-{os.environ[\"RANK\"]}').touch()\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "(here / f'ready-{os.environ[\"RANK\"]}').touch()\n"
        "time.sleep(60)"
    )

    result = launched(tmp_path, code, stop_after="ready-")

    assert result == 143
    assert len(list(tmp_path.glob("stopped-*"))) == 2


@pytest.mark.matrix
def test_two_machines_meet_where_the_training_operator_says(tmp_path: Path) -> None:
    code = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "name = f'rank-{dist.get_rank()}-of-{dist.get_world_size()}'\n"
        f"(pathlib.Path({str(tmp_path)!r}) / name).touch()\n"
        "dist.destroy_process_group()"
    )
    (tmp_path / "worker_of_a_test.py").write_text(f"import os, pathlib\n{code}\n")
    # Variables that an elasticPolicy becomes. Source: kubeflow/trainer v1.9, pkg/controller.v1/pytorch/elastic.go
    told = {
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{free_port()}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "job",
        "PET_RDZV_CONF": "timeout=1800",
        "PET_NNODES": "2:2",
        "PET_MAX_RESTARTS": "3",
        "PET_NPROC_PER_NODE": "1",
    }

    children = [machine(tmp_path, processes=1, **told) for _ in range(2)]
    codes = [child.wait() for child in children]

    assert codes == [0, 0]
    assert {path.name for path in tmp_path.glob("rank-*")} == {"rank-0-of-2", "rank-1-of-2"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, False),
        ({"PET_NNODES": "1", "PET_RDZV_ENDPOINT": "job-worker-0:23456"}, True),
        # With a master, the operator sets RANK to the number of the machine.
        ({"PET_NNODES": "2", "PET_MASTER_ADDR": "job-master-0", "RANK": "1"}, True),
        ({"PET_NNODES": "2", "PET_MASTER_ADDR": "job-master-0", "RANK": "1", "LOCAL_RANK": "0"}, False),
    ],
)
def test_the_stage_starts_torchrun_where_the_platform_says_where_to_meet(
    told: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)

    assert _has_rendezvous(STAGES["pretrain"]) is expected
    assert not _has_rendezvous(STAGES["evaluate"])
