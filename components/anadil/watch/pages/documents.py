"""The documents of a corpus: counts by rule, host and file, a list under conditions, the distribution of a statistic."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anadil.core.format import counted, human_bytes, integer_if_whole, number
from anadil.core.table import Table
from anadil.report.charts import histogram_chart
from anadil.report.corpus_view import drops
from anadil.report.format import figure, percent, ratio, words_of
from anadil.report.read import named_tables, table_of
from anadil.watch.data.corpora import (
    DROPPED,
    GROUPS,
    KEPT,
    Documents,
    Place,
    WatchedCorpus,
    Where,
    corpora_of,
    corpus_of,
)
from anadil.watch.page import link, page
from anadil.watch.watched import Watched

TOP = 15
"""Rows of tables beside the list."""
ORDERS = ("largest", "least")


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
    corpora = [corpus_of(run, word) for word in words]
    rows = [
        (link(each.word, f"/run/{run.id}/data/{each.word}"), figure(each.num_rows), figure(each.stats.get("kept")), _share(each))
        for each in corpora
    ]  # fmt: skip
    table = Table("Corpora", ("corpus", "documents", "kept", "share"), rows)
    return page(request, "corpora.html.j2", {"title": "Data", "run": run, "table": table})


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    given = dict(request.query_params)
    where = Where.of(given, corpus)
    by, order = given.get("by", ""), given.get("order", "")
    place = f"/run/{run.id}/data/{corpus.word}"
    view = {
        "title": f"Documents of {corpus.word}", "run": run, "place": place, "lead": _lead(corpus),
        "fields": {"by": by, "order": order}, "where": where, "orders": ORDERS, "groups": GROUPS,
        "reasons": [KEPT, DROPPED, *(name for name, _ in drops(corpus.stats))],
        "rules": corpus.rules, "statistics": corpus.statistics,
        "histogram": _histogram(corpus, where) if where.statistic else None,
        "counts": [] if where.given else _counts(corpus, place),
        "by_group": _by_group(corpus, by, where, place) if by in GROUPS else None,
        **_list(corpus, where, given.get("from", ""), place, order),
    }  # fmt: skip
    return page(request, "documents.html.j2", view)


def _lead(corpus: WatchedCorpus) -> str:
    stats = corpus.stats
    extent = f"{figure(stats.get('words_out'))} words, {human_bytes(number(stats.get('bytes_out')))}"
    bad = int(number(stats.get("bad")) or 0)
    unread = f" {counted(bad, 'record')} could not be read." if bad else ""
    return (
        f"{figure(corpus.num_rows)} documents were read, {figure(stats.get('kept'))} of them ({_share(corpus)}) are kept: "
        f"{extent}.{unread}"
    )


def _share(corpus: WatchedCorpus) -> str:
    return percent(ratio(corpus.stats.get("in"), corpus.stats.get("kept")))


def _counts(corpus: WatchedCorpus, place: str) -> list[Table]:
    """Tables that `stats.json` has: by rule, by host, by file; each row leads to its documents."""
    stats = corpus.stats
    rules = [
        (link(words_of(name), f"{place}?{urlencode({'reason': name})}"), figure(int(num)), percent(ratio(stats.get("in"), num)))
        for name, num in drops(stats)
    ]  # fmt: skip
    tables = [Table("Dropped by rule", ("", "documents", "share"), rules)]
    for title, key, field in (("By host", "hosts", "host"), ("By file", "by_source", "file")):
        rows = [
            (link(name, f"{place}?{urlencode({field: name})}"), figure(row.get("in")), percent(ratio(row.get("in"), row.get("kept"))))
            for name, row in named_tables(table_of(stats.get(key)))[:TOP]
        ]  # fmt: skip
        tables.append(Table(title, ("", "documents", "share kept"), rows))
    return [table for table in tables if table.rows]


def _by_group(corpus: WatchedCorpus, by: str, where: Where, place: str) -> Table:
    """Documents that meet the conditions, by one of `GROUPS`."""
    counts = corpus.group_counts(by, where)
    rows = []
    for name, num_kept, num_dropped in counts.groups:
        # Only a reason can be asked for where it is empty: the document is kept.
        value = name or (KEPT if by == "reason" else "")
        address = f"{place}?{urlencode(where.given | {by: value})}" if value else place
        share = percent(ratio(num_kept + num_dropped, num_kept))
        rows.append((link(value or "without", address), figure(num_kept), figure(num_dropped), share))
    more = counts.num_groups - len(rows)
    notes = [f"{more:,} more are not shown." if more else "", corpus.sample_note]
    columns = ("", "kept", "dropped", "share kept")
    return Table(f"Documents by {by}", columns, rows, note=" ".join(filter(None, notes)))


def _list(corpus: WatchedCorpus, where: Where, start: str, place: str, order: str) -> dict[str, object]:
    """The documents of the page, how many there are, and the address of the next page."""
    if where.statistic and order in ORDERS:
        documents = corpus.extremes(where, largest=order == ORDERS[0])
    else:
        documents = corpus.documents(where, Place.of(start) if start else Place())
    is_all = where.given.keys() <= {"statistic"}
    num = corpus.num_rows if is_all else corpus.num_matches(where)
    note = f" {corpus.sample_note}" if corpus.sample_note and not is_all else ""
    more = where.given | ({"order": order} if order else {}) | {"from": str(documents.next)}
    return {
        "documents": _table(documents, where.statistic, place), "num": f"{counted(num, 'document')}.{note}",
        "next": f"{place}?{urlencode(more)}" if documents.next else "",
    }  # fmt: skip


def _table(documents: Documents, statistic: str, place: str) -> Table:
    extra = statistic if statistic not in ("words", "bytes_out") else ""
    columns = ("document", "verdict", "host", *([words_of(extra)] if extra else []), "words", "text")
    rows = [
        (
            link(row["source"], f"{place}/document/{row['place']}"), _verdict(row), row["host"] or "",
            *([value_of(row[extra])] if extra else []), value_of(row.get("words")), human_bytes(row.get("bytes_out")),
        )
        for row in documents.rows
    ]  # fmt: skip
    return Table("Documents", columns, rows, words=(1, 2))


def _verdict(row: Mapping[str, Any]) -> Markup:
    kind = "chosen" if row["reason"] is None else "loop"
    return Markup('<span class="badge {}">{}</span>').format(kind, words_of(row["reason"] or KEPT))


def value_of(value: object) -> str:
    """Return a value of a statistic in print: rows hold counts as fractions, too."""
    known = number(value)
    return figure(None if known is None else integer_if_whole(known))


def _histogram(corpus: WatchedCorpus, where: Where) -> dict[str, object]:
    """Bars of kept documents with the dropped ones on them, and the quantiles of both."""
    result = corpus.distribution(where)
    sides: Sequence[tuple[str, Sequence[int]]] = tuple(zip((KEPT, DROPPED), result.counts, strict=True))
    title = words_of(where.statistic)
    note = f"{sum(map(sum, result.counts)):,} documents have a value, {result.num_unmeasured:,} have none. {corpus.sample_note}"
    rows = [(name, value_of(one), value_of(other)) for name, one, other in result.quantiles]
    return {
        "title": title, "svg": histogram_chart(result.edges, sides, title=title), "note": note,
        "table": Table("Values", ("", KEPT, DROPPED), rows),
    }  # fmt: skip
