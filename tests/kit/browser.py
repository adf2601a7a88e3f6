"""A headless Chromium that a test drives over its DevTools protocol."""

import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 60.0


class Page:
    """One page, and what its console has said."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=LIMIT_S, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        """Errors of scripts, of the network and of the content security policy."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv())
            self._hear(message)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _hear(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        entry = parameters.get("entry", {})
        is_console = message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error"
        if entry.get("level") == "error" or message.get("method") == "Runtime.exceptionThrown" or is_console:
            self.errors.append(json.dumps(parameters)[:600])

    def value(self, expression: str) -> Any:
        """Value of an expression in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + LIMIT_S
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{expression}: not in {LIMIT_S} s"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded; a page that only leads on is left."""
        self.call("Page.navigate", url=url)
        self.wait(
            "document.readyState === 'complete' && !!document.querySelector('main') && !location.search.includes('token')"
        )

    def show(self, width: int, *, dark: bool = False) -> None:
        """Set the width of the window and the colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])


@contextmanager
def browser() -> Iterator[Page]:
    """A page of a new browser; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            place = Path(profile) / "DevToolsActivePort"
            deadline = time.monotonic() + LIMIT_S
            while not (place.is_file() and place.read_text().strip()):
                assert time.monotonic() < deadline, "the browser did not start"
                time.sleep(0.05)
            port = place.read_text().split()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT_S) as answer:
                targets = json.loads(answer.read())
            page = Page(next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page"))
            yield page
            page.close()
        finally:
            process.terminate()
            process.wait(LIMIT_S)
