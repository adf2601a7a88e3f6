import codecs
import gzip
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from anadil.artifacts import hub_files, ranged, storage
from anadil.artifacts.text_files import json_rows
from anadil.clean.read import readers
from anadil.clean.read.input_kinds import SUFFIXES, check_suffixes
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import MAX_RECORD_BYTES, READERS, read_records
from anadil.clean.shards.shards import InputRange, plan_shards
from anadil.core.errors import DataError, IntegrityError, RetryableError
from anadil.core.format import MIB
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import (
    InThisProcess,
    clean,
    content,
    documents,
    members,
    page,
    read_file,
    stats,
    warc_record,
    write_warc,
)
from tests.kit.fake_hub import COMMIT, REPO, ROOT, FakeHub
from tests.kit.http_server import Reply
from tests.kit.texts import AZERBAIJANI

Pack = Callable[[bytes], bytes]


def line(text: str, **more: object) -> bytes:
    return json.dumps({"text": text, **more}).encode() + b"\n"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".JSONL"])
def test_jsonl_is_read_compressed_or_not(tmp_path: Path, suffix: str) -> None:
    packs: dict[str, Pack] = {".gz": gzip.compress, "zst": zstandard.compress}
    pack = packs.get(suffix[-3:], bytes)
    path = tmp_path / f"xəbərlər{suffix}"
    path.write_bytes(pack(line("Salam", url="https://a.az", source="jurnal") + b"\r\n" + line("Sağ ol")))

    found, read_stats = read_file(path)

    assert [raw.text for raw in found] == ["Salam", "Sağ ol"]
    assert (found[0].url, found[0].source) == ("https://a.az", f"{path.name}:1 jurnal")
    assert (read_stats.records, read_stats.bad) == (2, 0)


def test_all_frames_of_a_zst_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(line("bir")) + zstandard.compress(line("iki")))

    assert [raw.text for raw in read_file(path)[0]] == ["bir", "iki"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b'{"text": "yar', "not JSON: Invalid control character"),
        (b'["text"]', "not a JSON object but a list"),
        (b'{"body": "a", "id": 1}', "no key 'text' (clean.text_field) among 'body', 'id'"),
        (b'{"text": ["a"]}', "'text' is not text but a list"),
        (b'{"text": "a", "text": "b"}', "not JSON: key 'text' is given twice; remove one"),
        (b"[" * 100_000, "not JSON: "),
    ],
)
def test_a_bad_line_is_counted_with_its_place(tmp_path: Path, bad: bytes, why: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("bir") + bad + b"\n" + line("iki"))

    found, read_stats = read_file(path)

    assert [raw.text for raw in found] == ["bir", "iki"]
    assert read_stats.places[0].startswith(f"a.jsonl:2: {why}")


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_jsonl_in_utf_16_is_refused_once_with_the_remedy(tmp_path: Path, codec: str, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    content = "".join(json.dumps({"text": AZERBAIJANI}, ensure_ascii=False) + "\n" for _ in range(3))
    path.write_bytes(gzip.compress(content.encode(codec)) if suffix else content.encode(codec))

    standard = codec.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(DataError, match=rf"{path.name}: is in {standard}, .*`iconv -f {standard} -t UTF-8`"):
        read_file(path)


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        (json.dumps([{"text": "a"}]), "'.[]'"),
        ("[\r\n{}]", "'.[]'"),
        (json.dumps({"text": "a"}, indent=1), "."),
    ],
)
def test_jsonl_over_several_lines_is_refused_once_with_the_remedy(
    tmp_path: Path, content: str, taken: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, newline="")
    read: list[Callable[[], object]] = [lambda: read_file(path), lambda: [*json_rows(path, "a.jsonl")]]

    for each in read:
        with pytest.raises(DataError, match=rf"a\.jsonl: .*; .* `jq -c {re.escape(taken)}`"):
            each()


@pytest.mark.parametrize("start", [b"\0\0\0\0", b"\0", codecs.BOM_UTF8, b"\n"])
def test_other_first_bytes_refuse_no_file(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(start + line("bir") + line("iki"))

    assert read_file(path)[0][-1].text == "iki"


def test_one_bad_line_of_ten_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("bir") * 6 + b"iki\n" + line("uc") * 3)
    _, read_stats = read_file(path)

    with pytest.raises(
        DataError, match=r"1 of 10 .*clean\.max_bad_records \(0\.001\)[\s\S]*a\.jsonl:7: not JSON"
    ):
        read_stats.check_bad_share(0.001)


def test_bad_records_within_the_budget_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("bir") * 6 + b"iki\n")
    _, read_stats = read_file(path)

    read_stats.check_bad_share(0.5)

    assert "1 of 7 records are unreadable (14.29%) and were skipped:\n  a.jsonl:7" in caplog.text


def test_of_many_bad_records_the_first_ten_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"bir\n" * 12)

    _, read_stats = read_file(path)

    assert read_stats.bad == 12
    assert [place.split(": ")[0] for place in read_stats.places] == [f"a.jsonl:{n}" for n in range(1, 11)]


