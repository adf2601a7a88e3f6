"""Fixtures that several files need: a neutral environment, a raw file, a corpus, a bucket."""

import functools
import gc
import inspect
import itertools
import json
import logging
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from anadil.artifacts import s3, storage
from anadil.core.processor import MAX_ISA
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.executor import Executor
from anadil.runtime.executors.engines import LOCAL_ENGINES
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import MadeArtifact
from tests.kit.fake_hub import hub  # noqa: F401  a fixture
from tests.kit.mlflow_server import mlflow_server, mlflow_server_on_postgres  # noqa: F401  fixtures

# Two threads only wait for each other over models this small, and use a CPU each while they do.
os.environ["OMP_NUM_THREADS"] = "1"
# Without BF16 products `pretrain.precision: auto` is FP32: results are the same on every processor.
os.environ[MAX_ISA] = "AVX512_CORE_VNNI"
FOREIGN = (
    "AWS_",
    "MLFLOW_",
    "ANADIL_",
    "PET_",
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "HTTP",
    "http",
    "NO_COLOR",
)

LIMITS = (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)
"""By which the system ends a process without a word, some tests later."""
LONGEST = (
    "e2e/test_pipeline.py",
    "release/test_registry_server.py",
    "e2e/test_real_text.py",
    "pretrain/resilience/test_signals.py",
    "pretrain/parallel/test_families.py",
    "images/test_imports.py",
)
"""Below this folder, the longest first."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Of bytes the argument's name: gzip writes the second in which they were packed, and processes that share the tests must collect the same."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes that share the tests begin with the longest files, lest one is waited for at the end."""
    if not hasattr(config, "workerinput"):
        return
    folder = Path(__file__).parent
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def order(item: pytest.Item) -> tuple[int, bool]:
        name = str(item.path.relative_to(folder))
        return LONGEST.index(name) if name in LONGEST else len(LONGEST), item.path not in slow

    items.sort(key=order)


def pytest_collection() -> None:
    """Imports make no garbage: looking for it takes a tenth of the time that the tests' files are read in."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules of libraries live as long as the process: no collection need look through them again."""
    gc.enable()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries tell of what is left at the end."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def libraries_are_no_garbage() -> Iterator[None]:
    """What a file has loaded is not looked through again: full collections were a fifth of the tests' time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def neutral_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No credentials, servers or settings of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) and name != "ANADIL_DATA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("ANADIL_WORK", str(tmp_path_factory.getbasetemp() / "work"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    s3.s3_client.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def service_models() -> Iterator[None]:
    """AWS's models of its services, read once: each session of boto3 reads them again, at 70 ms a client."""
    # Tests of kernels run on GPU machines that have torch and little else.
    if find_spec("botocore") is None:
        yield
        return
    from botocore import loaders

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaders, "create_loader", functools.cache(loaders.create_loader))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """No waiting for the disk: a tenth of the time of files that seal artifacts. Processes that are killed sync as ever."""
    with pytest.MonkeyPatch.context() as patch:
        # A closed file is refused, as by the real one. No test here takes the power from a machine.
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="session", autouse=True)
def stacks_without_source() -> Iterator[None]:
    """kfp asks for the whole stack, to name a caller, thirty times a pipeline: to find the sources of it costs seconds here."""

    def callers(_context: int = 0) -> list[inspect.FrameInfo]:
        return [
            inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
            for frame, line in traceback.walk_stack(sys._getframe(1))
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "stack", callers)
        yield


@pytest.fixture(autouse=True, scope="module")
def untouched_by_fixtures() -> Iterator[None]:
    """What a command that a fixture of a whole file runs sets in its process is taken back."""
    yield from _untouched()


@pytest.fixture(autouse=True)
def untouched_process() -> Iterator[None]:
    """What a command sets in its process (log handlers, signal handlers) is taken back."""
    yield from _untouched()


def _untouched() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    limits = [resource.getrlimit(each) for each in LIMITS]
    yield
    assert [resource.getrlimit(each) for each in LIMITS] == limits, (
        "the process of all tests has other limits now"
    )
    logging.root.handlers[:] = handlers
    logging.captureWarnings(False)
    for name in ("anadil", "anadil_pipelines", "py.warnings"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    for number, handler in signals.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen documents in Azerbaijani."""
    path = tmp_path_factory.mktemp("raw") / "prose.jsonl"
    with storage.built_in("builtin:az/prose.jsonl").open(encoding="utf-8") as lines:
        path.write_text("".join(itertools.islice(lines, 14)), encoding="utf-8")
    return path


def _in_this_process(job: Job) -> Executor:
    from tests.kit.clean_stage import executor  # few tests need what it imports

    return executor(job)


@pytest.fixture
def clean_in_this_process() -> Iterator[None]:
    """The clean stage starts no processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LOCAL_ENGINES, "processes", _in_this_process)
        yield


@pytest.fixture
def recipe(raw: Path, tmp_path: Path, clean_in_this_process: None) -> Recipe:
    """A recipe for `raw` that writes below `tmp_path`."""
    data = {
        "base": {"model": "tiny"},
        "clean": {"inputs": [str(raw)], "heldout_fraction": 0.2},
        "storage": {"root": str(tmp_path / "root")},
        "tracking": {"uri": "off"},
    }
    return parse_recipe(json.dumps(data), "recipe")


@pytest.fixture
def corpus(recipe: Recipe) -> MadeArtifact:
    """The corpus artifact of `recipe`."""
    return execute.execute(STAGES["clean"], recipe, {}, (), None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server on this machine that speaks the protocol of S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URI of an empty bucket, with credentials for it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3.s3_client.cache_clear()
    name = f"bucket-{os.getpid()}-{abs(hash(tmp_path)):x}"
    s3.s3_client().create_bucket(Bucket=name)
    return f"s3://{name}"
