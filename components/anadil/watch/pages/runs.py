"""The first page: all runs."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.watch.page import page
from anadil.watch.watched import Watched

SHOWN = 100
"""Runs that are read."""


def routes(watched: Watched) -> list[Route]:
    """`/`."""
    return [Route("/", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    runs, faults = watched.places(SHOWN)
    view = {
        "title": "Runs",
        "runs": list(zip(runs, runs.rows(), strict=True)),
        "hidden": runs.hidden,
        "faults": faults,
        "roots": watched.roots,
    }
    return page(request, "runs.html.j2", view)
