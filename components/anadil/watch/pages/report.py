"""The report of a run, the page that `report` has written."""

import re
from functools import partial

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.watch.access import FILE_POLICY
from anadil.watch.data.corpora import uri_of
from anadil.watch.watched import Watched


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/report`."""
    return [Route("/run/{id}/report", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    uri = uri_of(run, "report")
    text = read_verified(uri, finished_manifest(uri, "report"), "report.html").decode(errors="replace")
    back = f'<header style="padding-top:14px"><a href="/run/{escape(run.id)}">\N{LEFTWARDS ARROW} {escape(run.id)}</a></header>'
    # A function, since the text of a replacement has escapes of its own.
    text = re.sub(r"<body[^>]*>", lambda match: match[0] + back, text, count=1)
    # Its style is in it, and no script of it runs.
    return HTMLResponse(text.encode(errors="replace"), headers={"Content-Security-Policy": FILE_POLICY})
