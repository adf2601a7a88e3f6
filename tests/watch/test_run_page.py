"""The page of a run, while it runs and after."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest

from anadil.core.errors import DataError
from anadil.core.log import JsonFormatter
from anadil.runtime.metric_table import spec_of
from anadil.runtime.run_record import StepRecord, recipe_name, this_process
from anadil.watch.pages.run import _facts
from anadil.watch.watched import KINDS, Watched, run_state
from tests.kit.watching import HOSTILE, STAGES, Pages, put_live, put_record, put_training, watching


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def pages(root: Path) -> Iterator[Pages]:
    with watching(root) as pages:
        yield pages


def test_a_run_in_progress_shows_flow_curves_texts_and_warnings(root: Path, pages: Pages) -> None:
    run = put_live(root)
    put_training(root, run)

    text = pages.ask(f"/run/{run}").text

    assert [
        text.count(f'<li class="{word}"><h2>') for word in ("finished", "reused", "running", "waiting")
    ] == [1] * 4
    assert "pre-training: 30 of 120" in text, "which loop of the step"
    assert "1 min 30 s" in text, "time left"
    assert '<dd class="big">30 min</dd><dd class="before">of training; cost USD 12.00</dd>' in text
    for title in ("Loss", "Held-out text", "Learning rate", "Throughput"):
        assert f"<figcaption>{title}</figcaption>" in text
    assert "mətn 10" in text
    assert "a remedy" in text
    assert "Stop this run" in text
    assert f"anadil run {root}/runs/{run}/recipe.json --work {root}" in text


def test_text_of_documents_and_logs_stays_text(root: Path, pages: Pages) -> None:
    run = put_live(root, recipe=HOSTILE, message=HOSTILE)
    put_training(root, run)

    for path in ("/", f"/run/{run}"):
        text = pages.ask(path).text
        assert "alert(1)" in text
        assert text.count("<script") == 1, "our own"
        assert "<img" not in text


def test_what_has_not_changed_is_not_sent_again(root: Path, pages: Pages) -> None:
    run = put_record(
        root,
        exit_code=0,
        steps={"clean": StepRecord(stage="clean", status="finished")},
        started=0,
        updated=60,
    )
    first = pages.ask(f"/run/{run}")

    again = pages.ask(f"/run/{run}", If_None_Match=first.headers["ETag"])
    put_record(root, exit_code=3, started=0, updated=61)
    changed = pages.ask(f"/run/{run}", If_None_Match=first.headers["ETag"])

    assert (again.status, again.text) == (304, "")
    assert changed.status == 200
    assert float(first.headers["X-Wait-S"]) >= 0


def test_a_curve_grows_and_goes_back(root: Path, pages: Pages) -> None:
    run = put_live(root)
    work = put_training(root, run)
    before = pages.ask(f"/run/{run}").text

    with (work / "training.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 31, "loss": 1.25}\nnothing\n{"step": 32, "lo')
    grown = pages.ask(f"/run/{run}").text
    put_training_again = json.dumps({"step": 1, "loss": 7.5}) + "\n"
    (work / "new").write_text(put_training_again, encoding="utf-8")
    (work / "new").replace(work / "training.jsonl")
    back = pages.ask(f"/run/{run}").text

    assert "[31.0, 1.25]" not in before
    assert "[31.0, 1.25]" in grown.replace("&#34;", '"')
    assert "1 lines of its log are damaged and not drawn." in grown
    assert "[31.0, 1.25]" not in back
    assert "[1.0, 7.5]" in back


def test_charts_show_what_pretraining_logs() -> None:
    names = {name for kind in KINDS["pretrain"] for name in kind.names}

    assert all(spec_of(name + "az" if name.endswith("/") else name) for name in names)


def test_steps_are_chosen_by_the_address(root: Path, pages: Pages) -> None:
    run = put_live(root)
    put_training(root, run)

    text = pages.ask(f"/run/{run}?from=10&to=12").text

    assert "[9.0, " not in text
    assert "[10.0, " in text
    assert "[13.0, " not in text
    assert pages.ask(f"/run/{run}?from=nan&to=%00").status == 200


def test_a_run_without_tracking_or_of_an_earlier_release_has_a_page_too(root: Path, pages: Pages) -> None:
    run = put_record(root, stages=(), process="")
    (root / "runs" / "20250101-000000-1.json").write_text('{"id": 1', encoding="utf-8")

    assert pages.ask(f"/run/{run}").status == 200
    assert pages.ask("/").status == 200
    damaged = pages.ask("/run/20250101-000000-1")
    assert damaged.status == 404
    assert "not the record of a run" in damaged.text


def test_a_run_that_is_removed_while_it_is_watched_is_said(root: Path, pages: Pages) -> None:
    run = put_live(root)
    put_training(root, run)
    assert pages.ask(f"/run/{run}").status == 200

    shutil.rmtree(root / "model")
    without_model = pages.ask(f"/run/{run}")
    shutil.rmtree(root / "runs")
    gone = pages.ask(f"/run/{run}")

    assert without_model.status == 200
    assert gone.status == 404
    assert f"{run}: no such run in {root}; it may have been removed" in gone.text


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (DataError("a.jsonl: no such file"), 404, "a.jsonl: no such file"),
        (PermissionError(13, "Permission denied"), 503, "Permission denied"),
        (ModuleNotFoundError("x", name="duckdb"), 503, "needs duckdb, which is not installed"),
    ],
)
def test_an_error_of_a_page_is_said_on_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    monkeypatch.setattr(Watched, "places", Mock(side_effect=error))
    with watching(root) as pages:
        answer = pages.ask("/")

    assert answer.status == status
    assert said in answer.text


def test_the_page_stops_a_run(root: Path, pages: Pages) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        host, _, _ = this_process().split(" ")
        from anadil.core.processes import start_of

        run = put_live(root, process=f"{host} {child.pid} {start_of(child.pid)}")

        asked = pages.ask(f"/run/{run}/stop").text
        assert "Let it run" in asked
        assert child.poll() is None
        answer = pages.ask(f"/run/{run}/stop", "")

        assert (answer.status, answer.headers["Location"]) == (303, f"/run/{run}")
        assert child.wait(10) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()
    ended = pages.ask(f"/run/{run}/stop", "")
    assert ended.status == 404
    assert "has ended already (stopped)" in ended.text


def test_a_run_of_another_machine_is_not_stopped_here(root: Path, pages: Pages) -> None:
    run = put_live(root, process=f"elsewhere {os.getpid()} 1")

    answer = pages.ask(f"/run/{run}/stop", "")

    assert answer.status == 503
    assert "runs on another machine; stop it there" in answer.text
    assert "Stop this run" not in pages.ask(f"/run/{run}").text


def test_earlier_runs_are_drawn_where_they_can_be_compared(root: Path, pages: Pages) -> None:
    now = time.time()
    for number in (0, 1, 2, 3):
        folder = root / "model" / f"key{number}"
        folder.mkdir(parents=True)
        (folder / "training.jsonl").write_text(
            f'{{"step": 1, "loss": {number}}}\n{{"step": 2, "loss": {number}.5}}\n'
        )
        clean = StepRecord(stage="clean", status="finished", uri=f"{root}/corpus/{min(number, 1)}")
        step = StepRecord(stage="pretrain", status="finished", uri=str(folder))
        put_record(
            root, f"2026010{number}-000000-1", started=now + number, stages=STAGES, steps={"clean": clean, "pretrain": step}
        )  # fmt: skip

    text = pages.ask("/run/20260102-000000-1").text

    assert "Loss, this run and earlier ones" in text
    assert "this run" in text
    assert "20260101-000000-1" in text
    assert "20260103-000000-1" not in text, "a later one"
    assert "20260100-000000-1" not in text, "measured on other text"
    assert "Left out, since other text measured them: 1." in text


def test_a_run_that_is_asked_to_stop_says_so(root: Path) -> None:
    run = put_live(root)
    watched = Watched(roots=(str(root),), token="", host="", stopping={run: time.time()})

    facts = _facts(watched, watched.run(run), run_state(watched, run))

    assert facts[0][1] == "stopping"
    assert "ends once pretrain has saved" in facts[0][2]


def test_the_end_of_a_run_follows_from_an_earlier_one(root: Path, pages: Pages) -> None:
    steps = {name: StepRecord(stage=name, status="finished", seconds=600) for name in STAGES}
    put_record(root, "20250101-000000-1", stages=STAGES, steps=steps, exit_code=0, started=0, updated=2_400)
    run = put_live(root)

    text = pages.ask(f"/run/{run}").text

    assert "<dt>End</dt>" in text
    assert re.search(r"in (19|20) min.*, by the run 20250101-000000-1", text), "pretrain and report"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"process": f"{this_process().rpartition(' ')[0]} 1"}, "process ended at about"),
        ({"exit_code": 3, "message": "data: a.jsonl is wrong"}, "Correct what the error above names first"),
        ({"exit_code": 4, "message": "no room"}, "Give the machine what the error above names first"),
        ({"exit_code": 6, "message": "worse"}, "the same recipe gives the same model"),
        ({"exit_code": 143}, "Go on"),
        ({"exit_code": 7}, "The budget is used up"),
    ],
)
def test_an_ended_run_says_why_and_what_to_do_first(
    root: Path, pages: Pages, fields: dict[str, Any], said: str
) -> None:
    text = pages.ask(f"/run/{put_live(root, **fields)}").text

    assert said in text
    assert ("ommand fails again" in text) == (fields.get("exit_code") in (3, 4))


def test_runs_have_names_and_tags_by_which_the_list_is_filtered(root: Path, pages: Pages) -> None:
    runs = [put_record(root, f"2026010{number}-000000-1") for number in (1, 2)]

    done = pages.ask(f"/run/{runs[0]}/note", f"name=%3Cb%3EAz&tags=baseline,{quote('ə')}")

    assert done.status == 303
    listed = pages.ask("/?filter=baseline%20%C6%8F%20smoke").text
    assert runs[0] in listed
    assert runs[1] not in listed
    assert "&lt;b&gt;Az" in listed
    assert "<h1>&lt;b&gt;Az</h1>" in pages.ask(f"/run/{runs[0]}").text
    pages.ask(f"/run/{runs[0]}/note", "name=&tags=")
    assert (root / "runs/.notes.json").read_text() == "{}"


def test_messages_of_libraries_are_no_warnings(root: Path, pages: Pages) -> None:
    record = logging.LogRecord("transformers.x", logging.WARNING, "", 1, "use `dtype`", None, None)
    run = put_live(root)
    (root / "runs" / run).mkdir()
    (root / "runs" / run / "log.jsonl").write_text(JsonFormatter("finetune", 0).format(record) + "\n")

    text = pages.ask(f"/run/{run}").text

    assert "1 messages of libraries" in text
    assert 'class="warning"' not in text


def test_axes_become_logarithmic_and_loss_is_smoothed(root: Path, pages: Pages) -> None:
    run = put_live(root)
    work = put_training(root, run)
    lines = ({"step": step, "loss": 4.5 / step, "loss/az": 4.5, "loss/en": -1.0} for step in range(1, 61))
    (work / "training.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    plain, log = (pages.ask(f"/run/{run}{query}").text for query in ("", "?log=1"))
    (work / "training.jsonl").write_text(
        "".join(f'{{"step": {step}, "loss": {4.5 / step}}}\n' for step in range(1, 61))
    )
    positive = pages.ask(f"/run/{run}?log=1").text

    assert plain.count(" faint") == log.count(" faint") == 3
    assert ">0.1</text>" in positive
    assert ">0.1</text>" not in log, "a value below zero has no logarithm"


def test_a_run_that_goes_on_has_the_name_of_the_one_before(root: Path) -> None:
    run = put_record(root, recipe="smoke")

    assert recipe_name(str(root / "runs" / run / "recipe.json")) == "smoke"
    assert recipe_name(str(root / "runs" / "another" / "recipe.json")) == "recipe"
