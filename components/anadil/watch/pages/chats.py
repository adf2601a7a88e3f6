"""Chats of a run, with what of them is learnt, and the rows that are no chats."""

from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.core.errors import AnadilError
from anadil.core.table import Table
from anadil.report.format import figure, percent, words_of
from anadil.report.read import list_of, table_of
from anadil.text.drop_reasons import DROP_REMEDIES
from anadil.watch.corpora import uri_of
from anadil.watch.data.shown_chats import ShownChats, audit_of, chats_of, marked_spans
from anadil.watch.page import page
from anadil.watch.watched import Watched

ADAPTER = "adapter"
COLUMNS = ("reason", "rows", "first", "remedy")


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/chats`."""
    return [Route("/run/{id}/chats", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    view: dict[str, object] = {"title": "Chats", "run": run, "lead": "", "fault": ""}
    if ADAPTER in run.artifacts:
        adapter = uri_of(run, ADAPTER)
        audit = audit_of(adapter)
        start, words = request.query_params.get("from", "0"), request.query_params.get("words", "").strip()
        shown: ShownChats | None = None
        try:
            shown = chats_of(adapter, int(start) if start.isdecimal() else 0, words=words)
        except AnadilError as error:  # the files of chats may lie on another machine
            view["fault"] = str(error)
        # The audit is in the artifact, and shows also where the files are not.
        view |= {
            "lead": (
                f"{figure(audit.get('kept'))} of {figure(audit.get('rows'))} rows are taught. Of {figure(audit.get('tokens'))} "
                f"tokens {percent(audit.get('trained_share'))} are trained."
            ),
            "samples": [marked_spans(str(sample)) for sample in list_of(audit.get("samples"))],
            "dropped": _dropped(table_of(audit.get("dropped")), table_of(audit.get("dropped_first"))),
            "shown": shown, "words": words, "next": _next(shown, run.id, words),
        }  # fmt: skip
    return page(request, "chats.html.j2", view)


def _dropped(counts: dict[str, object], places: dict[str, object]) -> Table:
    remedies: dict[str, str] = {str(reason): remedy for reason, remedy in DROP_REMEDIES.items()}
    rows = [
        (
            words_of(reason),
            figure(count),
            ", ".join(map(str, list_of(places.get(reason)))),
            remedies.get(reason, ""),
        )
        for reason, count in sorted(counts.items(), key=lambda item: -int(str(item[1])))
    ]
    return Table("Rows that are not taught", COLUMNS, rows, words=(2, 3))


def _next(shown: ShownChats | None, run: str, words: str) -> str:
    if shown is None or shown.next is None:
        return ""
    return f"/run/{run}/chats?{urlencode({'from': shown.next} | ({'words': words} if words else {}))}"
