"""Report and plan as pages of a run: the same pages that their commands write."""

import re
from functools import partial

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from anadil.artifacts.artifact import finished_manifest
from anadil.artifacts.find import read_verified
from anadil.core.errors import DataError
from anadil.recipe.load import load_recipe
from anadil.release.runs import Run
from anadil.runtime.run_record import recipe_of
from anadil.watch.access import FILE_POLICY
from anadil.watch.watched import Watched


def routes(watched: Watched) -> list[Route]:
    """Pages below `/run/ID`."""
    pages = {"report": _report, "plan": _plan}
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


def _plan(watched: Watched, request: Request) -> Response:
    """Plan the run's recipe for the machines that it names, or for this one."""
    from anadil.plan.instances import machine, this_machine
    from anadil.plan.model_shape import NotPlannedError
    from anadil.plan.plan import build_plan, choose_layout, request_for
    from anadil.preflight.text_size import text_of
    from anadil.report.plan_page import render_plan

    run = watched.run(request.path_params["id"])
    recipe = load_recipe(_recipe_text(run))
    kind = recipe.cluster.instance
    try:
        asked = request_for(
            run.recipe or run.id, recipe, machine(kind) if kind else this_machine(), recipe.cluster.nodes if kind else 1,
            text_of(recipe, run.root),
        )  # fmt: skip
        text = render_plan(build_plan(asked, choose_layout(asked)))
    except NotPlannedError as error:
        raise DataError(f"{run.id}: cannot be planned: {error}") from None
    return as_page(text, run)


def _recipe_text(run: Run) -> str:
    import json

    recipe = recipe_of(run.place, run.id) or recipe_of(run.root, run.id)
    if not recipe:
        raise DataError(f"{run.id}: its recipe was not kept; the run is of an earlier release")
    return json.dumps(recipe)
