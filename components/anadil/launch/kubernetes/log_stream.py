"""The log of machine 0 while the job runs: passed on, and read for steps and for a fall in speed."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from anadil.core.errors import AnadilError
from anadil.launch.job import RUN_LABEL, STAGE_LABEL, TARGET_ANNOTATION
from anadil.launch.kubernetes.client import Api
from anadil.launch.kubernetes.diagnosis import TAIL_LINES
from anadil.launch.kubernetes.kinds import Kind, Object, annotations, labels
from anadil.launch.kubernetes.pod_log import PodLog
from anadil.launch.kubernetes.restarts import Steps
from anadil.launch.throughput_alert import Throughput, step_of
from anadil.runtime.alerts import Event, notify

log = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""How long the end of a job waits for the rest of its log."""
END_S = 1.0
"""How long for machine 0 to end by itself: it may hang where another has failed."""


class Stream:
    """A thread that passes the log on; its end is waited for, but not for long."""

    def __init__(
        self,
        api: Api,
        kind: Kind,
        job: Object,
        pod: Callable[[], str],
        write: Callable[[str], None],
        *,
        retry_s: float,
        since_s: float | None,
    ) -> None:
        """Prepare.

        Args:
            api: Where from.
            kind: Of the job.
            job: Whose log.
            pod: Name of machine 0's pod, now; empty while there is none.
            write: Takes each line.
            retry_s: Time between attempts.
            since_s: Leave out what is older.
        """
        self.steps = Steps()
        self.last_lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._job = job
        self._write = write
        self._retry_s = retry_s
        self._speed = Throughput()
        self._ended = threading.Event()
        self._end_s = min(END_S, 10 * retry_s)
        self._log = PodLog(api.apart(), kind.container, pod, retry_s=retry_s, since_s=since_s)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Pass on the rest: nothing more will come."""
        self._ended.set()
        self._thread.join(self._end_s)
        self._log.interrupt()
        self._thread.join(PATIENCE_S)

    def stop(self) -> None:
        """End soon; the rest does not matter."""
        self._ended.set()
        self._log.interrupt()

    def _run(self) -> None:
        said = ""
        while True:
            try:
                for line in self._log.lines(self._ended.is_set):
                    self._take(line)
                return
            except AnadilError as error:
                # For now: an API server that starts anew refuses what is allowed.
                if str(error) != said:
                    said = str(error)
                    log.warning("the job's log is not shown: %s", error)
            if self._ended.is_set():
                return
            self._ended.wait(self._retry_s)

    def _take(self, line: str) -> None:
        self._write(line)
        self.last_lines.append(line)
        step = step_of(line)
        if step is not None:
            self.steps.add(step)
        slow = self._speed.add(line)
        if slow:
            log.warning("%s", slow)
            event = Event(
                kind="anomaly",
                run=labels(self._job).get(RUN_LABEL, ""),
                stage=labels(self._job).get(STAGE_LABEL, ""),
                message=slow,
                artifact=annotations(self._job).get(TARGET_ANNOTATION, ""),
            )
            threading.Thread(target=notify, args=[event], daemon=True).start()
