"""Tracking that cannot stop a run.

One metric to a server that is away blocks the MLflow client for minutes, so no stage calls it. A `Tracker` appends JSON
lines to `<spool>/<stage>.jsonl`. A process of its own, `mlflow_sender.py`, follows the files and notes in `sent.json` how
far it came. Unsent lines stay in the spool, and the sender of the next run with the same work directory sends them.
W&B and TensorBoard get the same lines in the stage's process (`trackers.py`).
"""

import hashlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from uuid import uuid4

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError, PreflightError
from anadil.core.files import write_atomic
from anadil.core.log import masked, secrets
from anadil.recipe.sections import Recipe
from anadil.recipe.tracking_address import tracker, tracking_fault
from anadil.runtime import prometheus
from anadil.runtime.live_copy import copied
from anadil.runtime.metric_table import curve_key
from anadil.runtime.reachable import answers
from anadil.runtime.trackers import FILES, GuardedClient, noted

log = logging.getLogger(__name__)

SENDER = "anadil.runtime.mlflow_sender"
SQLITE = "sqlite:///"
SPOOL_VARIABLE = "ANADIL_TRACKING_SPOOL"
"""Names the spool directory to stages that run inside `anadil run`, which owns the sender."""
SPOOL = "tracking"
"""Directory of the spool in the work directory of a stage that runs alone."""
SENT = "sent.json"
"""File in which the sender notes how far it came."""
DONE = "done"
"""File that the sender leaves when all is sent."""
UNSENT = "unsent"
"""Directory beside a run's record with the packed spools of steps whose tracker did not take everything."""
CLOSED = "closed"
"""File whose presence tells the sender that no more lines will come."""
PATIENCE_S = 20.0
"""How long the end of a run waits for a sender that makes no progress, while the server answers."""
MAX_PATIENCE_S = 120.0
"""The same for a sender that makes progress."""
DATABASE_PATIENCE_S = 60.0
"""The same for a database of this machine, which no network can hang: its first use makes the tables, some 10 s of CPU time."""
SILENCE_S = 1.5
"""How long the end of a run waits for the server to answer at all."""
LOOK_EVERY_S = 2.0
"""How often the server is asked meanwhile whether it still answers."""
RUN = "run"
"""Name of the file with what concerns the whole run and no stage of it."""
MAX_FILE_BYTES = 50_000_000
"""Largest file that goes through the server; weights stay where they lie."""
PIPELINE_RUN = "ANADIL_PIPELINE_RUN"
"""Names the run of Kubeflow Pipelines that a step belongs to; all its steps share a parent run."""
JOB_RUN = "ANADIL_RUN_ID"
"""The same in a training job, which a step has started."""
MAX_VALUE_CHARS = 6_000
"""Longest parameter or tag value that MLflow 3 takes."""
MAX_DIGEST_CHARS = 36
"""Longest digest of a dataset that MLflow 3 takes."""


