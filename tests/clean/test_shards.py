import gzip
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import ranged, sealed_dir, storage
from anadil.artifacts.uri import MANIFEST
from anadil.clean.filters.judge_record import ExtractedDocument, Settings, prepare_record
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.clean.shards.shards import Shard, correct_starts, names, plan_shards
from anadil.clean.write.corpus_parts import _renumbered_line, text_of
from anadil.core.errors import IntegrityError, PreflightError
from anadil.launch.clean import CLUSTER_ENGINES
from anadil.launch.kubernetes.clean_pods import IndexedJob
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor
from anadil.runtime.executors.engines import executor_of
from anadil.runtime.executors.processes import Processes
from anadil.runtime.job import Job
from anadil.text import corpus as corpus_module
from anadil.text.corpus import Document, line_of
from tests.kit.clean_inputs import texts, write_inputs
from tests.kit.clean_stage import (
    InThisProcess,
    clean,
    content,
    documents,
    members,
    page,
    stats,
    warc_record,
    write_jsonl,
)
from tests.kit.harm import bad_and_harmful, install_harm
from tests.kit.texts import AZERBAIJANI
from tests.kit.wrong_lengths import PLAIN, WRONG, with_length


def read(shards: list[Shard]) -> list[RawRecord]:
    return [
        raw
        for shard in shards
        for part in shard.ranges
        for raw in read_records(part.uri, part.name, "text", ReadStats(), start=part.start, end=part.end)
    ]


@pytest.mark.parametrize("most", [1, 100, 1_000, 4_096, 10**9])
def test_ranges_of_lines_give_every_record_once(tmp_path: Path, most: int) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "x" * (n * 37 % 300)}) for n in range(60)]
    path.write_text("\n".join(lines))

    shards = plan_shards([str(path)], most, 1)

    assert [raw.text for raw in read(shards)] == [json.loads(line)["text"] for line in lines]
    assert len({raw.place for raw in read(shards)}) == 60
    assert max(sum(part.size for part in shard.ranges) for shard in shards) <= most


@pytest.mark.parametrize("most", [50, 700, 2_000, 10**9])
@pytest.mark.parametrize("damage", ["", "flipped", "cut", "zeros", "checksum"])
def test_ranges_of_a_packed_warc_give_every_page_once(tmp_path: Path, most: int, damage: str) -> None:
    path = tmp_path / "a.warc.gz"
    pages = members(warc_record(page(f"{n} {AZERBAIJANI}"), url=f"https://a.az/{n}") for n in range(12))
    # Bytes that look like the beginning of a member, within a stored one.
    pages.insert(5, gzip.compress(warc_record(b"\x1f\x8b\x08" * 99, kind="image/png"), 0, mtime=0))
    content = bytearray(b"".join(pages))
    middle = len(b"".join(pages[:7])) + 40
    if damage == "flipped":
        content[middle] ^= 255
    elif damage == "zeros":
        content[middle : middle + 900] = bytes(900)
    elif damage == "checksum":
        content[len(b"".join(pages[:8])) - 6] ^= 255
    path.write_bytes(content[:-30] if damage == "cut" else content)
    whole = ReadStats()
    expected = [raw.source for raw in read_records(str(path), path.name, "text", whole)]

    shards = plan_shards([str(path)], most, 1)
    parts = [ReadStats() for _ in shards]
    found = [
        raw.source
        for shard, stats in zip(shards, parts, strict=True)
        for raw in read_records(
            str(path), path.name, "text", stats, start=shard.ranges[0].start, end=shard.ranges[0].end
        )
    ]

    assert found == expected
    assert sum(stats.bad for stats in parts) == whole.bad == bool(damage)
    assert sum(stats.skipped for stats in parts) == whole.skipped == 1


def read_warc(path: Path, cuts: list[int]) -> tuple[list[str], list[str], int]:
    """Sources of the pages and damaged places of the ranges between some cuts, and how many records were skipped."""
    found, bad, skipped = list[str](), list[str](), 0
    for start, end in itertools.pairwise([0, *cuts, None]):
        stats = ReadStats()
        records = read_records(str(path), path.name, "text", stats, start=start or 0, end=end)
        found += [raw.source for raw in records]
        bad += stats.places
        skipped += stats.skipped
    return found, bad, skipped


