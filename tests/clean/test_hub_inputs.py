"""Inputs of clean that lie on a hub."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from anadil.artifacts import hub_files, storage
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.clean.shards.shards import InputRange, plan_shards
from anadil.core.errors import RetryableError
from anadil.core.format import MIB
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import InThisProcess, clean, content, documents, page, stats, warc_record
from tests.kit.fake_hub import COMMIT, REPO, ROOT, FakeHub
from tests.kit.http_server import Reply

OWN = texts(30)


def lines(all_texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in all_texts).encode()


def table(all_texts: list[str], **beside: list[bytes]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": all_texts, **beside}), out, row_group_size=5, compression="none")
    return out.getvalue()


FILES = {
    "a.jsonl": lines(OWN[:5]),
    "b.jsonl.gz": gzip.compress(lines(OWN[5:10])),
    "c.jsonl.zst": zstandard.compress(lines(OWN[10:15])),
    "d.json": json.dumps([{"text": text} for text in OWN[15:20]]).encode(),
    "e.parquet": table(OWN[20:25]),
    "f.txt": OWN[25].encode(),
    "g.warc": b"".join(
        warc_record(page(text), url=f"https://a.az/{number}") for number, text in enumerate(OWN[26:])
    ),
}


def test_a_corpus_of_a_hub_is_that_of_a_disk(hub: FakeHub, tmp_path: Path) -> None:
    local = tmp_path / "raw"
    local.mkdir()
    for name, data in FILES.items():
        (local / name).write_bytes(data)
        hub.put(f"data/{name}", data, large=name.endswith((".parquet", ".gz")))

    hub.card = {"license": "odc-by"}
    remote = storage.expand([f"{ROOT}/data/*"], "clean.inputs")
    of_hub = content(clean(tmp_path / "hub", *remote))

    assert of_hub == content(clean(tmp_path / "disk", *storage.expand([str(local)], "clean.inputs")))
    assert len(documents(tmp_path / "hub" / "corpus")) == 30
    assert stats(tmp_path / "hub" / "corpus")["data_sets"] == [
        {"name": REPO, "commit": COMMIT, "licence": "odc-by"}
    ]
    # Nobody asks for each file whether its commit has changed.
    asked = [request.path for request in hub.requests if "/api/" in request.path]
    assert len(asked) <= 4
    assert {path.rpartition(REPO)[2].split("/")[1] for path in asked} == {"tree", "revision"}


def test_of_a_parquet_only_the_columns_that_are_read_are_fetched(hub: FakeHub) -> None:
    noise = np.random.default_rng(0)
    beside = [noise.bytes(200_000) for _ in range(50)]
    data = table([f"{number} " * 400 for number in range(50)], embedding=beside)
    uri = hub.put("a.parquet", data, large=True)

    records = list(read_records(uri, "a.parquet", "text", ReadStats()))

    text_bytes = sum(len(record.text) for record in records)
    assert len(records) == 50
    assert len(data) > 10_000_000
    assert text_bytes < hub.bytes_sent() < text_bytes + 300_000


def test_the_footer_of_a_large_table_is_what_a_plan_reads(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.shards.shards.MIN_SHARD_BYTES", MIB)
    uri = hub.put("a.parquet", table([f"{number:07}" * 30_000 for number in range(50)]), large=True)

    shards = plan_shards([uri], MIB, 1)

    assert len(shards) == 10
    assert hub.bytes_sent() < 200_000  # of ten million


def test_a_corpus_of_a_commit_is_there_already(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())
    hub.put("a.jsonl", lines(OWN))

    def run() -> MadeArtifact:
        data = {
            "language": "az",
            "clean": {"inputs": [f"{ROOT}/*.jsonl"]},
            "storage": {"root": str(tmp_path)},
        }
        return execute(STAGES["clean"], parse_recipe(json.dumps(data), "recipe", ()), {}, (), None)

    first, asked = run(), hub.bytes_sent()
    assert run().uri == first.uri
    assert hub.bytes_sent() == asked > 0
    hub.put("a.jsonl", lines(OWN[:20]))
    hub_files._known.cache_clear()
    assert run().uri != first.uri


def test_a_process_that_reads_a_file_of_a_commit_does_not_ask_for_its_version(hub: FakeHub) -> None:
    uri = hub.put("a.jsonl", lines(OWN))
    part = InputRange(uri=uri, name="a.jsonl", size=1, version=storage.input_store(uri).version(uri))
    hub_files._known.cache_clear()  # as in another process
    num_requests = len(hub.requests)

    part.check_unchanged()

    assert len(hub.requests) == num_requests > 0


def test_a_corpus_goes_on_with_the_pieces_of_a_hub_that_failed(hub: FakeHub, tmp_path: Path) -> None:
    uri = hub.put("a.jsonl", lines(OWN))
    files = storage.expand([uri], "clean.inputs")
    hub.faults += [lambda _, answer: answer, *[lambda *_: Reply(status=503)] * 20]

    with pytest.raises(RetryableError, match="did not come whole") as raised:
        clean(tmp_path, *files)
    assert raised.value.exit_code == 138
    hub.faults.clear()
    assert len(documents(clean(tmp_path, *files))) == 30
