"""The whole pipeline as a user runs it: in a process of its own, by its command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from anadil.artifacts.base_model import LLAMA_3_SPECIALS
from anadil.recipe.load import load_recipe
from anadil.runtime.flow import flow_of
from tests.kit.pretraining import make_model
from tests.kit.ranks import Fork, run_module

# The demo of .ci/run is a whole pipeline, and tests/e2e/test_own.py another one.
pytestmark = pytest.mark.matrix

START = "start"
"""Folder of the base model below that of a run."""
SMALL = (
    "clean.inputs=['builtin:az/prose.jsonl', 'builtin:az/turkish.jsonl']",
    "tokenizer.vocab_sizes=[1024]",
    "pretrain.phases=[{trains: embeddings, steps: 3, lr: 0.0032}, {trains: all, steps: 9, lr: 0.0024}]",
    "pretrain.checkpoint_every=5",
    "pretrain.log_every=1",
    "finetune.epochs=0.1",
    "finetune.mix={}",
    "evaluate.max_questions=2",
    "evaluate.max_new_tokens=8",
    "tracking.uri=off",
)
"""The smoke recipe for a base model and texts that take no time."""
STAGES_RUN = [step.stage for step in flow_of(load_recipe("smoke", SMALL))]
DRILL = {
    "ANADIL_INJECT": json.dumps({"sleep": {"step": 6, "until": 12, "seconds": 2}}),
    "PYTHONPATH": str(Path(__file__).parents[1] / "kit/drill"),
}
"""The steps after the first checkpoint take long enough for a signal to come amid them."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the small run is finished, its base model beside it."""
    folder = tmp_path_factory.mktemp("small")
    make_model(folder / START, specials=LLAMA_3_SPECIALS)
    finished(start(tmp_path_factory.mktemp("log"), "--work", str(folder), *settings(folder)))
    return folder


def test_every_stage_leaves_a_sealed_artifact_that_a_second_run_reuses_quickly(work: Path) -> None:
    before = os.times()
    done = anadil("run", "--work", str(work), *settings(work), "-o", "json")
    after = os.times()

    artifacts = json.loads(done.stdout)
    assert list(artifacts) == [stage.writes for stage in STAGES_RUN]
    assert Path(artifacts["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert all((Path(artifacts[word]) / "manifest.json").is_file() for word in list(artifacts)[:-1])
    assert done.stderr.count("reused") == len(STAGES_RUN)
    # Seconds of a CPU, since other tests run beside it: 5 on an idle machine, 11 on shared cores.
    assert after.children_user - before.children_user < 30


def test_a_changed_key_runs_only_what_depends_on_it_and_says_why(work: Path, tmp_path: Path) -> None:
    said = finished(start(tmp_path, "--work", str(work), *settings(work), "--set", "report.title=Sınaq"))

    assert said.count("reused") == len(STAGES_RUN) - 1
    assert 'report: running because recipe report.title null -> "Sınaq"' in said


def test_a_killed_run_resumes_with_the_same_losses_and_saves_at_sigterm(work: Path, tmp_path: Path) -> None:
    whole = losses(next((work / "model").glob("*/training.jsonl")))
    for word in ("corpus", "tokenizer"):
        shutil.copytree(work / word, tmp_path / word, copy_function=os.link)
    words = ("--work", str(tmp_path), "--until", "pretrain", *settings(work))
    run = start(tmp_path, *words, **DRILL)
    wait_for(run, lambda: checkpoints(tmp_path))
    os.killpg(run.pid, signal.SIGKILL)
    killed = run.wait()
    sealed = list(tmp_path.glob("model/*/manifest.json"))
    first, left = max(checkpoints(tmp_path)), max(journal(tmp_path))

    run = start(tmp_path, *words, **DRILL)
    # The killed run may have left lines of later steps: only one behind them shows that this one trains.
    wait_for(run, lambda: "resuming after step" in said_by(run) and max(journal(tmp_path)) > max(first, left))
    run.send_signal(signal.SIGTERM)
    code = run.wait()
    said, told, last = run.log.read_text(encoding="utf-8"), journal(tmp_path), max(checkpoints(tmp_path))
    ended = finished(start(tmp_path, *words))

    assert (killed, sealed) == (-signal.SIGKILL, [])
    assert code == 143
    assert said.count("reused") == 3  # clean, tokenizer and encode
    assert f"resuming after step {first}" in said
    assert "Traceback" not in said
    assert "failed" not in said
    assert first < last == max(told) < len(whole)
    assert told == {step: loss for step, loss in whole.items() if step in told}
    assert f"resuming after step {last}" in ended
    assert losses(next(tmp_path.glob("model/*/training.jsonl"))) == whole


def test_without_chats_the_run_ends_in_a_report_on_two_models(work: Path, tmp_path: Path) -> None:
    words = ("--work", str(work), *settings(work), "--set", "finetune.inputs=[]", "-o", "json")
    said = finished(start(tmp_path, *words))

    artifacts, _ = json.JSONDecoder().raw_decode(said, said.index("\n{") + 1)
    assert "adapter" not in artifacts
    scores = json.loads((Path(artifacts["scores"]) / "scores.json").read_text(encoding="utf-8"))
    assert list(scores["candidates"]) == ["base", "adapted"]
    assert 'id="finetuning"' not in Path(artifacts["report"]).read_text(encoding="utf-8")


def start(folder: Path, *words: str, **environment: str) -> Fork:
    """`anadil run` in a process of its own, which leads a group and need not import torch again; its log is in the folder."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    return Fork(partial(run_in_group, *words), log, environment)


def said_by(run: Fork) -> str:
    return run.log.read_text(encoding="utf-8") if run.log.exists() else ""


def run_in_group(*words: str) -> None:
    os.setsid()
    run_module("anadil", "run", *words)


def finished(run: Fork) -> str:
    code, said = run.wait(), run.log.read_text(encoding="utf-8")
    assert code == 0, said
    return said


def wait_for(run: Fork, comes: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not comes():
        assert run.poll() is None, run.log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline
        time.sleep(0.01)


def checkpoints(work: Path) -> list[int]:
    found = work.glob("model/*.work/checkpoints/step-*[0-9]")
    return [int(path.name.removeprefix("step-")) for path in found]


def journal(work: Path) -> dict[int, float]:
    return losses(next(work.glob("model/*.work/training.jsonl")))


def anadil(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "anadil", *arguments], capture_output=True, text=True, check=False, timeout=600
    )


def settings(work: Path) -> list[str]:
    small = (f"base.model={work / START}", *SMALL)
    return [word for setting in small for word in ("--set", setting)]


def losses(journal: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert len({line["step"] for line in lines}) == len(lines)
    return {line["step"]: line["loss"] for line in lines if line["step"]}