@pytest.mark.parametrize("lie", [None, *WRONG], ids=str)
@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_ranges_of_a_warc_with_a_wrong_length_near_a_border_give_every_page_once(
    tmp_path: Path, name: str, lie: str | None
) -> None:
    records = [*PLAIN, warc_record(b"GIF89a", kind="image/gif")]
    if lie:
        records[2] = with_length(records[2], WRONG[lie])
    packed = members(records) if name == "a.warc.gz" else records
    (tmp_path / name).write_bytes(b"".join(packed))
    whole = read_warc(tmp_path / name, [])
    assert (len(whole[0]), len(whole[1]), whole[2]) == ((5, 1, 1) if lie else (6, 0, 1))

    starts = list(itertools.accumulate(map(len, packed)))
    for cut in (
        start + beside for start in starts for beside in (-3, -1, 0, 1, 40) if start + beside < starts[-1]
    ):
        assert read_warc(tmp_path / name, [cut]) == whole, cut
    assert read_warc(tmp_path / name, list(range(90, starts[-1], 90))) == whole


def test_a_warc_with_bytes_that_are_no_records_is_read_alike_in_ranges(tmp_path: Path) -> None:
    torn = b"\0\xff\r\nWARC/1.0\r\nno head\r\r\n" * 20
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join([*PLAIN[:3], torn, *PLAIN[3:5], PLAIN[5][:-300]]))
    whole = read_warc(path, [])
    assert (len(whole[0]), len(whole[1])) == (5, 2)

    for most in (30, 100, 999, 2_500):
        assert read_warc(path, list(range(most, path.stat().st_size, most))) == whole


class SuspiciousOfAll(InThisProcess):
    """Leaves, as processes that died would, that the first record of each shard is to be left out from now on."""

    def map(self, function, tasks, tick=lambda: None):  # type: ignore[no-untyped-def]  # that of the base
        super().map(function, tasks, tick)
        for task in tasks:
            verdict = {"0 0 JUDGE": {"deaths": 1, "why": "kills"}}
            task.folder.with_suffix(".suspects.json").write_text(json.dumps(verdict))


def archive_page(packed: bool) -> bytes:
    """A page of a WARC that shows other records of a WARC, bytes for bytes."""
    shown = [warc_record(page(text), url=f"https://shown.az/{n}") for n, text in enumerate(texts(9))]
    body = b"".join(members(shown) if packed else shown)
    return warc_record(body, url="https://b.az/archive", kind="application/warc")


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_a_page_that_shows_records_is_one_record_wherever_the_file_is_cut(tmp_path: Path, name: str) -> None:
    packed = name == "a.warc.gz"
    pages = [warc_record(page(text), url=f"https://b.az/{n}") for n, text in enumerate(texts(14)[9:])]
    pages.insert(2, archive_page(packed))
    # Stored, as what is packed already is by most writers.
    pieces = [gzip.compress(record, 0, mtime=0) for record in pages] if packed else pages
    (tmp_path / name).write_bytes(b"".join(pieces))
    whole = clean(tmp_path / "one", tmp_path / name)
    assert stats(whole)["in"] == 5

    corpus = clean(tmp_path / "many", tmp_path / name, shard_bytes=2_000, executor=SuspiciousOfAll())

    assert content(corpus) == content(whole)
    assert (stats(corpus)["in"], stats(corpus)["bad_records"]) == (5, stats(whole)["bad_records"])


def test_what_follows_a_range_that_could_not_be_read_to_its_end_stays_as_planned(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"".join(PLAIN))
    shards = plan_shards([str(tmp_path / "a.warc")], 2_000, 1)
    unknown: dict[str, Any] = {"first": 7, "following": None}
    read = [[unknown], *([{"first": 9, "following": 9}] for _ in shards[1:])]

    assert correct_starts(shards, read) == shards


