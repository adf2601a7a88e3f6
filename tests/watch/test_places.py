"""Runs of several places: work directories, and a store that a cluster writes."""

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from anadil.artifacts import artifact, storage
from anadil.runtime.run_record import RunRecord, StepRecord
from tests.kit.watching import HOSTILE, put_record, watching


def put_remote(root: str, run: str) -> None:
    """Files of a run on a cluster: its record, and copies of its curves and texts."""
    import json

    now = time.time()
    record = RunRecord(
        id=run, recipe="az 1b", started=now - 60, updated=now, stages=("pretrain",), root=root,
        steps={"pretrain": StepRecord(stage="pretrain")},
    )  # fmt: skip
    texts = {"step": 5, "texts": [{"prompt": "Bakı", "text": "şəhəri"}]}
    files = {
        f"{run}.json": json.dumps(asdict(record)),
        f"{run}/pretrain.jsonl": '{"step": 1, "loss": 4.5}\n{"step": 2, "lo',
        f"{run}/pretrain.texts.jsonl": f"{json.dumps(texts)}\n",
    }
    for name, text in files.items():
        uri = f"{root}/runs/{name}"
        storage.store(uri).write(uri, text.encode())


def test_a_run_on_a_store_is_shown_beside_those_of_this_machine(bucket: str, tmp_path: Path) -> None:
    here, there = put_record(tmp_path, recipe="local"), "20260102-000000-9"
    put_remote(f"{bucket}/az", there)

    with watching(tmp_path, f"{bucket}/az") as pages:
        listed, text = pages.ask("/").text, pages.ask(f"/run/{there}").text
        storage.store(bucket).write(
            f"{bucket}/az/runs/{there}/pretrain.jsonl", b'{"step": 3, "loss": 0.125}\n'
        )
        later = pages.ask(f"/run/{there}").text

    assert here in listed
    assert there in listed
    assert "[1.0, 4.5]" in text
    assert "şəhəri" in text
    assert "The run is on a cluster: stop and start it there." in text
    assert "[3.0, 0.125]" in later


def test_a_store_that_does_not_answer_is_said(tmp_path: Path, bucket: str) -> None:
    with watching("s3://no-such-bucket-of-ours/az") as pages:
        answer = pages.ask("/")
    here = put_record(tmp_path)
    with watching("s3://no-such-bucket-of-ours/az", tmp_path) as pages:
        beside, run = pages.ask("/").text, pages.ask(f"/run/{here}")

    assert answer.status in (404, 503)
    assert "no-such-bucket-of-ours" in answer.text
    assert "no-such-bucket-of-ours" in beside
    assert here in beside
    assert run.status == 200


def test_the_report_is_a_page_that_runs_no_script_and_leads_back(tmp_path: Path) -> None:
    folder = tmp_path / "report" / "key"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(
        f"<!doctype html><html><body><h1>Hesabat</h1>{HOSTILE}</body></html>", encoding="utf-8"
    )
    artifact.seal(folder, kind="report", origin={})
    step = StepRecord(stage="report", status="finished", uri=str(folder))
    run = put_record(tmp_path, stages=("report",), steps={"report": step}, exit_code=0)

    with watching(tmp_path) as pages:
        answer = pages.ask(f"/run/{run}/report")
        (folder / "report.html").write_text("<body>another", encoding="utf-8")
        changed = pages.ask(f"/run/{run}/report")

    assert "Hesabat" in answer.text
    assert f'<a href="/run/{run}">' in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-same-origin; default-src 'none';")
    assert "script-src" not in policy
    assert changed.status == 503
    assert "differs from its manifest" in changed.text


@pytest.mark.parametrize("page", ["report", "trace", "plan", "compare"])
def test_a_page_that_there_is_nothing_for_says_so(tmp_path: Path, page: str) -> None:
    run = put_record(tmp_path)

    with watching(tmp_path) as pages:
        answer = pages.ask(f"/run/{run}/{page}")

    assert answer.status == (200 if page == "compare" else 404)
    assert any(words in answer.text for words in ("has no ", "was not kept"))
