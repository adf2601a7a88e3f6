"""A whole run that meets a fault: what it does, what it says, and how it resumes."""

import json
import os
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anadil.core.errors import (
    BudgetReached,
    IntegrityError,
    PreflightError,
    RecipeError,
    RetryableError,
    Stopped,
)
from anadil.pretrain.resilience.watchdog import Watchdog
from tests.kit.fault_injection import VARIABLE, run
from tests.kit.marks import matrix
from tests.kit.pretraining import (
    SHORT,
    SignalAt,
    generations,
    losses,
    make_job,
    make_recipe,
    run_in_child,
    run_in_several,
)
from tests.kit.ranks import Fork, run_script

NAN = json.dumps({"nan": {"step": 8}})


def test_a_batch_whose_loss_is_no_number_is_left_out_and_a_resume_leaves_it_out_too(
    tmp_path: Path, base: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = make_recipe(base, faults={"on_anomaly": "skip"})
    monkeypatch.setenv(VARIABLE, NAN)
    run(make_job(tmp_path, recipe, "skipped"))
    told = caplog.text

    code = run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(10, signal.SIGTERM)))
    monkeypatch.delenv(VARIABLE)
    run(make_job(tmp_path, recipe))

    # Back to the copy after step 6, without the batches of steps 7 and 8.
    assert "the loss is nan at step 8: back to step 6, without the batches since" in told
    clean, skipped = losses(whole), losses(tmp_path / "skipped/out")
    assert [clean[step] for step in range(1, 7)] == [skipped[step] for step in range(1, 7)]
    assert clean[7] != skipped[7]
    assert skipped.keys() == set(range(1, 13))
    assert code == Stopped.exit_code
    assert losses(tmp_path / "a/out") == skipped
    listed = json.loads((tmp_path / "a/work/anomaly-step-8.json").read_text())
    assert listed["loss"] == "nan"
    assert len(listed["sequences"]) == 4
    assert any("Bakı" in each["text"] or each["text"] for each in listed["sequences"][0]["documents"])


@pytest.mark.slow
def test_both_processes_leave_out_the_batch_that_one_of_them_could_not_use(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"nan": {"step": 3, "rank": 1}}))
    recipe = make_recipe(base, phases=SHORT, faults={"on_anomaly": "skip"}, parallelism={"shard": 2})

    codes = run_in_several(make_job(tmp_path, recipe))

    assert codes == [0, 0]
    assert losses(tmp_path / "a/out").keys() == {1, 2, 3, 4}


def test_without_leave_to_skip_the_run_ends_and_lists_the_documents(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, NAN)
    job = make_job(tmp_path, make_recipe(base))

    with pytest.raises(
        RecipeError, match=r"the loss is nan at step 8.*anomaly-step-8.json.*faults.on_anomaly=skip"
    ):
        run(job)

    assert generations(job)[0].name == "step-00000006"