def test_row_groups_give_every_row_once_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{n} " * 50 for n in range(30)]}), path, row_group_size=4)

    shards = plan_shards([str(path)], 1, 1)

    assert len(shards) == 8
    assert [raw.source for raw in read(shards)] == [f"a.parquet:{n}" for n in range(1, 31)]


def test_a_file_that_cannot_be_cut_is_one_range_and_its_reader_says_what_is_wrong(tmp_path: Path) -> None:
    packed, damaged = tmp_path / "a.jsonl.gz", tmp_path / "b.parquet"
    packed.write_bytes(gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(500))))
    damaged.write_bytes(b"PAR1" + bytes(3_000) + b"PAR1")

    first, second = plan_shards([str(packed), str(damaged)], 1_000, 1)

    assert [(part.name, part.start, part.end) for part in first.ranges] == [("a.jsonl.gz", 0, None)]
    assert [(part.name, part.start, part.end) for part in second.ranges] == [("b.parquet", 0, None)]
    assert len(read([first])) == 500
    assert plan_shards([], 1_000, 1) == []


def test_files_without_a_byte_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.jsonl", "b.csv"):
        (tmp_path / name).touch()

    plan_shards([str(tmp_path / name) for name in ("a.jsonl", "b.csv")], 1, 1)

    assert (
        f"2 files without a byte, such as {tmp_path}/a.jsonl; write it again, or leave it out" in caplog.text
    )


def test_shards_do_not_change_a_byte(tmp_path: Path) -> None:
    files = write_inputs(tmp_path / "raw")
    whole = clean(tmp_path / "one", *files, max_bad_records=0.5)
    expected, figures = content(whole), stats(whole)

    corpus = clean(tmp_path / "many", *files, max_bad_records=0.5, shard_bytes=1_500)

    assert content(corpus) == expected
    other = stats(corpus)
    assert [other[key] for key in ("in", "dropped", "bad_records", "words_out")] == [
        figures[key] for key in ("in", "dropped", "bad_records", "words_out")
    ]
    assert figures["bad_records"]["first"][0].startswith("0.jsonl:8: not JSON")


def test_large_corpora_are_cut_alike_whatever_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "MAX_PART_BYTES", 2_000)
    monkeypatch.setattr("anadil.clean.dedup.sorted_documents.PART_DOCUMENTS", 12)
    monkeypatch.setattr("anadil.clean.dedup.sorted_documents.RUN_BYTES", 3_000)
    files = write_inputs(tmp_path / "raw")
    found = [
        clean(tmp_path / str(most), *files, max_bad_records=0.5, heldout_fraction=0.5, shard_bytes=most)
        for most in (2_000, 10**9)
    ]

    ordered = sorted(documents(found[0]), key=lambda document: document.id)
    whole = tmp_path / "whole"
    num_heldout = stats(found[0])["records"]["heldout"]
    corpus_module.write_documents(whole, "heldout", ordered[:num_heldout])
    corpus_module.write_documents(whole, "train", ordered[num_heldout:])
    for corpus in found:
        for path in whole.rglob("*.zst"):
            assert (corpus / path.relative_to(whole)).read_bytes() == path.read_bytes()
    assert len(list((whole / "train").iterdir())) > 3


