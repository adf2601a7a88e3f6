"""Rows of a corpus of a million documents, read by column."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError, IntegrityError
from anadil.watch.data import corpora
from anadil.watch.data.corpora import Place, WatchedCorpus, Where
from tests.kit.watched_corpus import STATISTICS, make_watched_corpus, seal_corpus

MILLION = 1_000_000
ALL = Where()


def watched(folder: Path) -> WatchedCorpus:
    manifest = artifact.finished_manifest(str(seal_corpus(folder)), "corpus")
    stats = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
    return WatchedCorpus(word="corpus", uri=str(folder), manifest=manifest, stats=stats)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_watched_corpus(tmp_path_factory.mktemp("corpus"), MILLION)


@pytest.fixture(scope="module")
def table(corpus: Path) -> Any:
    return pq.read_table(corpus / "stats")


@pytest.fixture
def rows(corpus: Path) -> WatchedCorpus:
    return watched(corpus)


def where(rows: WatchedCorpus, **given: str) -> Where:
    return Where.of(given, rows)


def test_pages_of_documents_follow_one_another_and_lack_none(rows: WatchedCorpus, table: Any) -> None:
    chosen = where(rows, reason="mixed", host="xeber7.az", statistic="words", most="30")
    expected = [
        row["source"]
        for row in table.select(["source", "reason", "host", "words"]).to_pylist()
        if row["reason"] == "mixed" and row["host"] == "xeber7.az" and row["words"] <= 30
    ]

    start: Place | None = Place()
    found, sizes = [], []
    while start is not None:
        page = rows.documents(chosen, start, size=40)
        found += [row["source"] for row in page.rows]
        sizes.append(len(page.rows))
        assert not isinstance(page.next, int)
        start = page.next

    assert found == expected
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {40}
    assert rows.num_matches(chosen) == len(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"fails": "short"}, lambda row: row["words"] < 50),
        ({"source": "CRAWL-1.jsonl:99"}, lambda row: "crawl-1.jsonl:99" in row["source"]),
        ({"source": f"{7:032x}"}, lambda row: row["id"] == f"{7:032x}"),
        ({"reason": "kept"}, lambda row: row["reason"] is None),
        ({"reason": "dropped", "host": "kept"}, lambda _: False),
        ({"statistic": "words", "least": "100", "most": "101,5"}, lambda row: 100 <= row["words"] <= 101.5),
        ({"file": "x' OR true --"}, lambda _: False),
    ],
)
def test_a_condition_chooses_the_rows_that_meet_it(
    rows: WatchedCorpus, table: Any, given: dict[str, str], expected: Any
) -> None:
    known = table.slice(0, 20_000).select(["id", "source", "reason", "words"]).to_pylist()

    page = rows.documents(where(rows, **given))

    assert [row["source"] for row in page.rows][:20] == [row["source"] for row in known if expected(row)][:20]


def test_an_unfinished_search_goes_on_where_it_stopped(
    rows: WatchedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "BUDGET_S", 0)

    page = rows.documents(where(rows, source="crawl-0.jsonl:999999"))

    assert page == ([], Place(1))
    assert Place.of(str(Place(3, 30_000))) == Place(3, 30_000)
    assert rows.row(Place(3, 30_000))["source"].endswith(f":{3 * 65_536 + 30_000}")
    assert set(rows.statistics) == {"bytes_in", "bytes_out", *STATISTICS}


@pytest.mark.parametrize("largest", [True, False])
def test_extremes_are_those_of_the_whole_column(rows: WatchedCorpus, table: Any, *, largest: bool) -> None:
    values = np.sort(table.filter(table["reason"].is_null())["words"].to_numpy())
    expected = values[::-1] if largest else values
    chosen = where(rows, reason="kept")

    first = rows.ordered(chosen, "words", largest=largest, size=20)
    second = rows.ordered(chosen, "words", largest=largest, start=20, size=20)

    assert first.next == 20
    assert [row["words"] for row in (*first.rows, *second.rows)] == expected[:40].tolist()
    assert len({row["id"] for row in (*first.rows, *second.rows)}) == 40
    by_text = rows.ordered(chosen, "host", largest=largest, size=3).rows
    hosts = sorted(table.filter(table["reason"].is_null())["host"].to_pylist(), reverse=largest)
    assert [row["host"] for row in by_text] == hosts[:3]
    with pytest.raises(DataError, match="not a column that documents are ordered by"):
        rows.ordered(chosen, "1; DROP", largest=largest)


def test_a_histogram_counts_every_document_once(rows: WatchedCorpus, table: Any) -> None:
    result = rows.distribution(where(rows, statistic="words"))

    kept = int(str(rows.stats["kept"]))
    assert tuple(map(sum, result.counts)) == (kept, MILLION - kept)
    assert len(result.edges) == len(result.counts[0]) + 1
    # Few documents are far longer than most: the bins grow by a factor.
    assert result.edges[2] / result.edges[1] == pytest.approx(result.edges[-1] / result.edges[-2])
    values = table.filter(table["reason"].is_null())["words"].to_numpy()
    assert {name: of_kept for name, of_kept, _ in result.quantiles} == {
        name: pytest.approx(float(np.quantile(values, share)), rel=0.01)
        for name, share in corpora.QUANTILES.items()
    }
    expected = np.histogram(np.clip(values, result.edges[0], result.edges[-1]), result.edges)[0]
    assert np.abs(np.array(result.counts[0]) - expected).sum() <= 0.001 * kept


def test_a_histogram_without_documents_is_empty(rows: WatchedCorpus) -> None:
    result = rows.distribution(where(rows, statistic="words", host="nowhere"))

    assert sum(map(sum, result.counts)) == result.num_unmeasured == 0
    assert {(one, other) for _, one, other in result.quantiles} == {(None, None)}


def test_groups_are_those_of_the_rows(rows: WatchedCorpus, table: Any) -> None:
    dropped = table.filter(table["reason"].is_valid())["host"].value_counts().to_pylist()
    expected = {each["values"]: each["counts"] for each in dropped}

    result = rows.group_counts("host", where(rows, reason="dropped"))

    assert {name: num for name, _, num in result.groups} == {
        name: expected[name] for name, *_ in result.groups
    }
    assert {num for _, num, _ in result.groups} == {0}
    assert result.num_groups == len(expected)


def test_a_large_corpus_is_sampled_by_files_and_says_so(
    rows: WatchedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "MOST_ROWS", 300_000)

    assert len(rows.sample) == 4
    assert rows.sample_note == "Counted in 4 of 16 files of documents, evenly spread."


def test_hosts_of_one_domain_are_counted_together_and_chosen_together(tmp_path: Path) -> None:
    folder = make_watched_corpus(tmp_path, 300)
    path = folder / "stats/part-00000.parquet"
    hosts = ["sport.xeber.com.az", "xeber.com.az", "notxeber.com.az"] * 100
    pq.write_table(pq.read_table(path).drop(["host"]).append_column("host", [hosts]), path)
    rows = watched(folder)

    result = rows.group_counts("domain", ALL)
    page = rows.documents(where(rows, domain="xeber.com.az"))

    assert {name: kept + dropped for name, kept, dropped in result.groups} == {
        "xeber.com.az": 200,
        "notxeber.com.az": 100,
    }
    assert {row["host"] for row in page.rows} == {*hosts[:2]}


def test_the_database_reads_one_folder_installs_nothing_and_loads_no_pandas(corpus: Path) -> None:
    code = (
        "import sys, duckdb\n"
        "from anadil.watch.server import spare_memory\n"
        "spare_memory()\n"
        "from anadil.watch.data import corpora\n"
        f"manifest = corpora.artifact.finished_manifest({str(seal_corpus(corpus))!r}, 'corpus')\n"
        f"rows = corpora.WatchedCorpus(word='', uri={str(corpus)!r}, manifest=manifest, stats={{}})\n"
        "assert rows.documents(corpora.Where()).rows\n"
        "print([name for name in ('pandas', 'numpy', 'pyarrow') if name in sys.modules])\n"
        f"database = corpora._database({str(corpus / 'stats')!r})\n"
        """for asked in ("FROM read_text('/etc/passwd')", "INSTALL httpfs", "SET memory_limit = '9GB'"):\n"""
        "    try: print(database.execute(asked).fetchall())\n"
        "    except duckdb.Error as error: print(type(error).__name__)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    said = done.stdout.splitlines()
    assert said[0] == "[]"
    assert said[1:] == ["PermissionException", "PermissionException", "InvalidInputException"]


def test_what_is_asked_wrongly_is_refused_with_the_remedy(rows: WatchedCorpus) -> None:
    for given, message in (
        ({"fails": "bogus"}, "bogus: not a rule of this corpus; take one of the list"),
        ({"statistic": "host"}, "host: not a statistic of this corpus"),
        ({"statistic": "words", "least": "many"}, r"many: not a number; write one such as 0\.25 or 100"),
    ):
        with pytest.raises(DataError, match=message):
            where(rows, **given)
    for place in (Place(99, 0), Place(0, 999_999)):
        with pytest.raises(DataError, match="no such document in this corpus; go back to the list"):
            rows.row(place)
    with pytest.raises(DataError, match="not the place of a document"):
        Place.of("1-2-x")


def test_a_corpus_that_is_gone_or_damaged_says_so(tmp_path: Path) -> None:
    folder = make_watched_corpus(tmp_path / "corpus", 100)
    rows, part = watched(folder), folder / "stats/part-00000.parquet"
    assert rows.documents(ALL).rows

    part.write_bytes(part.read_bytes()[:1_000])
    with pytest.raises(IntegrityError, match=r"is damaged: .* make the corpus again"):
        rows.documents(ALL)
    part.unlink()
    with pytest.raises(DataError, match="no such file any more; the corpus was removed"):
        rows.documents(ALL)
    with pytest.raises(DataError, match="holds no rows of documents; the corpus was removed"):
        watched(folder).documents(ALL)
