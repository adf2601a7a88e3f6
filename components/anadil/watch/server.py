"""The server of the pages: `anadil watch`.

It reads what runs leave in a work directory or a store. It writes nothing there but what a person asks for on a page.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from anadil.core.errors import AnadilError, DataError, PreflightError
from anadil.core.install import install
from anadil.core.processes import do_without
from anadil.runtime.environment import WATCH_HOST_VARIABLE
from anadil.watch.page import TOKEN, Access, page, style_sheet
from anadil.watch.pages import answers, documents, run
from anadil.watch.watched import Watched

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PORT = 8765
PORTS = 20
"""Ports that are tried from `PORT` on, where the user names none."""
STATIC = Path(__file__).parent / "static"
MOST_CONNECTIONS = 100
"""Connections of the server. A browser opens six."""
REQUEST_S = 10.0
"""Seconds in which a request has to come, its form with it."""
ANSWER_S = 300.0
"""Seconds in which it has to be answered and the answer taken; one page waits 120 for a process."""
PAGES: tuple[Callable[[Watched], list[Route]], ...] = (
    run.routes, documents.routes, answers.routes,
)  # fmt: skip
"""Each module of pages gives its routes."""


def app(watched: Watched) -> Starlette:
    """The pages as an ASGI application."""
    assets = [Route("/style.css", style_sheet), Route("/watch.js", _script)]
    return Starlette(
        routes=[*assets, *(route for routes in PAGES for route in routes(watched))],
        middleware=[Middleware(Access, token=watched.token, host=watched.host)],
        exception_handlers=dict.fromkeys(
            (AnadilError, HTTPException, OSError, ModuleNotFoundError), _say_error
        ),
    )


def serve(roots: tuple[str, ...], port: int | None, *, say: Callable[[str], object]) -> None:
    """Serve the pages until a signal ends the process.

    Args:
        port: 0: a free one; None: the first free one from `PORT` on.
        say: Gets the address, with its token, once the server listens.
    """
    spare_memory()
    with listener(port) as place:
        number = place.getsockname()[1]
        # Browsers take every name below `localhost` for this machine, and ask nobody for it.
        host = f"anadil-{secrets.token_hex(8)}.localhost"
        watched = Watched(roots=roots, token=secrets.token_urlsafe(24), host=host)
        # uvicorn's log of requests would hold the token.
        settings = uvicorn.Config(
            app(watched), http=Connection, log_config=None, access_log=False, server_header=False,
            lifespan="off",
        )  # fmt: skip
        say(f"http://{host}:{number}/?{TOKEN}={watched.token}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[place])


def spare_memory() -> None:
    """Keep this process small: DuckDB loads pandas, NumPy and PyArrow with it where they are installed, 87 MB."""
    do_without("pandas")


def listener(port: int | None) -> socket.socket:
    """A socket that listens on a port of this machine alone, or where `WATCH_HOST_VARIABLE` says."""
    for number in range(PORT, PORT + PORTS) if port is None else (port,):
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((os.environ.get(WATCH_HOST_VARIABLE) or HOST, number))
            place.listen(64)
        except OSError as error:
            place.close()
            reason = error.strerror
        else:
            return place
    asked = f"port {port}" if port is not None else f"ports {PORT} to {PORT + PORTS - 1}"
    raise PreflightError(
        f"{asked}: cannot be used ({reason}); choose another with --port, or --port 0 for a free one"
    )


def _script(request: Request) -> Response:  # noqa: ARG001  an endpoint
    return FileResponse(STATIC / "watch.js", media_type="text/javascript")


def _say_error(request: Request, error: Exception) -> Response:
    status, text = 404 if isinstance(error, DataError) else 503, str(error)
    if isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    if isinstance(error, ModuleNotFoundError):
        text = f"this page needs {error.name}, which is not installed; {install('laptop')}"
    return page(request, "error.html.j2", {"title": "Nothing to show", "message": text}, status=status)


class Connection(H11Protocol):
    """HTTP of a connection that ends in time, or before where the server has too many: uvicorn itself waits for ever."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]  # as it says itself
        self._end_in(REQUEST_S)
        known = [each for each in self.connections if isinstance(each, Connection) and each.timer]
        if len(known) > MOST_CONNECTIONS:
            # The one whose time is up first: it waits for a request, if any does.
            min(known, key=lambda each: each.timer.when() if each.timer else 0.0).end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """Give the answer time once the request is there. A byte now and then prolongs nothing."""
        waited = self._waits
        super().data_received(data)
        if waited and not self._waits:
            self._end_in(ANSWER_S)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._end_in(REQUEST_S if self._waits else ANSWER_S)

    def end(self) -> None:
        """Close the connection, whatever is under way."""
        self._stop_timer()
        self.transport.abort()

    @property
    def _waits(self) -> bool:
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _end_in(self, seconds: float) -> None:
        self._stop_timer()
        self.timer = self.loop.call_later(seconds, self.end)

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
