"""One document: its text, its values beside the limits, what each step of clean did with it, and its label."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anadil.core.errors import AnadilError
from anadil.core.format import number
from anadil.core.table import Table
from anadil.report.format import clip, setting, words_of
from anadil.report.read import table_of
from anadil.text.filter_rules import RULES
from anadil.watch.data.corpora import VERDICT, Place, WatchedCorpus, corpus_of
from anadil.watch.data.one_document import (
    LABELS,
    Step,
    explain_document,
    kept_document,
    label_of,
    labels_folder,
    num_labels,
    rejected_sample,
    set_label,
)
from anadil.watch.page import form_of, page
from anadil.watch.pages.documents import value_of
from anadil.watch.watched import Watched

MAX_TEXT = 100_000
"""Characters of a text on the page."""
PLACE = "/run/{id}/data/{corpus}/document/{place}"
FACTS = ("source", "id", "host", "licence", "bytes_in", "bytes_out", "words", "cluster_size", "personal_data")


class ShownText(NamedTuple):
    """The text of a document, and where it stands."""

    text: str
    note: str


def routes(watched: Watched) -> list[Route]:
    """The page of a document, and the form that labels it."""
    return [
        Route(PLACE, partial(_show, watched)),
        Route(f"{PLACE}/label", partial(_label, watched), methods=["POST"]),
    ]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    row = corpus.row(Place.of(request.path_params["place"]))
    folder = labels_folder(watched.roots)
    place = f"/run/{run.id}/data/{corpus.word}"
    # Some seconds in a process of its own, so only where it is asked for.
    steps, fault = _explained(corpus, row) if request.query_params.get("steps") else ((), "")
    facts = [(words_of(name), _cell(row[name])) for name in FACTS if row.get(name) not in (None, "", 0)]
    view = {
        "title": str(row["source"]), "run": run, "place": place, "here": request.url.path,
        "verdict": _verdict(row), "is_kept": row["reason"] is None, "shown": _text_of(corpus, row),
        "facts": Table("Facts", ("", "value"), facts), "values": _values(corpus, row),
        "language": str(corpus.stats.get("language") or ""),
        "steps": steps, "fault": fault,
        "label": label_of(folder, str(row["id"])), "labels": LABELS, "num_labels": num_labels(folder), "folder": folder,
    }  # fmt: skip
    return page(request, "document.html.j2", view)


async def _label(watched: Watched, request: Request) -> Response:
    fields = await form_of(request)
    await run_in_threadpool(_write_label, watched, request, fields.get("label", ""))
    # The page again, so that reloading it labels nothing twice.
    return RedirectResponse(request.url.path.removesuffix("/label"), 303)


def _write_label(watched: Watched, request: Request, label: str) -> None:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    row = corpus.row(Place.of(request.path_params["place"]))
    shown = _text_of(corpus, row)
    if shown is None:
        steps, fault = _explained(corpus, row)
        shown = ShownText(steps[-1].text, "") if steps else None
        if fault and label:
            raise AnadilError(f"{fault}; a label without its text teaches nothing")
    set_label(labels_folder(watched.roots), row | {"text": shown.text if shown else None}, label)


def _text_of(corpus: WatchedCorpus, row: Mapping[str, Any]) -> ShownText | None:
    """Return the text of a document as the corpus holds it; None for a dropped one that is not among the samples."""
    if row["reason"] is None:
        if stored := kept_document(corpus.uri, row["id"]):
            part, document = stored
            note = "As it is kept, for training." if part == "train" else "As it is kept, held out."
            return ShownText(str(document["text"])[:MAX_TEXT], note)
    elif sample := rejected_sample(corpus.uri, row["reason"], row["source"]):
        return ShownText(str(sample.get("text") or "")[:MAX_TEXT], "As the rules judged it.")
    elif row.get("duplicate_of") and (other := kept_document(corpus.uri, row["duplicate_of"])):
        note = f"Text of the document that stands for it, {other[1]['source']}. Its own is a duplicate."
        return ShownText(str(other[1]["text"])[:MAX_TEXT], note)
    return None


def _explained(corpus: WatchedCorpus, row: Mapping[str, Any]) -> tuple[Sequence[Step], str]:
    """Return the record after each step of clean, or why that cannot be said."""
    try:
        return explain_document(row["source"], corpus.manifest.recipe), ""
    except AnadilError as error:
        return (), str(error)


def _verdict(row: Mapping[str, Any]) -> str:
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
