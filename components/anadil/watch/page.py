"""A page: a template of this room in the look of the report, and what comes with a form."""

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from anadil import __version__
from anadil.core.errors import RecipeError
from anadil.report.render import environment, style

FOLDER = Path(__file__).parent
TABS = (("", "Run"), ("data", "Data"), ("answers", "Answers"), ("report", "Report"))
"""Path below `/run/ID` -> name of a page of a run, as its header links them."""
MAX_FORM_BYTES = 65_536


def page(request: Request, template: str, view: Mapping[str, object], *, status: int = 200) -> Response:
    """Fill a template of `templates`. It extends `watch.html.j2`, and text from outside is escaped whatever it is.

    Args:
        request: Gives the path, by which the header marks the page.
        template: Name of the file.
        view: `title`; `run` where the page is one of a run; and what the template shows.
        status: Of HTTP.
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


def link(text: str, address: str) -> Markup:
    """A cell of a table that leads somewhere."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def style_sheet(request: Request) -> Response:  # noqa: ARG001  an endpoint
    """The report's style sheet, and what only these pages have."""
    return Response(_style(), media_type="text/css")


@functools.cache
def _style() -> str:
    return style() + (FOLDER / "static" / "watch.css").read_text(encoding="utf-8")
