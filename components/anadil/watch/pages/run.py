"""The page of a run: where it stands."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.watch.page import page
from anadil.watch.watched import Watched


def routes(watched: Watched) -> list[Route]:
    """`/run/ID`."""
    return [Route("/run/{id}", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    return page(request, "run.html.j2", {"title": run.recipe or run.id, "run": run})