def test_a_process_that_ran_out_of_memory_goes_on_with_half_the_micro_batch(
    tmp_path: Path, base: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(base, faults={"on_out_of_memory": "halve"})
    monkeypatch.setenv(VARIABLE, json.dumps({"oom": {"step": 8}}))

    with pytest.raises(RetryableError, match=r"step 8 on rank 0 with micro-batch 2 .* with micro-batch 1"):
        run(make_job(tmp_path, recipe))
    monkeypatch.delenv(VARIABLE)
    run(make_job(tmp_path, recipe))

    assert losses(tmp_path / "a/out") == pytest.approx(losses(whole), rel=1e-5)


def without_memory(*_args: Any, **_more: Any) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.96 GiB.")


@pytest.mark.parametrize(
    ("fails", "doing"),
    [("to", "loading the base model"), ("zeros_like", "allocating the optimizer"), ("", "saving step 3")],
)
def test_out_of_memory_outside_a_step_is_told_with_what_it_was_doing(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, fails: str, doing: str
) -> None:
    if fails:
        monkeypatch.setattr(torch.nn.Module if fails == "to" else torch, fails, without_memory)
    else:
        monkeypatch.setenv(VARIABLE, json.dumps({"oom": {"step": 3, "section": "save"}}))
    recipe = make_recipe(base, faults={"on_anomaly": "skip", "on_out_of_memory": "halve"})

    with pytest.raises(PreflightError, match=f"out of memory while {doing} on rank 0 on"):
        run(make_job(tmp_path, recipe))


def test_out_of_memory_in_a_restore_is_told_too(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_child(make_job(tmp_path, make_recipe(base), tracker=SignalAt(8, signal.SIGTERM)))
    monkeypatch.setattr(torch, "zeros_like", without_memory)

    with pytest.raises(PreflightError, match="out of memory while resuming from a checkpoint on rank 0"):
        run(make_job(tmp_path, make_recipe(base)))


@pytest.mark.slow
def test_a_hang_in_the_burn_in_ends_the_run_and_says_where(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Watchdog.__init__.__kwdefaults__ or {}, "start_after_s", 2.0)
    job = make_job(tmp_path, make_recipe(base, faults={"burn_in": "always", "hang_after_s": 2.0}))
    os.mkfifo(job.work / ".anadil-probe-0")  # nobody reads what the disk's test writes into it

    code = run_in_child(job)

    assert code == RetryableError.exit_code
    stacks = (job.work / "hang-rank-0.txt").read_text()
    assert "section='start'" in stacks
    assert "in _test_disk" in stacks


def test_a_run_that_fails_before_its_first_step_is_not_watched_any_more(tmp_path: Path, base: Path) -> None:
    (tmp_path / "file").touch()
    copies = {"local_every": 2, "local_path": str(tmp_path / "file")}
    job = make_job(tmp_path, make_recipe(base, faults={"burn_in": "always"}, copies=copies))

    with pytest.raises(PreflightError, match=r"burn-in: .*pretrain\.copies\.local_path"):
        run(job)

    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not list(job.work.glob("hang-*"))


def test_a_used_up_budget_ends_the_run_saved_and_a_larger_one_goes_on(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    with pytest.raises(BudgetReached, match="the budget is used up"):
        run(make_job(tmp_path, make_recipe(base, faults={"budget_hours": 1e-9})))
    saved = generations(make_job(tmp_path, make_recipe(base)))[0].name
    run(make_job(tmp_path, make_recipe(base, faults={"budget_hours": 100})))

    assert saved == "step-00000001"
    assert losses(tmp_path / "a/out") == losses(whole)


@pytest.mark.parametrize("rank", [0, matrix(1)])  # the first one saves
def test_a_flipped_bit_in_one_replica_names_it_and_is_not_gone_on_from(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], rank: int
) -> None:
    settings: dict[str, Any] = {
        "faults": {"replica_check_every": 3},
        "phases": [{"trains": "all", "steps": 7, "lr": 0.005}],
        "checkpoint_every": 1,
        "copies": {"archive": str(tmp_path / "archive")},
    }
    recipe = make_recipe(base, **settings)
    run_in_several(make_job(tmp_path, recipe, "whole"))
    shutil.rmtree(tmp_path / "archive")

    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, json.dumps({"flip": {"step": 5, "rank": rank}}))
        first = run_in_several(make_job(tmp_path, recipe))
    said = capfd.readouterr().err
    saved = generations(make_job(tmp_path, recipe))[0].name
    copied = {path.name for path in (tmp_path / "archive").glob("*/step-*")}
    second = run_in_several(make_job(tmp_path, recipe))

    assert first == [IntegrityError.exit_code] * 2
    assert "silent corruption: after step 6" in said
    assert saved == "step-00000003"
    assert copied <= {"step-00000001", "step-00000002", "step-00000003"}
    assert second == [0, 0]
    assert losses(tmp_path / "a/out") == losses(tmp_path / "whole/out")


def test_a_copy_on_the_machine_s_disk_is_newer_than_the_durable_one(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    copies = {"local_every": 2, "local_path": str(tmp_path / "nvme")}
    recipe = make_recipe(base, checkpoint_every=100, copies=copies)

    code = run_in_child(make_job(tmp_path, recipe, tracker=SignalAt(11, signal.SIGKILL)))
    run(make_job(tmp_path, recipe))

    assert code == -signal.SIGKILL
    assert losses(tmp_path / "a/out") == losses(whole)
    time = json.loads((tmp_path / "a/out/training.json").read_text())["time"]
    assert time["starts"] == 2


FAULTS = Path(__file__).parents[3] / "benchmarks/faults"


def told_by(folder: Path, script: str, *arguments: str) -> dict[str, Any]:
    """The figures that a script of the benchmark prints; what it says if it is not content with them."""
    log = folder / "log"
    code = Fork(partial(run_script, FAULTS / script, *arguments), log).wait()
    said = log.read_text(encoding="utf-8")
    assert code == 0, said
    told: dict[str, Any] = json.loads(said[said.rindex("\n{") :] if "\n{" in said else said)
    return told


@pytest.mark.matrix
def test_a_run_killed_at_random_moments_ends_with_the_same_losses_and_weights(tmp_path: Path) -> None:
    told = told_by(
        tmp_path, "kills.py", "--kills", "2", "--seed", "5", "--steps", "14", "--layouts", "shards"
    )

    assert (told["kills"], told["survived"]) == (2, 2)
    assert told["runs"] == told["bit-equal runs"] > 0
    assert told["steps lost"]["max"] <= 2 * told["checkpoint every"]


@pytest.mark.slow
def test_flipped_bits_of_a_real_checkpoint_are_noticed(tmp_path: Path) -> None:
    told = told_by(tmp_path, "flips.py", "--flips", "20", "--seed", "1")

    assert told["noticed, and the checkpoint before taken"] == 20
