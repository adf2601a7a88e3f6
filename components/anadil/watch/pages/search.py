"""Kept documents that hold some words."""

from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.watch.corpora import corpus_of
from anadil.watch.data.texts import Hits, search_texts
from anadil.watch.page import page
from anadil.watch.watched import Watched


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/data/CORPUS/search`."""
    return [Route("/run/{id}/data/{corpus}/search", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    words = request.query_params.get("words", "").strip()
    place = f"/run/{run.id}/data/{corpus.word}"
    hits = search_texts(corpus.uri, words, request.query_params.get("from", "")) if words else None
    view = {
        "title": f"Search {corpus.word}", "run": run, "place": place, "words": words, "hits": hits,
        "language": str(corpus.stats.get("language") or ""), "next": _next(hits, place, words),
    }  # fmt: skip
    return page(request, "search.html.j2", view)


def _next(hits: Hits | None, place: str, words: str) -> str:
    return f"{place}/search?{urlencode({'words': words, 'from': hits.next})}" if hits and hits.next else ""