TextKind = Literal["params", "tags", "run params", "run tags"]
"""Settings and tags of a stage, or of the whole run that it is a part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Data that a stage reads, as MLflow's dataset pages show it."""

    name: str
    uri: str
    """Where it lies."""
    digest: str
    """Digest of the content; MLflow takes 36 characters of it."""
    context: str
    """Use of the data: training, finetuning, evaluation."""
    source: str = ""
    """Scheme of `uri`; left out, that of the URI."""
    rows: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Return name and digest, as MLflow stores them."""
        return self.name, self.digest[:MAX_DIGEST_CHARS]


class Tracker:
    """The write side of one stage's tracking; every call returns at once and none fails."""

    def __init__(self, path: Path | None, stage: str = "", client: GuardedClient | None = None) -> None:
        """Track a stage in a file of the spool; with a client, that gets the lines and the file none."""
        self._path = path
        self._stage = stage
        self._client = client

    def start(self) -> None:
        """Record that the stage begins, maybe again after it was killed."""
        self._append({"kind": "start", "time": _now_ms()})

    def texts(self, kind: TextKind, values: Mapping[str, object]) -> None:
        """Record settings, or words by which runs are found, such as URIs and digests."""
        hidden = secrets()
        texts = {name: masked(str(value), hidden)[:MAX_VALUE_CHARS] for name, value in values.items()}
        self._append({"kind": kind, "values": texts})

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers of an optimizer step, or without a step the stage's final figures.

        A curve's key begins with its group and a slash, a final figure's with the stage, so that no key of MLflow has two
        meanings.
        """
        prometheus.set_gauges(self._stage, values, step or 0)
        final = f"{self._stage}_" if self._stage else ""
        keyed = {
            f"{final}{name}" if step is None else curve_key(self._stage, name): value
            for name, value in values.items()
        }
        self._append({"kind": "metrics", "values": keyed, "step": step, "time": _now_ms()})

    def run_metrics(self, values: Mapping[str, float]) -> None:
        """Record figures by which whole runs are compared."""
        self._append({"kind": "run metrics", "values": dict(values), "time": _now_ms()})

    def inputs(self, datasets: Sequence[Dataset]) -> None:
        """Record data that the stage reads; it is named and not copied."""
        listed = [asdict(each) | {"digest": each.key[1], "uri": masked(each.uri)} for each in datasets]
        self._append({"kind": "inputs", "datasets": listed})

    def model(
        self, name: str, uri: str, digest: str, kind: str, metrics: Mapping[str, float] | None = None, *,
        is_new: bool = False, dataset: Dataset | None = None,
    ) -> None:  # fmt: skip
        """Record a model that the stage makes or reads; its weights stay where they lie.

        Args:
            name: The candidate: adapted, merged, finetuned.
            digest: Of the artifact; a registered version is known by it.
            kind: model, merged or adapter.
            is_new: This stage made it.
            dataset: What the figures were measured on.
        """
        self._append(
            {
                "kind": "model", "name": name, "uri": masked(uri), "digest": digest, "artifact": kind,
                "metrics": dict(metrics or {}), "new": is_new, "time": _now_ms(),
                "dataset": dataset.key if dataset else None,
            }
        )  # fmt: skip

    def files(self, files: Mapping[str, Path | str]) -> None:
        """Keep small files (a path or a text by name) in the spool; they become artifacts of the run."""
        if self._path is None:
            return
        texts = {}
        for name, source in files.items():
            try:
                if isinstance(source, str):
                    content = masked(source).encode(errors="replace")
                elif (size := source.stat().st_size) > MAX_FILE_BYTES:
                    raise ValueError(f"it has {size} bytes, more than {MAX_FILE_BYTES}")
                else:
                    content = source.read_bytes()
                place = self._path.parent / FILES / hashlib.sha256(content).hexdigest()[:32]
                if not place.exists():
                    write_atomic(place, content)
                texts[name] = place.name
            except (OSError, ValueError) as error:
                log.warning("tracking: %s is not sent (%s)", name, error)
        if texts:
            self._append({"kind": "files", "values": texts})

    def end(self, status: str) -> None:
        """Record how the stage ended: FINISHED, FAILED or KILLED."""
        self._append({"kind": "end", "status": status, "time": _now_ms()})

    def _append(self, line: dict[str, object]) -> None:
        if self._client is not None:
            self._client.send(self._stage, line)
            return
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # NumPy's and torch's numbers are numbers too.
                file.write(json.dumps(line, default=float) + "\n")
        except OSError as error:
            log.warning("tracking: cannot write %s (%s); tracking of this stage ends here", self._path, error)
            self._path = None


@contextmanager
def track_stage(stage: str, recipe: Recipe, work: Path) -> Iterator[Tracker]:
    """Yield a tracker for one stage; outside `anadil run` it has a sender of its own, with its spool in `work`."""
    prometheus.begin(stage)
    is_first = int(os.environ.get("RANK", "0")) == 0
    shared = (os.environ.get(PIPELINE_RUN) or os.environ.get(JOB_RUN, "")) if is_first else ""
    root = recipe.storage.root or ""
    spool, uri = (os.environ.get(SPOOL_VARIABLE), tracker_address(recipe)) if is_first else (None, None)
    # `anadil run` has its work directory at hand, where the step's own files lie.
    followed = "" if spool is not None and "://" not in root else shared
    folder = Path(spool or work / SPOOL)
    name = run_name(f"{recipe.language_code}-{Path(recipe.base.model).name}" if shared else stage)
    with copied(root, followed, stage, work, folder / f"{stage}.jsonl"):
        if uri is not None and tracker(uri) != "mlflow":
            client = GuardedClient(uri, folder, stage, name, shared)
            client.send_all(RUN, folder / f"{RUN}.jsonl")  # written before the first step
            with closing(client):
                yield _open(folder, stage, client)
        elif spool:
            yield _open(folder, stage)
        elif uri is None:
            yield Tracker(None, stage)
        else:
            unsent = join(root, "runs", shared, UNSENT) if root and shared else ""
            with run_sender(folder, uri, recipe.tracking.experiment, name, shared, unsent):
                yield _open(folder, stage)


def run_name(recipe_name: str, moment: datetime | None = None) -> str:
    """Name of a parent run: by recipe and time, in UTC."""
    return f"{recipe_name} {moment or datetime.now(UTC):%Y-%m-%d %H:%M}"


def send_left(recipe: Recipe, run: str, status: str) -> None:
    """Send what the steps of a run have left, and end its runs in MLflow: FINISHED, FAILED or KILLED."""
    uri = tracker_address(recipe)
    if uri is None or tracker(uri) != "mlflow":
        return
    with tempfile.TemporaryDirectory() as work:
        unsent = join(recipe.storage.root or "", "runs", run, UNSENT)
        with run_sender(Path(work, SPOOL), uri, recipe.tracking.experiment, run, run, unsent, status):
            pass


def tracker_address(recipe: Recipe, default: str | None = None) -> str | None:
    """Return where the lines of a run go: the recipe's W&B or TensorBoard, else MLflow's address; None for `off`."""
    uri = recipe.tracking.uri
    return uri if uri is not None and tracker(uri) != "mlflow" else tracking_uri(recipe, default)


def tracking_uri(recipe: Recipe, default: str | None = None) -> str | None:
    """Return MLflow's address: of the recipe, else MLFLOW_TRACKING_URI, else `default`; None for `off`.

    A recipe that tracks with W&B or TensorBoard has its registry there all the same.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    named = recipe.tracking.uri
    named = named if named is None or tracker(named) == "mlflow" else None
    if named is None and given and (fault := tracking_fault(given)):
        raise PreflightError(
            f"MLFLOW_TRACKING_URI: {masked(given.partition('?')[0])}: {fault}; or set tracking.uri"
        )
    uri = named or given or default
    return None if uri == "off" else uri