def test_a_file_that_cannot_be_opened_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: cannot be read \(No such .*\); check the path and"):
        read_file(tmp_path / "a.jsonl")


def test_a_first_line_may_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.artifacts.line_reader.MAX_LINE_BYTES", 40)
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("x" * 40) + line("iki"))

    found, read_stats = read_file(path)

    assert [raw.text for raw in found] == ["iki"]
    assert read_stats.places == ["a.jsonl:1: line of 53 B is longer than 40 B"]


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", partial(gzip.compress, compresslevel=1)), (".zst", zstandard.compress)]
)
def test_a_decompression_bomb_needs_no_memory(tmp_path: Path, suffix: str, pack: Pack) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(line("bir") + b"0" * (5 * MAX_RECORD_BYTES) + b"\n" + line("iki")))

    tracemalloc.start()
    found, read_stats = read_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert [raw.text for raw in found] == ["bir", "iki"]
    assert read_stats.places == [f"a.jsonl{suffix}:2: line of 80.0 MiB is longer than 16.0 MiB"]
    assert peak < 4 * MAX_RECORD_BYTES


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_damaged_compressed_data_is_one_bad_record(tmp_path: Path, suffix: str, pack: Pack) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    packed = bytearray(pack(b"".join(line(f"{n} {AZERBAIJANI}") for n in range(3_000))))
    packed[len(packed) // 2 :] = b"\0" * 100
    path.write_bytes(packed)

    _, read_stats = read_file(path)

    assert read_stats.bad == 1


def test_a_text_file_in_a_legacy_encoding_is_read_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "haber.txt"
    path.write_bytes(("Dün akşam şehirde güçlü rüzgâr esti ve ağaçlar devrildi. " * 5).encode("cp1254"))

    found, read_stats = read_file(path)

    assert "akşam şehirde güçlü" in found[0].text
    assert read_stats.recoded == 1
    assert "haber.txt: not UTF-8; read as cp1254" in caplog.text


@pytest.mark.parametrize("num_lines", [3, 30])
def test_lines_in_another_encoding_than_the_rest_are_read_in_theirs(tmp_path: Path, num_lines: int) -> None:
    rest, joined = "Əvvəl şəhərdə güclü külək əsdi, sonra isə ağaclar aşdı. " * 6, "İşçi çağırdı, güldü. " * 6
    lines = [rest.encode()] * num_lines + [joined.encode("cp1254")]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    (tmp_path / "a.csv").write_bytes(b"\n".join([b"text", *(b'"%s"' % each for each in lines)]))

    found, read_stats = read_file(tmp_path / "a.txt", language="az", txt_document="guess")
    of_table, stats_of_table = read_file(tmp_path / "a.csv", language="az")

    assert "\n".join(raw.text for raw in found) == "\n".join([rest] * num_lines + [joined])
    assert (len(found), read_stats.recoded) == ((1, 0) if num_lines == 3 else (31, 1))
    assert [raw.text for raw in of_table] == [rest] * num_lines
    assert stats_of_table.places == [f"a.csv:{num_lines + 2}: not UTF-8"]


def test_a_line_with_one_broken_letter_is_no_other_encoding(tmp_path: Path) -> None:
    lines = ["Əvvəl şəhərdə güclü külək əsdi, sonra isə ağaclar aşdı.".encode()] * 40
    (tmp_path / "a.txt").write_bytes(b"\n".join([*lines, lines[0].replace("ğ".encode(), b"\xc4")]))

    found, read_stats = read_file(tmp_path / "a.txt", language="az", txt_document="line")

    assert found[-1].text == lines[0].decode().replace("ğ", "\ufffd")
    assert read_stats.recoded == 0


def test_a_text_file_that_is_no_document_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 100)
    (tmp_path / "a.txt").write_text("x" * 101)

    records, read_stats = read_file(tmp_path / "a.txt")

    assert (records, read_stats.bad) == ([], 1)
    assert "say what a document of it is in clean.txt_document, or give it as .jsonl" in read_stats.places[0]


def test_every_known_suffix_has_a_reader() -> None:
    assert tuple(READERS) == SUFFIXES


def test_an_unknown_suffix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        DataError, match=r"clean\.inputs: 1 file .* b\.docx; known are \.jsonl .*; unpack .*\.warc\.wet\.gz"
    ):
        check_suffixes(("a.jsonl", "b.docx"), "clean.inputs")


def test_a_null_text_is_an_empty_document_that_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line("bir") + b'{"text": null, "id": 7}\n')

    found, read_stats = read_file(tmp_path / "a.jsonl")

    assert [raw.text for raw in found] == ["bir", ""]
    assert (read_stats.null_texts, read_stats.bad) == (1, 0)


