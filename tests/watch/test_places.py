"""Runs of several places: work directories, and a store that a cluster writes."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact, s3, storage
from anadil.runtime.run_record import RunRecord, StepRecord
from anadil.text.corpus import Document, write_documents
from tests.kit.watched_corpus import make_watched_corpus, seal_corpus
from tests.kit.watched_model import put_trained
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


RUN, TRAINED = "20260101-120000-1", "20260101-120000-3"


def put_on_store(root: Path, place: str) -> None:
    """Make a corpus of a hundred files and a trained model on this machine, and copy them to a store."""
    corpus = make_watched_corpus(root / "corpus/0a1b", 20_000)
    texts = [
        Document(id=f"{number:032x}", text=f"Söz {number} " * 9, source=f"a:{number}", url="", lang="az")
        for number in range(0, 2_000, 2)
    ]
    write_documents(corpus, "train", texts)
    write_documents(corpus, "heldout", [])
    seal_corpus(corpus)
    step = StepRecord(stage="clean", status="finished", uri=f"{place}/corpus/0a1b")
    put_record(root, RUN, root=place, steps={"clean": step}, stages=("clean",))
    put_trained(root, "Salam", place)
    for path in root.rglob("*"):
        if path.is_file():
            uri = f"{place}/{path.relative_to(root)}"
            storage.store(uri).write(uri, path.read_bytes())


@contextmanager
def requests() -> Iterator[list[str]]:
    """The names of the calls of S3 that are made in the block."""
    names: list[str] = []
    events = s3.s3_client().meta.events

    def note(model: Any, **_: object) -> None:
        names.append(model.name)

    events.register("after-call.s3", note)
    yield names
    events.unregister("after-call.s3", note)


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
    assert "damaged" not in text
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


def test_every_page_of_data_reads_a_store_by_range(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = f"{bucket}/az", f"/run/{RUN}/data/corpus"
    monkeypatch.setattr("anadil.text.corpus.MAX_PART_BYTES", 2_000)
    put_on_store(tmp_path, place)
    with watching(place) as pages, requests() as sent:
        first = pages.ask(data)
        begun = len(sent)
        again = pages.ask(data)
        listed = sent[begun:]
        kept = re.findall(r"/document/0-0-(\d*[02468])\"", pages.ask(f"{data}?reason=kept").text)[-1]
        begun = len(sent)
        document = pages.ask(f"{data}/document/0-0-{kept}")
        read = sent[begun:]
        others = [
            pages.ask(path)
            for path in (
                f"{data}?statistic=words&order=largest&by=host", f"/run/{TRAINED}/answers",
            )
        ]  # fmt: skip

    assert [each.status for each in (first, again, document, *others)] == [200] * 5
    # Some columns of the 50 documents that are listed, of a file of 2 MB.
    assert listed.count("HeadObject") == 0
    assert len(listed) <= 9
    # One of a hundred files, known by the first ids of some.
    assert f"Söz {kept}" in document.text
    assert len(read) <= 20
    assert "20,000 documents have a value" in others[0].text
    assert "Salam" in others[1].text