def run_settings(recipe: Recipe) -> dict[str, str]:
    """Settings that tell a run from others: language, base, seed, and each key that is not the default, by its path."""
    always = {"language": recipe.language_code, "base.model": recipe.base.model, "seed": str(recipe.seed)}
    given = dict(_flat("", recipe.model_dump(mode="json", exclude_defaults=True)))
    return always | {key: value for key, value in given.items() if key not in always}


def _flat(prefix: str, node: object) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), value)
    else:
        yield prefix, node if isinstance(node, str) else json.dumps(node, ensure_ascii=False)


@contextmanager
def run_sender(
    spool: Path, uri: str, experiment: str, name: str, shared: str = "", unsent: str = "", status: str = ""
) -> Iterator[None]:
    """Run a sender beside the block, and wait a bounded time for it at the end.

    Args:
        shared: Id of a run whose other stages have senders of their own, and the same parent.
        unsent: Directory to which its steps take what could not be sent, where no next step sees this disk.
        status: How the shared run ended, where nothing comes after this.
    """
    spool.mkdir(parents=True, exist_ok=True)
    if tracker(uri) != "mlflow":
        noted(spool, name=name)
        yield
        return
    (spool / CLOSED).unlink(missing_ok=True)
    (spool / DONE).unlink(missing_ok=True)
    bare = _without_password(uri)
    noted(spool, uri=bare, experiment=experiment, name=name, run=shared, status=status)
    earlier = _take_over(unsent, spool.parent) if unsent else {}
    command = [sys.executable, "-m", SENDER, str(spool), "--parent", str(os.getpid())]
    # The URI may hold a password, so it travels in the environment, not in the arguments.
    environment = os.environ | {"MLFLOW_TRACKING_URI": uri, "PYTHONUNBUFFERED": "1"}
    with (spool / "sender.log").open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        (spool / CLOSED).touch()
        failed = _end(process, uri, spool / SENT)
        for file, folder in earlier.items():
            if (folder / DONE).exists():
                storage.store(file).remove(file)
        if failed and has_unsent(spool):
            _say_unsent(spool, "" if bare == uri else "with its password in MLFLOW_TRACKING_URI, ", unsent)