def test_a_warc_gives_its_web_pages_only(tmp_path: Path) -> None:
    body = page(AZERBAIJANI)
    ftp = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 100000\r\n\r\n"
    records = [
        warc_record(body, url="https://a.az/1"),
        warc_record(b"{}", kind="application/json"),
        warc_record(body, status="404 Not Found"),
        ftp + b"FTP\n" * 25_000 + b"\r\n\r\n",
        warc_record(body, url="https://a.az/2", kind="text/html; charset=utf-8"),
    ]

    found, read_stats = read_file(write_warc(tmp_path / "a.warc.gz", records))

    assert [(raw.url, raw.html) for raw in found] == [("https://a.az/1", body), ("https://a.az/2", body)]
    assert read_stats.skipped == 3


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_a_torn_last_record_is_left_out_and_excused(tmp_path: Path, suffix: str) -> None:
    wholes = [warc_record(page(AZERBAIJANI), url=f"https://a.az/{n}") for n in range(4)]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"".join(members(wholes) if suffix == ".warc.gz" else wholes)[:-200])

    found, read_stats = read_file(path)
    read_stats.check_bad_share(0.001)

    assert len(found) == 3
    assert (read_stats.bad, read_stats.excused) == (1, 1)


def test_reading_goes_on_after_a_garbled_member(tmp_path: Path) -> None:
    packed = members(warc_record(page(AZERBAIJANI), url=f"https://a.az/{n}") for n in range(5))
    garbled = bytearray(packed[2])
    garbled[40:80] = bytes(value ^ 0xFF for value in garbled[40:80])
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join([*packed[:2], garbled, *packed[3:]]))

    found, read_stats = read_file(path)

    assert [raw.url[-1] for raw in found] == ["0", "1", "3", "4"]
    assert read_stats.bad == 1


@pytest.mark.parametrize("content", [b"Salam, d\xc3\xbcnya\n" * 100, b""])
def test_a_file_without_warc_records_is_bad(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(content)

    _, read_stats = read_file(path)

    assert read_stats.places[0].startswith("a.warc:0: ")
    assert read_stats.excused == 0


def test_a_compressed_page_that_unpacks_to_more_than_the_limit_is_left_unread(tmp_path: Path) -> None:
    bomb = gzip.compress(b"<p>" + b"0" * (4 * MAX_RECORD_BYTES))
    record = warc_record(bomb, extra="Content-Encoding: gzip\r\n")

    found, read_stats = read_file(write_warc(tmp_path / "a.warc.gz", [record]))

    assert [(raw.too_large, raw.html) for raw in found] == [(True, b"")]
    assert read_stats.bad == 0


def test_any_damage_to_a_warc_leaves_no_traceback(tmp_path: Path) -> None:
    good = b"".join(members(warc_record(page(AZERBAIJANI), url=f"https://a.az/{n}") for n in range(4)))
    path = tmp_path / "a.warc.gz"

    for position in range(0, len(good), 23):
        damaged = bytearray(good)
        damaged[position : position + 3] = b"\x00\xff\x7f"
        path.write_bytes(damaged)
        found, read_stats = read_file(path)

        assert len(found) + read_stats.bad >= 3


def test_every_kind_of_file_is_read_out_of_a_bucket_as_from_a_disk(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "PIECE_BYTES", 1_000)
    monkeypatch.setattr(storage, "local_copy", None)  # nothing is fetched whole
    lines = b"".join(b'{"text": "%d setir"}\n' % number for number in range(200))
    pages = [warc_record(page("Bir cümlə."), url=f"https://a.az/{number}") for number in range(5)]
    kinds = {"a.jsonl": lines, "a.jsonl.gz": gzip.compress(lines), "a.jsonl.zst": zstandard.compress(lines),
        "a.txt": b"bir " * 900, "a.html": page("Bir."), "a.warc": b"".join(pages),
        "a.warc.gz": b"".join(members(pages))}  # fmt: skip  # fmt: skip
    for name, data in kinds.items():
        (tmp_path / name).write_bytes(data)
    pq.write_table(pa.table({"text": ["bir"] * 3_000}), tmp_path / "a.parquet", row_group_size=500)

    for path in sorted(tmp_path.iterdir()):
        uri = f"{bucket}/{path.name}"
        storage.store(uri).write(uri, path.read_bytes())
        here, there = ReadStats(), ReadStats()
        expected = list(read_records(str(path), path.name, "text", here))
        assert expected
        assert list(read_records(uri, path.name, "text", there)) == expected
        assert there == here


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


@pytest.mark.parametrize(("name", "start"), [*((name, 0) for name in FILES), ("a.jsonl", 50), ("g.warc", 50)])
def test_bytes_of_a_mirror_that_are_not_those_of_the_commit_are_refused_however_a_file_is_read(
    hub: FakeHub, name: str, start: int
) -> None:
    data = FILES[name]
    uri = hub.put(name, data)
    version = storage.input_store(uri).version(uri)
    # A time in the head of gzip, the name of the program that wrote a table, a letter of a text.
    other = data.replace(b"parquet-cpp", b"parquet-cqq").replace(b"Copyright", b"Copyrighs")
    at = 4 if name.endswith(".gz") else len(data) // 2
    hub.files[name] = other if other != data else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    with pytest.raises(IntegrityError, match=r"is not the file that the commit names"):
        list(read_records(uri, name, "text", ReadStats(), start=start, version=version))


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
        data = {"language": "az", "clean": {"inputs": [f"{ROOT}/*.jsonl"]}, "storage": {"root": str(tmp_path)}}  # fmt: skip
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
