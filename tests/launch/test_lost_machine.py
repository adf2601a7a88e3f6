"""What becomes of a followed job whose machines lose each other; the machines are real torchrun agents."""

import json
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from anadil.core.errors import IntegrityError
from tests.kit.fake_kubernetes import Cluster
from tests.kit.following import Scene
from tests.kit.machines import Machines
from tests.kit.marks import matrix

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="agents are torchrun")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    folder = tmp_path / "machines"
    folder.mkdir()
    made = Machines(folder)
    try:
        yield made
    finally:
        made.close()


def test_a_job_that_loses_the_host_of_its_store_heals_and_is_followed_on(
    scene: Scene, machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "anadil")

    def story(cluster: Cluster) -> None:
        cluster.job()
        for index in (0, 1):
            machines.start(index)
        cluster.run(0, 1)
        machines.await_ready()
        cluster.await_requests("GET", "pytorchjobs/", 2)
        code = machines.kill(0)
        lost = machines.end(1)
        assert lost[0] == 138, lost
        cluster.crash(1, *lost)  # seen before the end of the machine that began it
        cluster.await_requests("GET", "pytorchjobs/", 2)
        cluster.crash(0, code)
        (machines.folder / "go").touch()
        for index in (0, 1):
            machines.start(index)
            cluster.restart(index)
        assert [machines.end(index)[0] for index in (0, 1)] == [0, 0]
        cluster.await_requests("GET", "pytorchjobs/", 2)
        scene.succeed()

    scene.launch(story, "cluster.restarts=1")

    assert scene.cluster.made == 1
    assert scene.cluster.asked("DELETE", ".") == 0
    assert caplog.text.count("; restart 1 of 1") == 1


@pytest.mark.parametrize("guilty", [matrix(0), matrix(1)])
def test_damaged_bytes_on_one_machine_stay_the_cause_though_the_other_one_ends_first(
    scene: Scene, machines: Machines, guilty: int
) -> None:
    machines.restarts = 0
    machines.body = f"if rank == {guilty}: raise errors.IntegrityError('step-7: is not as it was written')\n        others.wait()"

    def story(cluster: Cluster) -> None:
        cluster.job()
        for index in (0, 1):
            machines.start(index)
        cluster.run(0, 1)
        cluster.await_requests("GET", "pytorchjobs/", 2)
        ends = [machines.end(index) for index in (0, 1)]
        assert [code for code, _ in ends] == [5 if index == guilty else 138 for index in (0, 1)], ends
        cluster.crash(1 - guilty, *ends[1 - guilty])
        cluster.await_requests("GET", "pytorchjobs/", 2)
        cluster.crash(guilty, *ends[guilty])

    with pytest.raises(IntegrityError, match=rf"worker {guilty} .* failed: step-7: is not as it was written"):
        scene.launch(story, "cluster.restarts=1")


@pytest.mark.matrix
def test_the_process_of_a_machine_that_says_why_is_its_exit_code(machines: Machines) -> None:
    machines.nodes, machines.processes, machines.restarts = 1, 2, 0
    machines.body = (
        "if rank == 1: raise errors.IntegrityError('step-7: is not as it was written')\n        others.wait()"
    )
    machines.start(0)

    code, words = machines.end(0)

    assert code == 5
    assert json.loads(words) == {"exit_code": 5, "message": "step-7: is not as it was written"}
