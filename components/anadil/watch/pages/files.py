"""The report as a page of a run: the same page that its stage writes."""

import re
from functools import partial

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.core.errors import DataError
from anadil.release.runs import Run
from anadil.watch.access import FILE_POLICY
from anadil.watch.watched import Watched


def routes(watched: Watched) -> list[Route]:
    """Pages below `/run/ID`."""
    return [Route("/run/{id}/report", partial(_report, watched))]


def as_page(text: str, run: Run) -> Response:
    """A page that is a file, with the way back; its style is in it, and no script of it runs."""
    back = f'<header style="padding-top:14px"><a href="/run/{escape(run.id)}">\N{LEFTWARDS ARROW} {escape(run.id)}</a></header>'
    # A function, since the text of a replacement has escapes of its own.
    text = re.sub(r"<body[^>]*>", lambda match: match[0] + back, text, count=1)
    return HTMLResponse(text.encode(errors="replace"), headers={"Content-Security-Policy": FILE_POLICY})


def _artifact(run: Run, *words: str) -> str:
    for word in words:
        if uri := run.artifacts.get(word):
            return uri
    raise DataError(f"{run.id}: has no {words[0]} yet; this page needs one")


def _report(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    uri = _artifact(run, "report")
    content = read_verified(uri, finished_manifest(uri, "report"), "report.html")
    return as_page(content.decode(errors="replace"), run)
