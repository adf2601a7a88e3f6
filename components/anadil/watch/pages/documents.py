"""The documents of a corpus: counts by rule, host and file, a list under conditions, the distribution of a statistic."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anadil.core.errors import AnadilError, DataError
from anadil.core.format import DASH, counted, human_bytes, integer_if_whole, number
from anadil.core.table import Table
from anadil.page.charts import histogram_chart
from anadil.page.format import clip, figure, percent, ratio, setting, words_of
from anadil.page.values import named_tables, table_of
from anadil.report.corpus_view import drops
from anadil.text.filter_rules import RULES
from anadil.watch.data import one_document
from anadil.watch.data.corpora import (
    DROPPED,
    GROUPS,
    KEPT,
    VERDICT,
    Documents,
    Place,
    WatchedCorpus,
    Where,
    corpora_of,
    corpus_of,
)
from anadil.watch.page import form_of, link, page, place_of
from anadil.watch.watched import Watched

TOP = 15
"""Rows of tables beside the list."""
ORDERS = ("largest", "least")
MAX_TEXT = 100_000
"""Characters of a text on the page."""
PLACE = "/run/{id}/data/{corpus}/document/{place}"
FACTS = ("source", "id", "host", "licence", "bytes_in", "bytes_out", "words", "cluster_size", "personal_data")


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/data`, `/run/ID/data/CORPUS` for each corpus, the page of a document, and the form that labels it."""
    return [
        Route("/run/{id}/data", partial(_choose, watched)),
        Route("/run/{id}/data/{corpus}", partial(_show, watched)),
        Route(PLACE, partial(_show_document, watched)),
        Route(f"{PLACE}/label", partial(_label, watched), methods=["POST"]),
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
    by, order, sort = (given.get(name, "") for name in ("by", "order", "sort"))
    place = f"/run/{run.id}/data/{corpus.word}"
    view = {
        "title": f"Documents of {corpus.word}", "run": run, "place": place, "lead": _lead(corpus),
        "fields": {"by": by, "order": order, "sort": sort}, "where": where, "orders": ORDERS, "groups": GROUPS,
        "reasons": [KEPT, DROPPED, *(name for name, _ in drops(corpus.stats))],
        "rules": corpus.rules, "statistics": corpus.statistics,
        "histogram": _histogram(corpus, where) if where.statistic else None,
        "counts": [] if where.given else _counts(corpus, place),
        "by_group": _by_group(corpus, by, where, place) if by in GROUPS else None,
        **_list(corpus, where, given.get("from", ""), place, (sort or where.statistic, order)),
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


def _list(
    corpus: WatchedCorpus, where: Where, start: str, place: str, order: tuple[str, str]
) -> dict[str, object]:
    """The documents of the page, how many there are, and the address of the next page."""
    is_ordered = bool(order[0]) and order[1] in ORDERS
    if is_ordered:
        documents = corpus.ordered(where, order[0], largest=order[1] == ORDERS[0], start=place_of(start))
    else:
        documents = corpus.documents(where, Place.of(start) if start else Place())
    is_all = where.given.keys() <= {"statistic"}
    num = corpus.num_rows if is_all else corpus.num_matches(where)
    note = f" {corpus.sample_note}" if corpus.sample_note and not is_all else ""
    sorting = {"sort": order[0], "order": order[1]} if is_ordered else {}
    more = where.given | sorting | {"from": str(documents.next)}
    first = place_of(start) if is_ordered else 0
    shown = (
        f" {first + 1:,} to {first + len(documents.rows):,} are shown."
        if is_ordered and documents.rows
        else ""
    )
    return {
        "documents": _table(corpus, documents, where, place, order), "num": f"{counted(num, 'document')}.{note}{shown}",
        "next": f"{place}?{urlencode(more)}" if documents.next else "",
        "first": f"{place}?{urlencode(where.given | sorting)}" if start else "",
    }  # fmt: skip


def _table(
    corpus: WatchedCorpus, documents: Documents, where: Where, place: str, order: tuple[str, str]
) -> Table:
    columns = {"source": "document", "reason": "verdict", "": "text", "host": "host"}
    columns |= {where.statistic: words_of(where.statistic)} if where.statistic else {}
    columns |= {"words": "words", "bytes_out": "size"}
    texts = one_document.beginnings(corpus.uri, documents.rows)
    language = str(corpus.stats.get("language") or "")
    rows = []
    for row in documents.rows:
        text = texts.get(row["id"]) or DASH
        shown = Markup('<div class="excerpt" lang="{}" dir="auto">{}</div>').format(language, text)
        cells = {name: value_of(row.get(name)) for name in columns if name} | {
            "source": link(row["source"], f"{place}/document/{row['place']}"), "reason": _verdict(row), "": shown,
            "host": row["host"] or "", "bytes_out": human_bytes(row.get("bytes_out")),
        }  # fmt: skip
        rows.append(tuple(cells[name] for name in columns))
    heads = [_head(name, words, where, place, order) for name, words in columns.items()]
    is_dropped = [
        bool(row["reason"] and not row["duplicate_of"]) for row in documents.rows if row["id"] not in texts
    ]
    reasons = {
        "of dropped documents some are kept for each rule": is_dropped.count(True),
        f"a list reads for {one_document.BUDGET_S:.0f} s, and {one_document.REMOTE_PARTS} files of a store. The page of a document has its text": is_dropped.count(False),
    }  # fmt: skip
    notes = (f"{num} texts are not shown: {reason}." for reason, num in reasons.items() if num)
    return Table("Documents", heads, rows, words=(1, 2, 3), note=" ".join(notes))


def _head(name: str, words: str, where: Where, place: str, order: tuple[str, str]) -> str:
    """Name of a column. Where rows have it, it orders all documents by it, and by a second click the other way round."""
    if not name:
        return words
    current = order[1] if order[0] == name else ""
    following = ORDERS[current == ORDERS[0]]
    mark = {ORDERS[0]: " \N{DOWNWARDS ARROW}", ORDERS[1]: " \N{UPWARDS ARROW}"}.get(current, "")
    address = f"{place}?{urlencode(where.given | {'sort': name, 'order': following})}"
    return Markup('<a href="{}" title="order by it">{}</a>{}').format(address, words, mark)


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


class ShownText(NamedTuple):
    """The text of a document, and where it stands."""

    text: str
    note: str


def _show_document(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    row = corpus.row(Place.of(request.path_params["place"]))
    folder = one_document.labels_folder(watched.roots)
    place = f"/run/{run.id}/data/{corpus.word}"
    # Some seconds in a process of its own, so only where it is asked for.
    steps, fault = _explained(corpus, row) if request.query_params.get("steps") else ((), "")
    facts = [(words_of(name), _cell(row[name])) for name in FACTS if row.get(name) not in (None, "", 0)]
    view = {
        "title": str(row["source"]), "id": row["id"], "run": run, "place": place, "here": request.url.path,
        "verdict": _reason_words(row), "is_kept": row["reason"] is None, "shown": _text_of(corpus, row),
        "facts": Table("Facts", ("", "value"), facts), "values": _values(corpus, row),
        "language": str(corpus.stats.get("language") or ""),
        "steps": steps, "fault": fault,
        "label": one_document.label_of(folder, str(row["id"])), "labels": one_document.LABELS, "num_labels": one_document.num_labels(folder), "folder": folder,
    }  # fmt: skip
    return page(request, "document.html.j2", view)


async def _label(watched: Watched, request: Request) -> Response:
    fields = await form_of(request)
    await run_in_threadpool(_write_label, watched, request, fields)
    # The page again, so that reloading it labels nothing twice.
    return RedirectResponse(request.url.path.removesuffix("/label"), 303)


def _write_label(watched: Watched, request: Request, fields: Mapping[str, str]) -> None:
    label = fields.get("label", "")
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    row = corpus.row(Place.of(request.path_params["place"]))
    if fields.get("id", row["id"]) != row["id"]:
        raise DataError(
            f"{row['source']}: the run has another corpus since this page was shown; open the document again"
        )
    shown = _text_of(corpus, row)
    if shown is None:
        steps, fault = _explained(corpus, row)
        shown = ShownText(steps[-1].text, "") if steps else None
        if fault and label:
            raise AnadilError(f"{fault}; a label without its text teaches nothing")
    one_document.set_label(
        one_document.labels_folder(watched.roots), row | {"text": shown.text if shown else None}, label
    )


def _text_of(corpus: WatchedCorpus, row: Mapping[str, Any]) -> ShownText | None:
    """Return the text of a document as the corpus holds it; None for a dropped one that is not among the samples."""
    if row["reason"] is None:
        if stored := one_document.kept_document(corpus.uri, row["id"]):
            part, document = stored
            note = "As it is kept, for training." if part == "train" else "As it is kept, held out."
            return ShownText(str(document["text"])[:MAX_TEXT], note)
    elif sample := one_document.rejected_sample(corpus.uri, row["reason"], row["source"], row["id"]):
        return ShownText(str(sample.get("text") or "")[:MAX_TEXT], "As the rules judged it.")
    elif row.get("duplicate_of") and (other := one_document.kept_document(corpus.uri, row["duplicate_of"])):
        note = f"Text of the document that stands for it, {other[1]['source']}. Its own is a duplicate."
        return ShownText(str(other[1]["text"])[:MAX_TEXT], note)
    return None


def _explained(corpus: WatchedCorpus, row: Mapping[str, Any]) -> tuple[Sequence[one_document.Step], str]:
    """Return the record after each step of clean, or why that cannot be said."""
    try:
        return one_document.explain_document(row["source"], row["id"], corpus.manifest.recipe), ""
    except AnadilError as error:
        return (), str(error)


def _reason_words(row: Mapping[str, Any]) -> str:
    if row["reason"] is None:
        alike = int(row.get("cluster_size") or 0)
        return f"Kept. It stands for {alike:,} documents that are alike." if alike > 1 else "Kept."
    also = [name.removeprefix(VERDICT) for name, value in row.items() if name.startswith(VERDICT) and value]
    others = [words_of(name) for name in also if name != row["reason"]]
    more = f" It also breaks {', '.join(others)}." if others else ""
    return f"Dropped: {words_of(row['reason'])}.{more}"


def _values(corpus: WatchedCorpus, row: Mapping[str, Any]) -> Table:
    """A row for each statistic that was measured, with its limits; a value that breaks one stands first."""
    limits = table_of(corpus.stats.get("limits"))
    rows: list[tuple[str, ...]] = []
    for name in corpus.statistics:
        if (value := number(row.get(name))) is None or name in FACTS:
            continue
        bounds = [(rule.is_least, number(limits.get(rule.limit))) for rule in RULES if rule.measure == name]
        known = [(is_least, bound) for is_least, bound in bounds if bound is not None]
        breaks = any(value < bound if is_least else value > bound for is_least, bound in known)
        said = "; ".join(
            f"{'at least' if is_least else 'at most'} {setting(bound)}" for is_least, bound in known
        )
        rows.append((words_of(name), value_of(value), said, "breaks it" if breaks else ""))
    rows.sort(key=lambda cells: not cells[-1])
    return Table("Values and limits", ("statistic", "value", "limit", ""), rows, words=(2, 3))


def _cell(value: object) -> str:
    return clip(value, 300) if isinstance(value, str) else value_of(value)
