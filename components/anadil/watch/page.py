"""A page: a template of this room in the look of the report, and what comes with a form."""

import hashlib
import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.page.render import environment, style

FOLDER = Path(__file__).parent
TABS = (("", "Run"), ("data", "Data"), ("answers", "Answers"), ("report", "Report"))
"""Path below `/run/ID` -> name of a page of a run, as its header links them."""
MAX_FORM_BYTES = 65_536
COOKIE = "anadil-watch"
TOKEN = "token"  # noqa: S105  name of the parameter
READING = frozenset({"GET", "HEAD"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FILE_POLICY = (
    "sandbox allow-same-origin; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Policy of a page that is a file of a store: its style is in it, and no script of it may run."""
HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` a browser sends a form of ours with the origin `null`, which is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SHARE = 0.004
"""Most of the machine's CPU time that a page may take by asking again, so that a training step is not held up."""
LONGEST_WAIT_S = 20.0
"""The first page of a long run reads its whole log; the next ones read what is new."""
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def page(request: Request, template: str, view: Mapping[str, object], *, status: int = 200) -> Response:
    """Fill a template of `templates`. It extends `watch.html.j2`, and text from outside is escaped whatever it is.

    `view` has `title`, `run` where the page is one of a run, and what the template shows.
    """
    text = environment(FOLDER / "templates").get_template(template).render(
        {"run": None, "tabs": TABS, "path": request.url.path, "version": __version__, **view}
    )  # fmt: skip
    # JSON can hold halves of surrogate pairs, which UTF-8 cannot.
    body = text.encode(errors="replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304)
    return HTMLResponse(body, status, {"ETag": tag})


async def form_of(request: Request) -> dict[str, str]:
    """Fields of a form by name; of a field that is given twice, the last."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise RecipeError(f"the form has more than {MAX_FORM_BYTES:,} bytes; shorten it")
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def place_of(text: str) -> int:
    """Read a place in a list, of an address. Other text means the beginning."""
    # Python refuses to read thousands of digits.
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def link(text: str, address: str) -> Markup:
    """A cell of a table that leads somewhere."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def style_sheet(request: Request) -> Response:  # noqa: ARG001  an endpoint
    """The report's style sheet, and what only these pages have."""
    sheet = (FOLDER / "static" / "watch.css").read_text(encoding="utf-8")
    return Response(style() + sheet, media_type="text/css")


class Access:
    """Middleware that lets through what may be read, and gives every answer its security headers."""

    def __init__(self, app: App, *, token: str, host: str) -> None:
        # Cookies know no port: one of `localhost` would go to every server of this machine. A site that turns its own
        # name to 127.0.0.1 (DNS rebinding) does not know this name either.
        self._app, self._token, self._host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refused request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        begin = time.process_time()

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                wait = (time.process_time() - begin) / (SHARE * (os.cpu_count() or 1))
                headers["X-Wait-S"] = f"{min(wait, LONGEST_WAIT_S):.1f}"
                headers.setdefault("Content-Security-Policy", POLICY)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(Request(scope)) or self._app
        await answer(scope, receive, send_safely)

    def _answer(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if _host_name(host) != self._host:
            return _refusal(
                f"{host or 'no host'}: not the name of this server; open the address that `anadil watch` has printed"
            )
        if request.method not in READING:
            if request.headers.get("origin") != f"http://{host}":
                return _refusal("the request comes from another site; use the page itself")
        elif given := request.query_params.get(TOKEN):
            return (
                self._welcome(request)
                if self._is_token(given)
                else _refusal("the token is of another server")
            )
        if not self._is_token(request.cookies.get(COOKIE, "")):
            return _refusal("open the address that `anadil watch` has printed: it ends in a token")
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """Give the cookie, and go on without the token in the address.

        A redirect would go on as a request of the site that has the link, for which a strict cookie is not sent.
        """
        path = "/" + re.sub(r"[^\w./~-]", "", request.url.path).lstrip("/")
        page = HTMLResponse(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={path}"><link rel="icon" href="data:,"><title>anadil</title>'
        )
        page.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        return page


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refusal(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 403)
