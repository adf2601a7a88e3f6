"""Tokens of a text by every candidate tokenizer."""

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.core.table import Table
from anadil.release.runs import Run
from anadil.report.format import figure
from anadil.watch.corpora import corpus_of, uri_of
from anadil.watch.data.children import cut_text
from anadil.watch.data.stats_rows import Place
from anadil.watch.page import form_of, page
from anadil.watch.pages.document import text_of
from anadil.watch.watched import Watched

TOKENIZER = "tokenizer"
MAX_CHARS = 4_000
"""Characters of a text that is cut: more is not read by anybody."""
MAX_PIECES = 2_000
COLUMNS = ("tokenizer", "rows", "tokens", "tokens per word", "bytes per token")


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/tokens`."""
    return [
        Route("/run/{id}/tokens", partial(_show, watched)),
        Route("/run/{id}/tokens", partial(_cut, watched), methods=["POST"]),
    ]


def _show(watched: Watched, request: Request) -> Response:
    run, given = watched.run(request.path_params["id"]), request.query_params
    text = ""
    if given.get("corpus") and given.get("document"):
        corpus = corpus_of(run, given["corpus"])
        shown = text_of(corpus, corpus.rows.row(Place.of(given["document"])))
        text = shown.text if shown else ""
    return _page(request, run, text)


async def _cut(watched: Watched, request: Request) -> Response:
    fields = await form_of(request)
    run = await run_in_threadpool(watched.run, request.path_params["id"])
    return await run_in_threadpool(_page, request, run, fields.get("text", ""))


def _page(request: Request, run: Run, text: str) -> Response:
    # Whole documents take seconds to cut, and nobody reads their pieces.
    shown = text.strip()[:MAX_CHARS]
    rows: list[dict[str, Any]] = []
    if TOKENIZER in run.artifacts and shown:
        rows = cut_text(uri_of(run, TOKENIZER), shown)
    cells = [
        (str(row["name"]), figure(row["rows"]), figure(row["tokens"]), figure(row["tokens_per_word"]), figure(row["bytes_per_token"]))
        for row in rows
    ]  # fmt: skip
    view = {
        "title": "Tokens", "run": run, "text": shown, "has_tokenizer": TOKENIZER in run.artifacts, "max_chars": MAX_CHARS,
        "is_cut": len(text.strip()) > MAX_CHARS, "table": Table("Candidates", COLUMNS, cells),
        "cuts": [(str(row["name"]), row["pieces"][:MAX_PIECES]) for row in rows],
    }  # fmt: skip
    return page(request, "tokens.html.j2", view)