def _say_unsent(spool: Path, condition: str, unsent: str) -> None:
    where = str(spool)
    remedy = f"the next run beside it sends it, or: {condition}{sys.executable} -m {SENDER} {spool}"
    if unsent:
        where, remedy = join(unsent, f"{uuid4().hex}.zip"), "the next step, or the end of the run, sends it"
        try:
            storage.store(where).write(where, _packed(spool))
        except (AnadilError, OSError) as error:
            remedy = f"and is lost with this disk: {error}"
    log.warning(
        "tracking: MLflow did not take everything; it stays in %s (see sender.log there); %s", where, remedy
    )


def _packed(spool: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in filter(Path.is_file, spool.rglob("*")):
            archive.write(path, path.relative_to(spool))
    return packed.getvalue()


def _take_over(unsent: str, folder: Path) -> dict[str, Path]:
    """Unpack what other steps of the run could not send beside a spool, whose sender sends it; file -> its spool."""
    unpacked = {}
    try:
        for name in storage.store(unsent).listed(unsent):
            target = folder / f"left-{Path(name).stem}"
            with zipfile.ZipFile(io.BytesIO(storage.store(unsent).read(join(unsent, name)))) as archive:
                archive.extractall(target)
            unpacked[join(unsent, name)] = target
    except (AnadilError, OSError, zipfile.BadZipFile) as error:
        log.warning("tracking: what earlier steps have left in %s cannot be sent: %s", unsent, error)
    return unpacked


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    if uri.startswith(SQLITE):
        return SQLITE + str(Path(uri.removeprefix(SQLITE)).absolute())
    return masked(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()) if parts.netloc else uri


def _end(process: "subprocess.Popen[bytes]", uri: str, sent: Path) -> int:
    """Wait for a sender that has all lines, kill one whose server is silent, and return its exit code."""
    patience_s = DATABASE_PATIENCE_S if uri.startswith("sqlite:") else PATIENCE_S
    last = time.monotonic() + max(patience_s, MAX_PATIENCE_S)
    deadline = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < min(deadline, last):
        before = _written(sent)
        # One that is slow to answer here may have answered the sender meanwhile.
        if not answers(uri, SILENCE_S) and _written(sent) == before:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY_S)
        if _written(sent) != before:
            deadline = time.monotonic() + patience_s
    process.kill()  # nothing happens to one that is done
    return process.wait()


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def has_unsent(spool: Path) -> bool:
    """Return whether an earlier run left lines in this spool that its tracker has not taken yet."""
    return (spool / CLOSED).exists() and not (spool / DONE).exists() and any(spool.glob("*.jsonl"))


def _open(spool: Path, stage: str, client: GuardedClient | None = None) -> Tracker:
    opened = Tracker(spool / f"{stage}.jsonl", stage, client)
    if client is None:
        spool.mkdir(parents=True, exist_ok=True)
    opened.start()
    return opened


def _now_ms() -> int:
    return int(time.time() * 1000)
