"""The numbers of training for TensorBoard: event files in `tensorboard/` of the work directory.

Only where the package tensorboardX is installed; nothing here can fail a run or make it wait.
tensorboardX's own SummaryWriter hands events to a thread through a short queue, and waits for ever
once that thread has died of a full disk; so its file format is used without its thread.
"""

import logging
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FOLDER = "tensorboard"


class TensorBoardWriter:
    """One event file of one start; TensorBoard shows the starts of a run as one."""

    def __init__(self, work: Path, *, writes: bool = True) -> None:
        """Events of a run.

        Args:
            work: Directory that outlives a killed run.
            writes: Whether this process is the one that writes.
        """
        self._folder = work / FOLDER
        self._writes = writes
        self._writer: Any = None
        self._events: Any = None
        self._summaries: Any = None

    def begin(self, step: int) -> None:
        """Resume after `step`: what was said of later ones, here or by an earlier start, is taken back.

        A start from the beginning scores its base again, so step 0 of an earlier start goes too.
        """
        if not self._writes:
            return
        try:
            event_file_writer = import_module("tensorboardX.event_file_writer")
            self._events = import_module("tensorboardX.proto.event_pb2")
            self._summaries = import_module("tensorboardX.proto.summary_pb2")
        except ImportError:
            log.info("no event files for TensorBoard: the package tensorboardX is not installed")
            self._writes = False
            return
        # Source: TensorBoard, event.proto: START hides what there is from this step on.
        hidden = step + 1 if step or self._writer else 0
        begun = self._events.SessionLog(status=self._events.SessionLog.START)
        try:
            if self._writer is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writer = event_file_writer.EventsWriter(str(self._folder / "events"))
            self._write(self._events.Event(wall_time=time.time(), step=hidden, session_log=begun))
        except OSError as error:
            self._give_up(error)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add numbers of a step, all in one event."""
        if self._writer is None:
            return
        scalars = [
            self._summaries.Summary.Value(tag=name, simple_value=float(value))
            for name, value in values.items()
        ]
        event = self._events.Event(
            wall_time=time.time(), step=step, summary=self._summaries.Summary(value=scalars)
        )
        try:
            self._write(event)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
            self._writer = None

    def _write(self, event: Any) -> None:
        self._writer.write_event(event)
        # A killed run keeps what it said.
        self._writer.flush()

    def _give_up(self, error: OSError) -> None:
        log.warning("event files for TensorBoard end here (%s); the run continues", error)
        self._writer, self._writes = None, False
