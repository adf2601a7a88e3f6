"""TensorBoard event files, where the package tensorboardX is installed.

Nothing here can fail a run or make it wait. tensorboardX's own SummaryWriter hands events to a thread
through a short queue, and waits for ever once that thread has died of a full disk. So its file format
is used without its thread.
"""

import logging
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FOLDER = "tensorboard"
"""Directory of pre-training's own event files in its work directory."""


class TensorBoardWriter:
    """One event file of one start; TensorBoard shows the starts of a run as one."""

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        """Write into `folder`, which outlives a killed run, on the process that `writes`."""
        self._folder = folder
        self._writes = writes
        self._writer: Any = None
        self._events: Any = None
        self._summaries: Any = None

    def begin(self, step: int) -> None:
        """Resume after `step`: events of later steps, of this or an earlier start, are hidden.

        A start from the beginning scores its base again, so step 0 of an earlier start goes too.
        """
        if not self._writes:
            return
        try:
            file_writer = import_module("tensorboardX.event_file_writer")
            self._events = import_module("tensorboardX.proto.event_pb2")
            self._summaries = import_module("tensorboardX.proto.summary_pb2")
        except ImportError:
            log.info("no event files for TensorBoard: the package tensorboardX is not installed")
            self._writes = False
            return
        # Source: TensorBoard, event.proto: START hides what there is from this step on.
        hidden = step + 1 if step or self._writer else 0
        if self._writer is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writer = file_writer.EventsWriter(str(self._folder / "events"))
            except OSError as error:
                self._give_up(error)
                return
        begun = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(hidden, session_log=begun)

    @property
    def is_open(self) -> bool:
        """False before the start, and after an error has ended the file."""
        return self._writer is not None

    def add(self, values: Mapping[str, float], step: int, moment_s: float | None = None) -> None:
        """Add numbers of a step, all in one event, of a Unix time; left out, of now."""
        if self._writer is not None:
            value = self._summaries.Summary.Value
            scalars = [value(tag=name, simple_value=float(number)) for name, number in values.items()]
            self._write(step, moment_s, summary=self._summaries.Summary(value=scalars))

    def add_text(self, name: str, markdown: str) -> None:
        """Add a text, which TensorBoard shows on a page of its own."""
        if self._writer is not None:
            shown = import_module("tensorboardX.summary").text(name, markdown)
            self._write(0, summary=shown)

    def close(self) -> None:
        """End the file."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None

    def _write(self, step: int, moment_s: float | None = None, **content: Any) -> None:
        try:
            moment_s = time.time() if moment_s is None else moment_s
            self._writer.write_event(self._events.Event(wall_time=moment_s, step=step, **content))
            # A killed run keeps its events.
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        log.warning("event files for TensorBoard end here (%s); the run continues", error)
        self._writer, self._writes = None, False
