"""A page of each kind that `anadil watch` has links to: `python -m tests.kit.visit_pages ANADIL PLACE`."""

import http.client
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from http.cookiejar import CookieJar
from urllib.parse import urljoin

LINK = re.compile(r'(?:href|src)="(/[^"?#]*)')
NUMBER = re.compile(r"\d[\d-]*")
"""Number of a run or a document: paths that are equal but for it are pages of one kind."""
TIMEOUT_S = 60.0


class _ThisMachine(urllib.request.HTTPHandler):
    """Finds `*.localhost` here, as browsers do, and not by the resolver, which may not know it."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Connect to this machine, whatever the name of the host."""
        return self.do_open(_Connection, request)


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port), self.timeout)


def visit_pages(command: Sequence[str], place: str) -> dict[str, bool]:
    """Path of a page of each kind that links lead to, and whether there is something to show."""
    words = [*command, "watch", place, "--port", "0", "--no-open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            cookies = urllib.request.HTTPCookieProcessor(CookieJar())
            browser = urllib.request.build_opener(cookies, _ThisMachine())
            browser.open(address, timeout=TIMEOUT_S).close()  # gives the cookie
            pages: dict[str, bool] = {}
            waiting = {"/": "/"}
            while waiting:
                kind, path = waiting.popitem()
                try:
                    with browser.open(urljoin(address, path), timeout=TIMEOUT_S) as answer:
                        text = answer.read().decode()
                except urllib.error.HTTPError as error:
                    if error.code != HTTPStatus.NOT_FOUND:
                        raise
                    text = ""
                pages[kind] = bool(text)
                links = {NUMBER.sub("N", link): link for link in LINK.findall(text)}
                waiting |= {kind: link for kind, link in links.items() if kind not in pages}
        finally:
            server.terminate()
    return pages


if __name__ == "__main__":
    visited = visit_pages(sys.argv[1:2], sys.argv[2])
    print("pages of the run:", *sorted(visited))
    if empty := [path for path, is_there in visited.items() if not is_there]:
        sys.exit(f"nothing to show: {' '.join(empty)}")
