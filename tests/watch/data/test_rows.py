"""Rows of a corpus of a million documents, read by column."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from anadil.core.errors import DataError, IntegrityError
from anadil.watch.data.distribution import distribution, group_counts
from anadil.watch.data.document_list import extreme_documents, list_documents
from anadil.watch.data.stats_rows import Place, StatsRows
from anadil.watch.data.tried_limit import tried_limit
from anadil.watch.data.where import Where
from tests.kit.watched_corpus import make_watched_corpus

MILLION = 1_000_000
ALL = Where()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_watched_corpus(tmp_path_factory.mktemp("corpus"), MILLION)


@pytest.fixture(scope="module")
def table(corpus: Path) -> Any:
    return pq.read_table(corpus / "stats")


@pytest.fixture(scope="module")
def stats(corpus: Path) -> dict[str, Any]:
    return dict(json.loads((corpus / "stats.json").read_text(encoding="utf-8")))


@pytest.fixture
def rows(corpus: Path) -> StatsRows:
    return StatsRows(str(corpus))


def where(rows: StatsRows, **given: str) -> Where:
    return Where.of(given, rows)


def test_pages_of_documents_follow_one_another_and_lack_none(rows: StatsRows, table: Any) -> None:
    chosen = where(rows, reason="mixed", host="xeber7.az", statistic="words", most="30")
    expected = [
        row["source"]
        for row in table.select(["source", "reason", "host", "words"]).to_pylist()
        if row["reason"] == "mixed" and row["host"] == "xeber7.az" and row["words"] <= 30
    ]

    start: Place | None = Place()
    found, sizes = [], []
    while start is not None:
        page = list_documents(rows, chosen, start, size=40, budget_s=60)
        found += [row["source"] for row in page.rows]
        sizes.append(len(page.places))
        start = page.next

    assert found == expected
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {40}


def test_a_page_is_read_in_less_than_a_second(rows: StatsRows) -> None:
    began = time.monotonic()

    page = list_documents(rows, where(rows, fails="short"), Place(), budget_s=0.3)

    # Two cores that others use as well: the first page asks a tenth of this of an idle one.
    assert time.monotonic() - began < 2
    assert len(page.places) == 50
    assert page.next
    assert all(row["words"] < 50 for row in page.rows)


def test_an_unfinished_search_says_how_far_it_has_looked_and_goes_on_there(
    rows: StatsRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.watch.data.document_list.BUDGET_EMPTY_S", 0)

    page = list_documents(rows, where(rows, source="crawl-0.jsonl:999999"), Place(), budget_s=0)

    assert not page.is_complete
    assert page.num_looked_at == 8_192
    assert page.next == Place(0, 1, 0)


@pytest.mark.parametrize("largest", [True, False])
def test_extremes_are_those_of_the_whole_column(rows: StatsRows, table: Any, *, largest: bool) -> None:
    values = np.sort(table.filter(table["reason"].is_null())["words"].to_numpy())
    expected = values[::-1][:20] if largest else values[:20]

    page = extreme_documents(rows, where(rows, reason="kept"), "words", largest=largest, size=20, budget_s=60)

    assert [row["words"] for row in page.rows] == expected.tolist()
    assert page.is_complete


def test_a_histogram_counts_every_document_once(rows: StatsRows, stats: dict[str, Any]) -> None:
    result = distribution(rows, "words", ALL, MILLION, budget_s=60)

    assert (sum(result.num_kept), sum(result.num_dropped)) == (stats["kept"], MILLION - stats["kept"])
    assert len(result.edges) == len(result.num_kept) + 1
    # Few documents are far longer than most: the bins grow by a factor.
    assert result.edges[2] / result.edges[1] == pytest.approx(result.edges[-1] / result.edges[-2])


def test_groups_are_those_of_the_rows(rows: StatsRows, table: Any) -> None:
    dropped = table.filter(table["reason"].is_valid())["host"].value_counts().to_pylist()
    expected = {each["values"]: each["counts"] for each in dropped}

    result = group_counts(rows, "host", where(rows, reason="dropped"), MILLION, budget_s=60)

    assert dict(zip(result.names, result.num_dropped, strict=True)) == {
        name: expected[name] for name in result.names
    }
    assert set(result.num_kept) == {0}
    assert result.num_groups == len(expected)


def test_hosts_of_one_domain_are_counted_together_and_chosen_together(tmp_path: Path) -> None:
    folder = make_watched_corpus(tmp_path, 300)
    path = folder / "stats/part-00000.parquet"
    hosts = ["sport.xeber.com.az", "xeber.com.az", "notxeber.com.az"] * 100
    pq.write_table(pq.read_table(path).drop(["host"]).append_column("host", [hosts]), path)
    rows = StatsRows(str(folder))

    result = group_counts(rows, "domain", ALL, 300)
    page = list_documents(rows, where(rows, domain="xeber.com.az"), Place())

    counts = zip(result.names, result.num_kept, result.num_dropped, strict=True)
    assert {name: kept + dropped for name, kept, dropped in counts} == {
        "xeber.com.az": 200,
        "notxeber.com.az": 100,
    }
    assert page.num_matches == 200
    assert {row["host"] for row in page.rows} == {*hosts[:2]}


@pytest.mark.parametrize(
    ("key", "limit"), [("min_words", 20), ("min_words", 90), ("max_top_ngram", 0.35), ("max_top_ngram", 0.1)]
)
def test_a_tried_limit_keeps_what_clean_would(
    rows: StatsRows, stats: dict[str, Any], table: Any, key: str, limit: float
) -> None:
    columns = {
        name: table[name].to_numpy(zero_copy_only=False)
        for name in (
            "words",
            "top_2gram",
            "fails_mixed",
            "fails_short",
            "fails_top_ngram",
            "fails_duplicate_ngrams",
        )
    }
    own = "short" if key == "min_words" else "top_ngram"
    others = np.logical_or.reduce(
        [
            columns[f"fails_{each}"]
            for each in ("mixed", "short", "top_ngram", "duplicate_ngrams")
            if each != own
        ]
    )
    breaks = columns["words"] < limit if own == "short" else columns["top_2gram"] > np.float32(limit)
    kept = table["reason"].is_null().to_numpy()

    result = tried_limit(rows, stats, {}, key, limit, budget_s=60)

    assert result.gained.documents == int((columns[f"fails_{own}"] & ~others & ~breaks).sum())
    assert result.lost.documents == int((kept & breaks).sum())
    assert result.lost.words == int(columns["words"][kept & breaks].sum())
    assert result.num_kept == stats["kept"]
    assert result.num_rows == MILLION
    assert (result.gained.documents > 0) != (result.lost.documents > 0)
    for side, name in ((result.gained, own), (result.lost, None)):
        assert {row["reason"] for row in rows.rows(side.examples, ["reason"])} <= {name}


def test_a_rule_that_only_counts_drops_when_it_is_tried(rows: StatsRows, stats: dict[str, Any]) -> None:
    result = tried_limit(rows, stats, {}, "max_short_lines", 0.25, budget_s=60)

    assert result.in_force is None
    assert result.lost.documents == pytest.approx(result.num_kept / 2, rel=0.02)
    assert result.gained.documents == 0


def test_reading_rows_loads_nothing_that_takes_memory_and_is_not_needed(corpus: Path) -> None:
    code = (
        "import sys, pyarrow\n"
        "from anadil.watch.data.document_list import Place, StatsRows, Where, list_documents\n"
        "from anadil.watch.server import spare_memory\n"
        "spare_memory()\n"
        f"assert list_documents(StatsRows({str(corpus)!r}), Where(), Place()).rows\n"
        "print('pandas' in sys.modules, pyarrow.default_memory_pool().backend_name)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "system"]


def test_what_is_asked_wrongly_is_refused_with_the_remedy(rows: StatsRows, stats: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="bogus: not a rule of this corpus; take one of the list"):
        where(rows, fails="bogus")
    with pytest.raises(DataError, match="host: not a statistic of this corpus"):
        where(rows, statistic="host")
    with pytest.raises(DataError, match=r"many: not a number; write one such as 0\.25 or 100"):
        where(rows, statistic="words", least="many")
    with pytest.raises(DataError, match=r"max_wit: not a key of clean\.rules"):
        tried_limit(rows, stats, {}, "max_wit", 1)
    with pytest.raises(DataError, match="no such document in this corpus; go back to the list"):
        rows.row(Place(99, 0, 0))
    with pytest.raises(DataError, match="not the place of a document"):
        Place.of("1-2-x")


def test_a_corpus_that_is_gone_or_damaged_says_so(tmp_path: Path) -> None:
    corpus = make_watched_corpus(tmp_path / "corpus", 100)
    rows = StatsRows(str(corpus))
    part = corpus / "stats/part-00000.parquet"
    content = part.read_bytes()

    part.write_bytes(content[:1_000])
    with pytest.raises(IntegrityError, match=r"cannot be read .* make the corpus again"):
        list_documents(rows, ALL, Place())
    part.unlink()
    with pytest.raises(
        DataError, match="holds no rows of documents; the corpus was removed, or not made by clean"
    ):
        StatsRows(str(corpus))
    with pytest.raises(DataError, match="no such file any more; the corpus was removed"):
        list_documents(rows, ALL, Place())


def test_a_column_that_an_older_version_lacks_is_empty(tmp_path: Path) -> None:
    corpus = make_watched_corpus(tmp_path / "corpus", 100, statistics=("foreign",))

    result = tried_limit(StatsRows(str(corpus)), {"in": 100, "limits": {}}, {}, "max_top_ngram", 0.1)

    assert result.lost.documents == result.gained.documents == 0
