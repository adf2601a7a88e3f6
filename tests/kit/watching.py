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
from anadil.runtime.run_record import RunRecord, StepRecord, this_process
from anadil.runtime.tracking_spool import Tracker
from anadil.watch.server import Connection, app, listener
from anadil.watch.watched import Watched

TOKEN = "token-of-a-test"
HOST = "anadil-test.localhost"


STAGES = ("clean", "tokenizer", "pretrain", "report")
HOSTILE = "</p><script>alert(1)</script>\"'<img src=x onerror=alert(1)>{{ 7*7 }}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of the server."""

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
        return f"anadil-watch={TOKEN}"

    def ask(self, path: str = "/", body: str | None = None, **headers: str) -> Answer:
        """Ask for a page with the cookie, or post a form as that page would; headers by name, `_` for `-`."""
        given = {"Cookie": self.cookie, "Host": f"{HOST}:{self.port}"}
        if body is not None:
            given["Origin"] = f"http://{HOST}:{self.port}"
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
        watched = Watched(roots=tuple(map(str, roots)), token=TOKEN, host=HOST)
        server = uvicorn.Server(
            uvicorn.Config(app(watched), http=Connection, log_config=None, access_log=False, lifespan="off")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield Pages(port)
        finally:
            server.should_exit = True
            thread.join()


def put_record(root: Path, /, run: str = "20260101-120000-1", **fields: Any) -> str:
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


def put_training(root: Path, run: str, steps: int = 30, key: str = "0123456789abcdef") -> Path:
    """Write the files of a run that is at its pre-training; return the work directory of the model."""
    work = root / "model" / f"{key}.work"
    work.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "phase": 1, "loss": 5 - step / 10, "loss/az": 5.0, "lr": 0.001, "tokens_per_s": 900.0}
        | ({"validation_bits_per_byte": 3.0, "validation_bits_per_byte/az": 2.5} if step % 10 == 0 else {})
        for step in range(1, steps + 1)
    ]
    (work / "training.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    texts = [
        {"step": step, "texts": [{"prompt": "Bakı", "text": f"mətn {step} {HOSTILE}"}]} for step in (0, 10)
    ]
    (work / "texts.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in texts) + '{"step": 20, "te', encoding="utf-8"
    )
    spool = root / "tracking" / run
    spool.mkdir(parents=True)
    Tracker(spool / "pretrain.jsonl", "pretrain").texts("tags", {"anadil.artifact": root / "model" / key})
    log: list[dict[str, Any]] = [
        {"level": "warning", "stage": "clean", "msg": f"a remedy {HOSTILE}", "ts": "2026-01-01T12:00:00Z"},
        {"level": "info", "stage": "pretrain", "msg": "no news"},
        {"level": "info", "stage": "pretrain", "msg": "m", "progress": {"what": "pre-training", "done": 30, "total": 120, "seconds_left": 90.0}},
    ]  # fmt: skip
    (root / "runs" / run).mkdir(parents=True, exist_ok=True)
    # A writer was killed, and the next one went on behind its half line.
    text = '{"level": "err\n' + "".join(f"{json.dumps(line)}\n" for line in log)
    (root / "runs" / run / "log.jsonl").write_text(f'{text}{{"level": "warn', encoding="utf-8")
    plan = {"expected": {"hours": 0.5, "cost": 12.0}}
    (root / "runs" / run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return work


def put_live(root: Path, **fields: Any) -> str:
    """The record of a run that this process drives, at its pre-training."""
    steps = {
        "clean": StepRecord(
            stage="clean", status="finished", seconds=3, figures={"kept": 12, "seconds": 3.0}
        ),
        "tokenizer": StepRecord(stage="tokenizer", status="finished", seconds=0, figures={"seconds": 9.0}),
        "pretrain": StepRecord(stage="pretrain"),
    }
    return put_record(root, **{"stages": STAGES, "steps": steps, "process": this_process(), **fields})
