"""The documents of a corpus: counts by rule, host and file, a list under conditions, the distribution of a statistic."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anadil.core.format import counted, human_bytes, integer_if_whole, number
from anadil.core.table import Table
from anadil.report.corpus_view import drops
from anadil.report.format import figure, percent, ratio, words_of
from anadil.report.read import named_tables, table_of
from anadil.watch.corpora import WatchedCorpus, corpora_of, corpus_of
from anadil.watch.data.distribution import GROUPS, Distribution, distribution, group_counts
from anadil.watch.data.document_list import DocumentList, extreme_documents, list_documents
from anadil.watch.data.stats_rows import DROPPED, KEPT, Place
from anadil.watch.data.where import Where
from anadil.watch.page import page
from anadil.watch.watched import Watched

WIDTH, HEIGHT, GAP = 480, 150, 2
"""Size of the histogram, in units of its view box."""
TOP = 15
"""Rows of tables beside the list."""
Link = tuple[str, str]
"""Text and address."""


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/data`, and `/run/ID/data/CORPUS` for each corpus."""
    return [
        Route("/run/{id}/data", partial(_choose, watched)),
        Route("/run/{id}/data/{corpus}", partial(_show, watched)),
    ]


def _choose(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    words = corpora_of(run)
    # A run without sources has one, and a list of one is a detour.
    if len(words) == 1:
        return RedirectResponse(f"/run/{run.id}/data/{words[0]}")
    rows = []
    for word in words:
        corpus = corpus_of(run, word)
        link = (word, f"/run/{run.id}/data/{word}")
        rows.append((link, figure(corpus.num_rows), figure(corpus.stats.get("kept")), _share(corpus)))
    return page(request, "corpora.html.j2", {"title": "Data", "run": run, "rows": rows})


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    given = dict(request.query_params)
    where = Where.of(given, corpus.rows)
    by, order = given.get("by", ""), given.get("order", "")
    place = f"/run/{run.id}/data/{corpus.word}"
    histogram = (
        _histogram(distribution(corpus.rows, where.statistic, where, corpus.num_rows))
        if where.statistic
        else None
    )
    view = {
        "title": f"Documents of {corpus.word}", "run": run, "place": place, "lead": _lead(corpus),
        "fields": {"by": by, "order": order, "domain": "", "host": "", "file": "", "licence": "", "source": "", "least": "", "most": "", "statistic": "", "reason": "", "fails": ""} | where.given,
        "reasons": [KEPT, DROPPED, *(name for name, _ in drops(corpus.stats))],
        "rules": corpus.rows.rules, "statistics": corpus.rows.statistics, "groups": GROUPS,
        "histogram": histogram, "counts": _counts(corpus, place), "by_group": _by_group(corpus, by, where, place),
        "list": _list(_documents(corpus, where, order, given.get("from", "")), where, place, order),
        "has_conditions": bool(where.given),
    }  # fmt: skip
    return page(request, "documents.html.j2", view)


def _documents(corpus: WatchedCorpus, where: Where, order: str, start: str) -> DocumentList:
    if where.statistic and order in ("largest", "least"):
        return extreme_documents(corpus.rows, where, where.statistic, largest=order == "largest")
    return list_documents(corpus.rows, where, Place.of(start) if start else Place())


def _lead(corpus: WatchedCorpus) -> str:
    stats = corpus.stats
    extent = f"{figure(stats.get('words_out'))} words, {human_bytes(_float(stats.get('bytes_out')))}"
    bad = int(_float(stats.get("bad")))
    unread = f" {counted(bad, 'record')} could not be read." if bad else ""
    return (
        f"{figure(corpus.num_rows)} documents were read, {figure(stats.get('kept'))} of them ({_share(corpus)}) are kept: "
        f"{extent}.{unread}"
    )


def _share(corpus: WatchedCorpus) -> str:
    return percent(ratio(corpus.stats.get("in"), corpus.stats.get("kept")))


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _counts(corpus: WatchedCorpus, place: str) -> list[tuple[str, list[tuple[Link, str, str]]]]:
    """Tables that `stats.json` has: by rule, by host, by file; each row leads to its documents."""
    stats = corpus.stats
    rules = [
        (
            (words_of(name), f"{place}?{urlencode({'reason': name})}"),
            figure(int(num)),
            percent(ratio(stats.get("in"), num)),
        )
        for name, num in drops(stats)
    ]
    tables = [("Dropped by rule", rules)]
    for title, key, field in (("By host", "hosts", "host"), ("By file", "by_source", "file")):
        named = [
            (
                (name, f"{place}?{urlencode({field: name})}"),
                figure(row.get("in")),
                percent(ratio(row.get("in"), row.get("kept"))),
            )
            for name, row in named_tables(table_of(stats.get(key)))[:TOP]
        ]
        tables.append((title, named))
    return [(title, rows) for title, rows in tables if rows]


def _by_group(corpus: WatchedCorpus, by: str, where: Where, place: str) -> dict[str, object] | None:
    """Documents that meet the conditions, by one of `GROUPS`; None where nobody asks."""
    if by not in GROUPS:
        return None
    counts = group_counts(corpus.rows, by, where, corpus.num_rows)
    rows = [
        (
            (name or ("kept" if by == "reason" else "without"), f"{place}?{urlencode(where.given | {by: name or KEPT})}" if name or by == "reason" else place),
            figure(kept_here), figure(dropped_here), percent(ratio(kept_here + dropped_here, kept_here)),
        )
        for name, kept_here, dropped_here in zip(counts.names, counts.num_kept, counts.num_dropped, strict=True)
    ]  # fmt: skip
    more = counts.num_groups - len(rows)
    notes = [f"{more:,} more are not shown." if more else "", _looked_at(counts.num_rows, corpus.num_rows)]
    return {"title": f"Documents by {by}", "rows": rows, "note": " ".join(filter(None, notes))}


def _looked_at(num_rows: int, total: int) -> str:
    return (
        ""
        if num_rows >= total
        else f"Counted in {num_rows:,} of {total:,} documents, evenly spread or the first."
    )


def document_rows(
    places: Sequence[Place], rows: Sequence[Mapping[str, Any]], statistic: str, place: str
) -> list[dict[str, object]]:
    """Documents as their table shows them; each leads to its page below `place`."""
    return [
        {
            "address": f"{place}/document/{at}", "name": row["source"], "host": row["host"] or "",
            "verdict": words_of(row["reason"] or KEPT), "is_kept": row["reason"] is None,
            "words": value_of(row.get("words")), "size": human_bytes(row.get("bytes_out")),
            "value": value_of(row.get(statistic)) if statistic else "",
        }
        for at, row in zip(places, rows, strict=True)
    ]  # fmt: skip


def _list(documents: DocumentList, where: Where, place: str, order: str) -> dict[str, object]:
    rows = document_rows(documents.places, documents.rows, where.statistic, place)
    more = where.given | ({"order": order} if order else {})
    counts = (
        f"{documents.num_matches:,} documents"
        if documents.is_complete
        else f"{documents.num_matches:,} documents so far"
    )
    looked = "" if documents.is_complete else f", {documents.num_looked_at:,} were looked at"
    return {
        "rows": rows, "counts": f"{counts}{looked}", "statistic": words_of(where.statistic),
        "next": f"{place}?{urlencode(more | {'from': str(documents.next)})}" if documents.next else "",
    }  # fmt: skip


def value_of(value: object) -> str:
    """Return a value of a statistic in print: rows hold counts as fractions, too."""
    known = number(value)
    return figure(None if known is None else integer_if_whole(known))


def _histogram(result: Distribution) -> dict[str, object]:
    """Bars of a histogram: kept documents below, dropped ones on them, each with its words."""
    most = max(map(sum, zip(result.num_kept, result.num_dropped, strict=True)), default=0) or 1
    width = WIDTH / max(1, len(result.num_kept))
    bars = []
    for place, (stays, goes) in enumerate(zip(result.num_kept, result.num_dropped, strict=True)):
        low, high = result.edges[place : place + 2]
        heights = [HEIGHT * count / most for count in (stays, goes)]
        bars.append({
            "x": round(place * width, 1), "width": round(width - GAP, 1),
            "kept_y": round(HEIGHT - heights[0], 1), "kept_height": round(heights[0], 1),
            "dropped_y": round(HEIGHT - sum(heights), 1), "dropped_height": round(heights[1], 1),
            "words": f"{figure(low)} to {figure(high)}: {stays:,} kept, {goes:,} dropped",
        })  # fmt: skip
    rows = [(name, value_of(one), value_of(other)) for name, one, other in result.quantiles]
    note = f"{result.num_values:,} documents have a value, {result.num_unmeasured:,} have none."
    return {
        "bars": bars, "title": words_of(result.statistic), "low": value_of(result.edges[0]), "high": value_of(result.edges[-1]),
        "height": HEIGHT, "width": WIDTH, "note": note,
        "table": Table("Values", ("", "kept", "dropped"), rows),
        "said": "; ".join(str(bar["words"]) for bar in bars),
    }  # fmt: skip
