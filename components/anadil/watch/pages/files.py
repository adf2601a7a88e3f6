"""Report, trace and comparison as pages of a run: the same pages that their commands write."""

import re
from functools import partial
from typing import Any

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.core.errors import DataError
from anadil.release.runs import Run
from anadil.watch.access import FILE_POLICY
from anadil.watch.page import page
from anadil.watch.watched import Watched

LISTED = 100
"""Runs that a run can be compared with."""


def routes(watched: Watched) -> list[Route]:
    """Pages below `/run/ID`."""
    pages = {"report": _report, "trace": _trace, "compare": _compare}
    return [Route(f"/run/{{id}}/{name}", partial(each, watched)) for name, each in pages.items()]


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


def _trace(watched: Watched, request: Request) -> Response:
    from anadil.release.trace import lineage
    from anadil.release.trace.page import trace_page

    run = watched.run(request.path_params["id"])
    uri = _artifact(run, "adapter", "merged", "model")
    return as_page(trace_page(lineage.trace(uri, roots=[run.root])), run)


def _compare(watched: Watched, request: Request) -> Response:
    """Compare a run with one that is asked for; without one, list those that it can be compared with."""
    from anadil.release.compare.comparison import compare
    from anadil.release.compare.page import render_comparison

    run = watched.run(request.path_params["id"])
    if name := request.query_params.get("with"):
        other = watched.run(name)
        result: Any = compare(other.id, run.id, work=other.place, root=run.place)
        return as_page(render_comparison(result), run)
    others = [each for each in watched.runs(LISTED) if each.id != run.id and "scores" in each.artifacts]
    return page(request, "compare_with.html.j2", {"title": f"Compare {run.id}", "run": run, "others": others})
