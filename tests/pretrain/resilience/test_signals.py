"""SIGTERM at every place of a run: it ends with 143, and resumes to the same losses."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anadil.artifacts.uri import MANIFEST
from anadil.core.errors import Stopped
from tests.kit.marks import matrix, slow
from tests.kit.pretraining import losses, make_corpus, make_model, make_recipe, make_tokenizer_artifact
from tests.kit.ranks import Fork, module_in_ranks, run_module

PATIENCE_S = 180
WORDS = "stopped by SIGTERM; run the same command again to resume"
PLACES = {
    "load": r"running: nothing to reuse",
    "data": r"documents, .* sequences of",
    "first step": r"phase 1 trains",
    "step": r"step=2 ",
    "save": r"step=3 ",
    "border": r"phase 2 trains",
    "later step": r"step=8 ",
    "last step": r"step=12 ",
}
"""What a run says before it does something, by what it does then."""
REPEATED = ("data", "first step", "step", "border", "later step", "last step")
"""Places much like another."""
TWO_PHASES = [{"trains": "embeddings", "steps": 2, "lr": 0.01}, {"trains": "all", "steps": 18, "lr": 0.005}]
SLOW = json.dumps({"sleep": {"step": 4, "until": 20, "seconds": 0.7}})
"""Steps take long enough for a signal to arrive in one; the other rank waits in a collective then. With .3 s, a run on busy
cores was over before torchrun had heard it."""


class Trained:
    """A folder with the inputs of a run, and what it did when nothing stopped it."""

    def __init__(self, folder: Path, processes: int = 1, **pretrain: Any) -> None:
        make_corpus(folder / "corpus")
        make_tokenizer_artifact(folder / "tokenizer")
        recipe = make_recipe(make_model(folder / "model"), **pretrain).model_dump(mode="json")
        recipe["tracking"]["uri"] = "off"
        recipe["cluster"]["processes_per_node"] = processes
        (folder / "recipe.yaml").write_text(json.dumps(recipe))
        self.folder = folder
        self.processes = processes
        self.resumed("whole")
        self.losses = losses(folder / "whole")

    def words(self, name: str) -> list[str]:
        """Arguments of the stage."""
        given = {word: str(self.folder / word) for word in ("corpus", "tokenizer")}
        given |= {"recipe": str(self.folder / "recipe.yaml"), "out": str(self.folder / name)}
        return [word for key, value in given.items() for word in (f"--{key}", value)]

    def start(self, name: str, **environment: str) -> Fork:
        """A run of the stage in a process of its own."""
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        work = partial(run_module, "tests.kit.fault_injection", *self.words(name))
        return Fork(work, log, environment | {"ANADIL_LOG": "json"})

    def resumed(self, name: str) -> str:
        """Run it to its end; what it says."""
        run = self.ranks(name)
        codes, said = {each.wait(PATIENCE_S) for each in run}, run[0].log.read_text()
        assert codes == {0}, said
        return said

    def ranks(self, name: str, **environment: str) -> list[Fork]:
        """A run of the stage in as many processes as there are ranks, without torchrun's interpreters."""
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        words, variables = self.words(name), environment | {"ANADIL_LOG": "json"}
        return module_in_ranks(self.processes, log, "tests.kit.fault_injection", *words, **variables)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trained once for all tests of this file."""
    return Trained(tmp_path_factory.mktemp("signals"))


def until(process: Fork, pattern: str) -> None:
    """Return when what the process says matches."""
    while process.poll() is None:
        if process.log.exists() and re.search(pattern, process.log.read_text()):
            return
        time.sleep(0.01)
    pytest.fail(f"never said {pattern!r}: {process.log.read_text()}")


def finished(process: Fork) -> tuple[int, str]:
    """Exit code, and what it has said."""
    code = process.wait(PATIENCE_S)
    return code, process.log.read_text()


def errors(said: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [line for line in lines if line["level"] == "error"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [matrix(each) if each in REPEATED else each for each in PLACES])
def test_sigterm_ends_with_143_and_the_run_goes_on_as_if_there_had_been_none(
    trained: Trained, place: str
) -> None:
    name = place.replace(" ", "-")
    process = trained.start(name)
    until(process, PLACES[place])

    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = finished(process)
    took = time.monotonic() - sent
    trained.resumed(name)

    print(f"{place}: {took:.2f} s from SIGTERM to the end")
    assert code == Stopped.exit_code, said
    assert [line["msg"] for line in errors(said)] == [WORDS]
    assert took < 60
    assert losses(trained.folder / name) == trained.losses


@pytest.mark.parametrize(("section", "step"), [slow("optimizer", 5), matrix("save", 6)])
def test_sigterm_in_the_middle_of_a_section_waits_for_the_next_safe_point(
    trained: Trained, section: str, step: int
) -> None:
    fault, name = {"terminate": {"step": step, "section": section}}, f"inside-{section}"

    code, said = finished(trained.start(name, ANADIL_INJECT=json.dumps(fault)))
    trained.resumed(name)

    assert code == Stopped.exit_code, said
    assert f"terminate in {section} of step {step} on rank 0" in said
    assert losses(trained.folder / name) == trained.losses


@pytest.mark.slow
def test_sigterm_before_python_has_loaded_anything_ends_the_process(trained: Trained) -> None:
    process = subprocess.Popen([sys.executable, "-m", "anadil.pretrain", *trained.words("import")])
    time.sleep(0.1)

    process.send_signal(signal.SIGTERM)
    code = process.wait(PATIENCE_S)

    # The signal's own default, which a shell and a container runtime tell as 143 as well.
    assert code in (Stopped.exit_code, -signal.SIGTERM)


@pytest.mark.slow
def test_a_second_sigterm_does_not_wait_and_spoils_nothing(trained: Trained) -> None:
    # Steps 3 and 4 end in a checkpoint; step 5 is still to be saved while step 6 takes longer than we wait.
    process = trained.start("twice", ANADIL_INJECT=json.dumps({"sleep": {"step": 6, "seconds": 1_000}}))
    until(process, r"step=5 ")

    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    waits = process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, said = finished(process)
    resumed = trained.resumed("twice")

    assert waits
    assert code == Stopped.exit_code, said
    assert [line["msg"] for line in errors(said)] == [WORDS]
    assert "resuming after step 4" in resumed
    assert losses(trained.folder / "twice") == trained.losses


class Ended(NamedTuple):
    """How a run of two ranks ended after a signal."""

    codes: set[int]
    said: str
    step: int
    """Of the newest sealed checkpoint."""
    logged: int
    """The last step in the journal."""


def stopped(trained: Trained, after: int, *, one_rank: bool) -> Ended:
    """Start or resume the run `two`, and send SIGTERM to torchrun, or without one to rank 1 alone, after a step."""
    run = trained.ranks("two", ANADIL_INJECT=SLOW) if one_rank else [trained.start("two", ANADIL_INJECT=SLOW)]
    until(run[-1], f"step={after} ")
    run[-1].send_signal(signal.SIGTERM)
    codes, said = {each.wait(PATIENCE_S) for each in run}, run[0].log.read_text()
    work = trained.folder / "two.work"
    sealed = (work / "checkpoints").glob(f"step-????????/{MANIFEST}")
    newest = max(int(path.parent.name.removeprefix("step-")) for path in sealed)
    return Ended(codes, said, newest, max(losses(work)))


@pytest.mark.matrix
def test_two_ranks_stop_at_one_step_whoever_gets_sigterm_and_go_on_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    # Each rank writes its half of the model, and no checkpoint is due but at the phases' ends.
    settings: dict[str, Any] = {"phases": TWO_PHASES, "checkpoint_every": 100, "parallelism": {"shard": 2}}
    trained = Trained(tmp_path, processes=2, **settings)

    by_torchrun = stopped(trained, 5, one_rank=False)
    by_one = stopped(trained, 12, one_rank=True)
    told = trained.resumed("two")

    for ended, after in ((by_torchrun, 5), (by_one, 12)):
        assert ended.codes == {Stopped.exit_code}, ended.said
        # Neither rank has lost the other.
        ends = [(line["rank"], line["msg"]) for line in errors(ended.said)]
        assert sorted(ends) == [(0, WORDS), (1, WORDS)], ended.said
        assert after < ended.step == ended.logged < 20
    assert f"resuming after step {by_torchrun.step}" in by_one.said
    assert f"resuming after step {by_one.step}" in told
    assert losses(tmp_path / "two") == trained.losses
