"""The first page: all runs."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.core.table import Table
from anadil.release.runs import COLUMNS, NUMBERS
from anadil.watch.page import link, page
from anadil.watch.watched import Watched

SHOWN = 100
"""Runs that are read."""


def routes(watched: Watched) -> list[Route]:
    """`/`."""
    return [Route("/", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    runs, faults = watched.places(SHOWN)
    rows = [(link(cells[0], f"/run/{run.id}"), *cells[1:]) for run, cells in zip(runs, runs.rows(), strict=True)]
    note = f"{runs.hidden} older runs are not shown." if runs.hidden else ""
    words = [place for place in range(len(COLUMNS)) if place not in NUMBERS]
    table = Table("Runs", COLUMNS, rows, words=words, note=note)
    view = {"title": "Runs", "table": table, "faults": faults, "roots": watched.roots}
    return page(request, "runs.html.j2", view)