class KilledAfter(InThisProcess):
    """Stops after some tasks, as a run does that is killed."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.done: list[str] = []

    def map(self, function, tasks, tick=lambda: None):  # type: ignore[no-untyped-def]  # that of the base
        def counted(task):  # type: ignore[no-untyped-def]
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            function(task)
            self.done.append(task.name)

        super().map(counted, tasks, tick)


def test_a_killed_run_resumes_with_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_inputs(tmp_path / "raw")
    settings: dict[str, Any] = {"max_bad_records": 0.5, "shard_bytes": 4_000}
    expected = content(clean(tmp_path / "whole", *files, **settings))
    judged: list[str] = []

    def counted(raw: RawRecord, settings: Settings) -> ExtractedDocument:
        judged.append(raw.place or raw.source)
        return prepare_record(raw, settings)

    monkeypatch.setattr("anadil.clean.shards.map_shard.prepare_record", counted)

    for most in (2, 1, 3, 100):
        try:
            corpus = clean(tmp_path / "killed", *files, executor=KilledAfter(most), **settings)
        except KeyboardInterrupt:
            continue

    assert content(corpus) == expected
    assert len(judged) == len(set(judged)) == stats(corpus)["in"]


def test_a_run_that_is_started_again_compiles_no_lists_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, category = write_jsonl(tmp_path / "a.jsonl", texts(4)), tmp_path / "ut1/gambling"
    category.mkdir(parents=True)
    (category / "domains").write_text("bad.az\n")
    expected = content(clean(tmp_path, raw, url_lists=[str(category)]))
    monkeypatch.setattr("anadil.clean.shards.workspace.compile_lists", pytest.fail)

    assert content(clean(tmp_path, raw, url_lists=[str(category)])) == expected


def test_a_shard_that_was_damaged_or_made_otherwise_is_made_again(tmp_path: Path) -> None:
    files = write_inputs(tmp_path / "raw")
    expected = content(clean(tmp_path, *files, max_bad_records=0.5))
    folder = next((tmp_path / "clean").glob("*/shard-00000"))
    path = folder / "documents.zst"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)

    assert not sealed_dir.verify(folder, json.loads((folder / MANIFEST).read_text())["origin"])
    assert content(clean(tmp_path, *files, max_bad_records=0.5)) == expected


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    with sealed_dir.create(folder, {"key": "key"}) as draft:
        (draft / "a").write_text("1")
        assert not folder.exists()
    assert sealed_dir.verify(folder, {"key": "key"})
    assert not sealed_dir.verify(folder, {"key": "other key"})

    with pytest.raises(OSError, match="full"), sealed_dir.create(folder, {"key": "other key"}) as draft:
        raise OSError("disk full")

    assert sealed_dir.verify(folder, {"key": "key"})
    assert list(tmp_path.iterdir()) == [folder]
    (tmp_path / "made.7.partial").mkdir()  # of a process that was killed
    sealed_dir.remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]


def test_an_input_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    files = write_inputs(tmp_path / "raw")

    class Meddling(InThisProcess):
        def map(self, function, tasks, tick=lambda: None):  # type: ignore[no-untyped-def]  # that of the base
            with files[0].open("a") as file:
                file.write("\n")
            super().map(function, tasks, tick)

    with pytest.raises(IntegrityError, match=r"0\.jsonl: changed while clean was reading it"):
        clean(tmp_path, *files, executor=Meddling())


@pytest.mark.parametrize(
    "odd", ['", "source": "a.jsonl:1', '", "url": "', '\\", "text": ', "\\", 'ə\n"\u2028']
)
def test_a_line_is_renumbered_whatever_its_text_and_source_are(odd: str) -> None:
    document = Document(id="1f" * 16, text=odd, source=f"a.jsonl:3 {odd}", url=odd, lang="az")

    line = _renumbered_line(line_of(document), {"a.jsonl": 7})

    assert line == line_of(replace(document, source=f"a.jsonl:10 {odd}"))
    assert text_of(line) == odd


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        (["/data/raw/a.jsonl"], ["a.jsonl"]),
        (["/data/x/a.jsonl", "/data/y/a.jsonl"], ["x/a.jsonl", "y/a.jsonl"]),
        (["s3://b/k/a.txt", "s3://b/k/sub/a.txt"], ["a.txt", "sub/a.txt"]),
        ([], []),
    ],
)
def test_files_are_named_below_the_directory_that_they_share(uris: list[str], expected: list[str]) -> None:
    assert names(uris) == expected


SETTINGS: dict[str, Any] = {"max_bad_records": 0.5, "shard_bytes": 4_000}
KILLED = "0.jsonl:5: kills the process that works on it (SIGSEGV)"


def test_processes_run_the_stage_where_nothing_else_is_said(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"clean": {"workers": 3}})
    job = Job(recipe=recipe, inputs={}, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    made = executor_of(job)

    assert isinstance(made, Processes)
    assert made.num_workers == 3


def test_an_engine_that_the_program_does_not_have_is_refused_with_the_one_that_has(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"clean": {"engine": "job"}})
    job = Job(recipe=recipe, inputs={}, out=tmp_path, work=tmp_path, base_cache=tmp_path)

    with pytest.raises(PreflightError, match=r"engine: job: .*anadil\.launch\.clean` in the image clean-ray"):
        executor_of(job)

    assert isinstance(executor_of(replace(job, engines=CLUSTER_ENGINES)), IndexedJob)


def test_files_of_a_bucket_give_the_corpus_that_files_of_a_disk_give(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "PIECE_BYTES", 1_500)
    files = write_inputs(tmp_path / "raw")
    expected = content(clean(tmp_path / "disk", *files, max_bad_records=0.5))
    uris = [f"{bucket}/{path.name}" for path in files]
    for path, uri in zip(files, uris, strict=True):
        storage.store(uri).write(uri, path.read_bytes())
    monkeypatch.setattr(storage, "local_copy", None)  # nothing is fetched whole

    assert content(clean(tmp_path / "bucket", *uris, **SETTINGS)) == expected


def test_a_cluster_that_does_not_answer_is_asked_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anadil.runtime.executors import ray_tasks

    asked: list[str] = []

    class Silent:
        @staticmethod
        def init(address: str, **_: Any) -> None:
            asked.append(address)
            raise ConnectionError("no server")

        @staticmethod
        def shutdown() -> None: ...

    monkeypatch.setitem(sys.modules, "ray", Silent)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    monkeypatch.setattr(ray_tasks, "PAUSE_S", 0.0)

    with pytest.raises(PreflightError, match=r"Ray does not answer at ray://head:10001: no server; correct"):
        _ray(tmp_path).__enter__()
    assert asked == ["ray://head:10001"] * 3


class _Started:
    """An executor that others have started and will end."""

    def __init__(self, executor: Executor) -> None:
        self.num_workers, self.map = executor.num_workers, executor.map

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Started]:
    """Ray, whose processes die of a harmful record."""
    pytest.importorskip("ray", reason="Ray is not installed")
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        install_harm("crash", folder / "site", patch)
        with _ray(folder / "work") as executor:
            yield _Started(executor)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_bytes_of_one_process_and_leaves_out_a_record_that_kills(
    tmp_path: Path, ray: _Started
) -> None:
    files = write_inputs(tmp_path / "raw")
    unreadable, harmful = bad_and_harmful(files[0])
    files[0].write_bytes(unreadable)
    expected = content(clean(tmp_path / "one", *files, max_bad_records=0.5))
    files[0].write_bytes(harmful)

    corpus = clean(tmp_path / "ray", *files, executor=ray, **SETTINGS)

    assert content(corpus) == expected
    assert stats(corpus)["bad_records"]["first"][0] == KILLED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_task_of_a_worker_of_ray_that_is_killed_is_done_by_another(tmp_path: Path, ray: _Started) -> None:
    tasks = [_Task(tmp_path / str(number)) for number in range(3)]

    ray.map(kill_the_first_worker, tasks)

    assert all(task.folder.read_text() == "done" for task in tasks)
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_task_raises_on_ray_ends_the_run_with_its_own_error(tmp_path: Path, ray: _Started) -> None:
    with pytest.raises(PreflightError, match="no disk left"):
        ray.map(refuse, [_Task(tmp_path / "0")])


class _Task:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name


def kill_the_first_worker(task: _Task) -> None:
    killed = task.folder.parent / "killed"
    if not killed.exists():
        killed.touch()
        os.kill(os.getppid(), 9)  # Ray's worker, whose process this is
    task.folder.write_text("done")


def refuse(task: _Task) -> None:
    raise PreflightError("no disk left")


def _ray(work: Path) -> Any:
    from anadil.runtime.executors.ray_tasks import RayTasks

    return RayTasks(2, work)
