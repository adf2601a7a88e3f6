"""One document: its text, its values beside the limits, what each step of clean did with it, and its label."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from anadil.core.errors import AnadilError
from anadil.core.table import Table
from anadil.report.format import clip, setting, words_of
from anadil.report.read import table_of
from anadil.text.filter_rules import RULES
from anadil.watch.corpora import WatchedCorpus, corpus_of
from anadil.watch.data.children import ExplainedDocument, explain_document
from anadil.watch.data.labels import LABELS, label_of, labels_folder, num_labels, set_label
from anadil.watch.data.stats_rows import Place
from anadil.watch.data.texts import kept_document, rejected_sample
from anadil.watch.page import form_of, page
from anadil.watch.pages.documents import value_of
from anadil.watch.watched import Watched

MAX_TEXT = 100_000
"""Characters of a text on the page."""
PLACE = "/run/{id}/data/{corpus}/document/{place}"
FACTS = ("source", "id", "host", "licence", "bytes_in", "bytes_out", "words", "cluster_size", "personal_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
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
    row = corpus.rows.row(Place.of(request.path_params["place"]))
    folder = labels_folder(watched.roots)
    place = f"/run/{run.id}/data/{corpus.word}"
    # Some seconds in a process of its own, so only where it is asked for.
    explained, fault = _explained(corpus, row) if request.query_params.get("steps") else (None, "")
    facts = [(words_of(name), _cell(row[name])) for name in FACTS if row.get(name) not in (None, "", 0)]
    view = {
        "title": str(row["source"]), "run": run, "place": place, "here": request.url.path,
        "verdict": _verdict(row), "is_kept": row["reason"] is None, "shown": text_of(corpus, row),
        "facts": Table("Facts", ("", "value"), facts), "values": _values(corpus, row),
        "language": str(corpus.stats.get("language") or ""),
        "explained": explained, "fault": fault, "steps_asked": bool(request.query_params.get("steps")),
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
    row = corpus.rows.row(Place.of(request.path_params["place"]))
    shown = text_of(corpus, row)
    if shown is None:
        explained, fault = _explained(corpus, row)
        shown = ShownText(text=explained.steps[-1].text, note="") if explained else None
        if fault and label:
            raise AnadilError(f"{fault}; a label without its text teaches nothing")
    set_label(labels_folder(watched.roots), row | {"text": shown.text if shown else None}, label)


def text_of(corpus: WatchedCorpus, row: Mapping[str, Any]) -> ShownText | None:
    """Return the text of a document as the corpus holds it; None for a dropped one that is not among the samples."""
    if row["reason"] is None:
        if stored := kept_document(corpus.uri, row["id"]):
            part, document = stored
            note = "As it is kept, for training." if part == "train" else "As it is kept, held out."
            return ShownText(text=str(document["text"])[:MAX_TEXT], note=note)
        return None
    if sample := rejected_sample(corpus.uri, row["reason"], row["source"]):
        return ShownText(text=str(sample.get("text") or "")[:MAX_TEXT], note="As the rules judged it.")
    if row.get("duplicate_of") and (other := kept_document(corpus.uri, row["duplicate_of"])):
        return ShownText(
            text=str(other[1]["text"])[:MAX_TEXT],
            note=f"Text of the document that stands for it, {other[1]['source']}. Its own is a duplicate.",
        )
    return None


def _explained(corpus: WatchedCorpus, row: Mapping[str, Any]) -> tuple[ExplainedDocument | None, str]:
    """Return what clean does with the record, or why that cannot be said."""
    try:
        return explain_document(row["source"], corpus.manifest.recipe), ""
    except AnadilError as error:
        return None, str(error)


def _verdict(row: Mapping[str, Any]) -> str:
    if row["reason"] is None:
        alike = int(row.get("cluster_size") or 0)
        return f"Kept. It stands for {alike:,} documents that are alike." if alike > 1 else "Kept."
    also = [name.removeprefix("fails_") for name, value in row.items() if name.startswith("fails_") and value]
    others = [words_of(name) for name in also if name != row["reason"]]
    more = f" It also breaks {', '.join(others)}." if others else ""
    return f"Dropped: {words_of(row['reason'])}.{more}"


def _values(corpus: WatchedCorpus, row: Mapping[str, Any]) -> Table:
    """A row for each statistic that was measured, with its limits; those that break one stand first."""
    limits = table_of(corpus.stats.get("limits"))
    rows: list[tuple[bool, tuple[str, ...]]] = []
    for name in corpus.rows.statistics:
        value = row.get(name)
        if value is None or value != value or name in FACTS:  # noqa: PLR0124  nan is no value
            continue
        bounds = [(rule, limits.get(rule.limit)) for rule in RULES if rule.measure == name]
        known = [(rule, bound) for rule, bound in bounds if isinstance(bound, int | float)]
        breaks = [value < bound if rule.is_least else value > bound for rule, bound in known]
        said = "; ".join(
            f"{'at least' if rule.is_least else 'at most'} {setting(bound)}" for rule, bound in known
        )
        rows.append(
            (any(breaks), (words_of(name), value_of(value), said, "breaks it" if any(breaks) else ""))
        )
    rows.sort(key=lambda item: not item[0])
    return Table(
        "Values and limits", ("statistic", "value", "limit", ""), [cells for _, cells in rows], words=(2, 3)
    )


def _cell(value: object) -> str:
    return clip(value, 300) if isinstance(value, str) else value_of(value)
