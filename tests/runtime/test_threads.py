import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anadil.core.errors import PreflightError
from anadil.runtime.threads import ASLEEP, OWN, check_shared_locks, num_cores, wait_asleep

SPINS = """
import ctypes, sys
from anadil.cli import main as cli
from anadil.runtime import entry_point
if sys.argv[1] == "cli":
    try:
        cli.main(["recipe", "list"])
    except SystemExit:
        pass
else:
    entry_point.main(sys.argv[1], ["--self-test"])
ctypes.CDLL(sys.argv[2])
"""
"""libgomp tells its settings when it is loaded, where OMP_DISPLAY_ENV asks for it."""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def libgomp() -> Path:
    """The one that torch loads; torch itself takes seconds."""
    (package,) = importlib.util.find_spec("torch").submodule_search_locations  # type: ignore[union-attr, misc]  # is installed
    return next(Path(package).rglob("libgomp*.so*"))


def told_by_libgomp(start: str) -> str:
    environment = {name: text for name, text in os.environ.items() if name not in OWN}
    done = subprocess.run(
        [sys.executable, "-c", SPINS, start, str(libgomp())],
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return done.stderr


@pytest.mark.parametrize("start", ["cli", "report"])
def test_the_threads_of_every_start_wait_asleep(start: str) -> None:
    assert "GOMP_SPINCOUNT = '0'" in told_by_libgomp(start)


@pytest.mark.parametrize("name", OWN)
def test_any_setting_of_the_users_own_goes_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "ACTIVE")

    wait_asleep()

    assert {each: os.environ[each] for each in OWN if each in os.environ} == {name: "ACTIVE"}


def test_where_nothing_is_set_processes_that_are_started_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_asleep()

    assert os.environ.items() >= ASLEEP.items()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("9000000 100000", 8)],
)
def test_no_more_cores_than_the_machine_has_and_the_container_gives(
    tmp_path: Path, limit: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("anadil.runtime.threads.CPU_LIMIT", tmp_path / "cpu.max")

    assert num_cores() == 8
    (tmp_path / "cpu.max").write_text(limit)
    assert num_cores() == expected


def test_a_machine_on_which_processes_can_share_no_locks_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lock(_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    check_shared_locks()
    monkeypatch.setattr("multiprocessing.context.BaseContext.Lock", lock)

    with pytest.raises(PreflightError, match=r"/dev/shm: .* \(Permission denied\); as root: mount -t tmpfs"):
        check_shared_locks()
