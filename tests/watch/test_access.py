"""Who may read the pages."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from anadil.core.errors import PreflightError
from anadil.watch.server import listener
from tests.kit.watching import HOST, TOKEN, Pages, put_record, watching


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    root = tmp_path_factory.mktemp("work")
    put_record(root)
    with watching(root) as pages:
        yield pages


@pytest.mark.parametrize("path", ["/", "/style.css", "/watch.js", "/run/20260101-120000-1", "/nothing"])
def test_nothing_is_read_without_the_token(pages: Pages, path: str) -> None:
    assert pages.ask(path).status in (200, 404)
    assert pages.ask(path, Cookie="").status == 403
    assert pages.ask(path, Cookie=pages.cookie[:-1]).status == 403
    assert pages.ask(f"{path}?token=another").status == 403


def test_the_first_address_gives_a_cookie_and_goes_on_without_the_token(pages: Pages) -> None:
    answer = pages.ask(f"/run/20260101-120000-1?token={TOKEN}", Cookie="")

    assert answer.status == 200
    assert answer.headers["Set-Cookie"] == f"{pages.cookie}; HttpOnly; Path=/; SameSite=strict"
    assert 'content="0;url=/run/20260101-120000-1"' in answer.text
    assert TOKEN not in answer.text


def test_the_first_address_leads_to_no_other_site(pages: Pages) -> None:
    answer = pages.ask(f"//evil.example/%22%3E%3Cscript%3E?token={TOKEN}")

    assert 'content="0;url=/evil.example/script"' in answer.text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost", "127.0.0.1:9", "another.localhost", f"{HOST}.evil.example", "", "[::1", f"{HOST}@x.example"],
)  # fmt: skip
def test_cookies_that_other_servers_of_the_machine_or_other_sites_get_open_nothing(
    pages: Pages, host: str
) -> None:
    answer = pages.ask(Host=host)

    assert answer.status == 403
    assert "not the name of this server; open the address that `anadil watch` has printed" in answer.text


def test_a_forwarded_port_has_another_number(pages: Pages) -> None:
    assert pages.ask(Host=f"{HOST}:9000").status == 200


def test_half_requests_end_and_hold_nobody_up(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.watch.server.REQUEST_S", 1.0)
    head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\nOrigin: http://{HOST}\r\nCookie: {pages.cookie}\r\n"
    halves = (b"", b"GET / HTTP/1.1\r\n", f"{head}Content-Length: 9\r\n\r\nlabel".encode())
    links = [socket.create_connection(("127.0.0.1", pages.port), 20) for _ in range(150)]
    for number, link in enumerate(links):
        with suppress(ConnectionError):
            link.sendall(halves[number % 3])

    assert pages.ask().status == 200
    begin = time.monotonic()
    for link in links:
        with link, suppress(ConnectionError):
            while link.recv(4_096):
                pass
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", f"http://{HOST}:1", f"https://{HOST}"])
def test_no_other_origin_changes_anything(pages: Pages, origin: str) -> None:
    answer = pages.ask("/", "", Origin=origin)

    assert answer.status == 403
    assert answer.text == "the request comes from another site; use the page itself\n"
    assert pages.ask("/", "").status == 405, "the page itself has no such form"


def test_every_answer_forbids_foreign_scripts_and_frames(pages: Pages) -> None:
    for answer in (pages.ask(), pages.ask("/nothing"), pages.ask(Cookie=""), pages.ask("/watch.js")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_only_this_machine_can_connect() -> None:
    with listener(0) as place:
        assert place.getsockname()[0] == "127.0.0.1"


def test_in_a_container_the_port_that_docker_publishes_is_listened_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANADIL_WATCH_HOST", "0.0.0.0")

    with listener(0) as place:
        assert place.getsockname()[0] == "0.0.0.0"


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(
            PreflightError, match=rf"^port {port}: cannot be used \(Address already in use\); choose"
        ):
            listener(port)
