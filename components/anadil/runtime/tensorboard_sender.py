"""Process that writes a run's tracking as TensorBoard event files: `python -m anadil.runtime.tensorboard_sender SPOOL`.

Each stage has a directory of its own, since a stage that begins again hides the later steps of its directory. Each try
begins with the first line, in empty directories, so no event is there twice.

tensorboardX's own SummaryWriter hands events to a thread through a short queue, and waits for ever once that thread has died
of a full disk. So its file format is used without its thread.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from anadil.core.install import install
from anadil.recipe.tracking_address import tensorboard_folder
from anadil.runtime.sender_process import IsClosed, follow_lines, noted, sender
from anadil.runtime.tracking_spool import FILES, destination

STATE = "tensorboard.json"
"""File in which the sender notes the directory of the run."""
TEXTS = ("recipe.yaml", "report.md")
"""Small files that TensorBoard shows as texts; others stay in the spool."""


class EventFile:
    """The event file of one stage, or of the run."""

    def __init__(self, folder: Path) -> None:
        """Begin the file."""
        self._events = import_module("tensorboardX.proto.event_pb2")
        self._summaries = import_module("tensorboardX.proto.summary_pb2")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = import_module("tensorboardX.event_file_writer").EventsWriter(str(folder / "events"))
        self._step = 0

    def add_step(self, values: Mapping[str, float], step: int, time_ms: int) -> None:
        """Add points of curves; a stage that goes back hides what it has from there on."""
        if step < self._step:
            # Source: TensorBoard, event.proto: START hides what there is from this step on.
            begun = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(step, time_ms, session_log=begun)
        self._step = step
        self.add(values, step, time_ms)

    def add(self, values: Mapping[str, float], step: int, time_ms: int) -> None:
        """Add numbers, all in one event."""
        value = self._summaries.Summary.Value
        scalars = [value(tag=name, simple_value=float(number)) for name, number in values.items()]
        self._write(step, time_ms, summary=self._summaries.Summary(value=scalars))

    def add_text(self, name: str, markdown: str) -> None:
        """Add a text, which TensorBoard shows on a page of its own."""
        self._write(
            0, round(1000 * time.time()), summary=import_module("tensorboardX.summary").text(name, markdown)
        )

    def close(self) -> None:
        """End the file."""
        self._writer.close()

    def _write(self, step: int, time_ms: int, **content: Any) -> None:
        self._writer.write_event(self._events.Event(wall_time=time_ms / 1000, step=step, **content))
        self._writer.flush()


class EventFiles:
    """The event files of one run: its own, and those of its stages."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self.folder = folder
        self._spool = spool
        self._files: dict[str, EventFile] = {}
        self._said: dict[tuple[str, str], float] = {}

    def send(self, stage: str, line: Mapping[str, Any]) -> None:
        """Write what a line says that TensorBoard can show."""
        kind = str(line["kind"])
        owner = "" if kind.startswith("run ") else stage
        if kind == "metrics" and line["step"] is not None:
            self._file(stage).add_step(line["values"], int(line["step"]), line["time"])
        elif kind in ("metrics", "run metrics"):
            self._figures(owner, line)
        elif kind in ("params", "run params"):
            rows = "\n".join(f"| {name} | `{value}` |" for name, value in line["values"].items())
            self._file(owner).add_text("settings", f"| key | value |\n|---|---|\n{rows}")
        elif kind == "files":
            for name in TEXTS:
                if file := line["values"].get(name):
                    text = (self._spool / FILES / file).read_text(encoding="utf-8", errors="replace")
                    shown = text if name.endswith(".md") else f"```\n{text}\n```"
                    self._file("").add_text(name.partition(".")[0], shown)

    def close(self) -> None:
        """End the files."""
        for each in self._files.values():
            each.close()

    def _figures(self, owner: str, line: Mapping[str, Any]) -> None:
        values = {f"final/{name}" if owner else name: each for name, each in line["values"].items()}
        # Several stages say the figures that decide; said again they would be points of a curve.
        new = {name: each for name, each in values.items() if self._said.get((owner, name)) != each}
        self._said |= {(owner, name): each for name, each in new.items()}
        self._file(owner).add(new, 0, line["time"])

    def _file(self, stage: str) -> EventFile:
        if stage not in self._files:
            self._files[stage] = EventFile(self.folder / stage)
        return self._files[stage]


def run_folder(spool: Path, name: str) -> Path:
    """Directory of the run of a spool, emptied: a new one, or that of an earlier try."""
    if known := noted(spool / STATE).get("folder"):
        folder = Path(known)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    root = Path(tensorboard_folder(destination(spool))).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)
    folder, number = root / name.replace("/", "-").replace(":", "."), 1
    # Two runs of one recipe may begin in the same minute.
    while folder.exists():
        number += 1
        folder = root / f"{name.replace('/', '-').replace(':', '.')} ({number})"
    folder.mkdir()
    noted(spool / STATE, folder=str(folder))
    return folder


def main() -> int:
    """`python -m anadil.runtime.tensorboard_sender SPOOL`: write a spool as event files, and those beside it that wait."""
    return sender("tensorboard", main.__doc__, _send, _trouble)


def _send(spool: Path, options: argparse.Namespace, is_closed: IsClosed) -> None:
    files = EventFiles(run_folder(spool, options.name), spool)
    try:
        for stage, line in follow_lines(spool, is_closed):
            files.send(stage, line)
    finally:
        files.close()


def _trouble(spools: Sequence[Path], send: Callable[[Path], None]) -> str:
    """Write all spools; return why that failed, empty if it did not."""
    try:
        import tensorboardX  # noqa: F401  the writer itself does without it
    except ImportError as error:
        return f"TensorBoard needs a package that is not installed: {error}; {install('tensorboard')}"
    try:
        for spool in spools:
            send(spool)
    except (OSError, ValueError, KeyError) as error:
        return f"TensorBoard: {type(error).__name__}: {error}; correct tracking.uri, or make room there"
    return ""


if __name__ == "__main__":
    sys.exit(main())
