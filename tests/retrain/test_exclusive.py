"""Two retrainings of one champion never run at once."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil.artifacts import lease
from anadil.core.errors import PreflightError
from anadil.recipe.sections import Recipe
from anadil.retrain.exclusive import claim, exclusive, free
from anadil.runtime.run_record import StepRecord, end_run, note_step
from tests.kit.retraining import NAME, recipe_of


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(lease.ObjectLease, "poll_s", 0.01)
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    if request.param == "s3":
        yield f"{request.getfixturevalue('bucket')}/root"
    else:
        yield str(tmp_path)


def begin_run(root: str, run: str) -> Recipe:
    recipe = recipe_of(Path("/nowhere"), storage={"root": root})
    note_step(recipe, run, "clean", StepRecord(stage="clean"))
    return recipe


def test_a_second_process_is_refused_until_the_first_ends(root: str) -> None:
    with exclusive(root, NAME):
        with (
            pytest.raises(PreflightError, match=r"another run.* it retrains anadil-az; wait for its end"),
            exclusive(root, NAME),
        ):
            pass
        with exclusive(root, "anadil-ja"):
            pass

    with exclusive(root, NAME):
        pass


def test_a_claim_holds_between_the_steps_of_its_run(root: str, caplog: pytest.LogCaptureFixture) -> None:
    begin_run(root, "run-1")
    claim(root, NAME, "run-1")
    claim(root, NAME, "run-1")

    with pytest.raises(
        PreflightError, match=r"run run-1 retrains it now; .* If it is gone, remove .*claim\.json"
    ):
        claim(root, NAME, "run-2")
    with pytest.raises(PreflightError, match="run run-1 retrains it now"), exclusive(root, NAME):
        pass
    free(root, NAME, "run-2")
    with pytest.raises(PreflightError, match="run-1"):
        claim(root, NAME, "run-2")

    free(root, NAME, "run-1")
    claim(root, NAME, "run-2")


def test_the_claim_of_a_run_that_has_ended_is_taken_over(root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    begin_run(root, "run-1")
    claim(root, NAME, "run-1")
    end_run(root, "run-1", 1)

    claim(root, NAME, "run-2")

    assert (
        "run run-1, which retrained anadil-az, has ended (failed) and left its claim; taking over"
        in caplog.text
    )


def test_a_claim_without_a_record_is_no_ended_run(root: str) -> None:
    claim(root, NAME, "run-1")

    with pytest.raises(PreflightError, match="run-1 retrains it now"):
        claim(root, NAME, "run-2")
