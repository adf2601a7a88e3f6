"""The release step, killed at random moments."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.marks import matrix, slow
from tests.kit.mlflow_server import MlflowServer

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@pytest.mark.parametrize("kills", [slow(4), matrix(20)])
def test_a_step_that_is_killed_at_any_moment_ends_the_same_when_it_is_repeated(
    mlflow_server: MlflowServer, tmp_path: Path, kills: int
) -> None:
    worker = [
        sys.executable,
        "-m",
        "tests.kit.release_worker",
        mlflow_server.uri,
        str(tmp_path),
        str(kills),  # also the seed, and in the names: the tests share a server
        str(kills),
    ]

    done = subprocess.run(
        worker, cwd=Path(__file__).parents[2], check=True, timeout=900, stdout=subprocess.PIPE, text=True
    )

    trials: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(trials) == kills + 2
    wholes = {trial["record"][0]: trial for trial in trials[:2]}  # those that were left alone
    assert set(wholes) == {"champion", "challenger"}
    assert sum(trial["killed"] for trial in trials) >= kills // 4, "the others had ended before"
    for trial in trials[2:]:
        whole = wholes[trial["record"][0]]
        same = ("record", "aliases", "versions", "runs", "artifacts", "leftovers", "again")
        assert {name: trial[name] for name in same} == {name: whole[name] for name in same}
        assert set(trial["alerts"]) == {"released"}
        assert len(trial["alerts"]) <= 2, "once more at most"
    expected = {"champion": "2", "previous": "1"}
    assert wholes["champion"]["aliases"] == expected
    assert (wholes["champion"]["versions"], wholes["champion"]["runs"]) == (["1", "2"], 2)
