"""The server of `anadil watch` beside a test, records of runs for it, and a client that can lie about itself."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn

from anadil.core.stages import FLOW
from anadil.runtime.run_record import RunRecord
from anadil.watch.server import app, listener
from anadil.watch.watched import Watched

TOKEN = "token-of-a-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server says."""

    status: int
    headers: http.client.HTTPMessage
    text: str


@dataclass(frozen=True, slots=True)
class Pages:
    """A server that listens."""

    port: int

    @property
    def cookie(self) -> str:
        """Cookie of a browser that has opened the address with the token."""
        return f"anadil-watch-{self.port}={TOKEN}"

    def ask(self, path: str = "/", body: str | None = None, **headers: str) -> Answer:
        """Ask for a page with the cookie, or post a form as that page would; headers by name, `_` for `-`."""
        given = {"Cookie": self.cookie, "Host": f"127.0.0.1:{self.port}"}
        if body is not None:
            given["Origin"] = f"http://127.0.0.1:{self.port}"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET" if body is None else "POST", path, body, given)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return Answer(status=reply.status, headers=reply.headers, text=text)


@contextmanager
def watching(*roots: Path | str) -> Iterator[Pages]:
    """Serve the pages of some roots while the block runs."""
    with listener(0) as place:
        port = place.getsockname()[1]
        watched = Watched(roots=tuple(map(str, roots)), token=TOKEN, port=port)
        server = uvicorn.Server(
            uvicorn.Config(app(watched), log_config=None, access_log=False, lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield Pages(port)
        finally:
            server.should_exit = True
            thread.join()


def put_record(root: Path, run: str = "20260101-120000-1", **fields: Any) -> str:
    """Write the record of a run; return the run's id."""
    now = time.time()
    record = RunRecord(
        **{"id": run, "recipe": "smoke", "started": now - 60, "updated": now, "root": str(root),
           "stages": tuple(stage.name for stage in FLOW), **fields}
    )  # fmt: skip
    path = root / "runs" / f"{run}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record)), encoding="utf-8")
    return run
