"""The log of worker 0 while the job runs: passed on, and read for steps and for a fall in speed."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from anadil.core.errors import AnadilError
from anadil.launch.job import RUN_LABEL, STAGE_LABEL, TARGET_ANNOTATION
from anadil.launch.kinds import ApiObject, annotations, labels
from anadil.launch.kubernetes.api.client import JobApi
from anadil.launch.kubernetes.jobs.diagnosis import TAIL_LINES
from anadil.launch.kubernetes.jobs.restarts import StepCounter
from anadil.launch.kubernetes.pods.pod_log import PodLog, write_log_line
from anadil.launch.throughput_alert import ThroughputMonitor, step_in_line
from anadil.runtime.alerts import Event, notify

log = logging.getLogger(__name__)

LOG_REST_S = 20.0
"""How long the end of a job waits for the rest of its log."""
WORKER_END_S = 1.0
"""How long for worker 0 to end by itself: it may hang where another has failed."""


class LogRelay:
    """A thread that passes the log on; its end is waited for, but not for long."""

    def __init__(
        self,
        api: JobApi,
        job: ApiObject,
        pod: Callable[[], str],
        *,
        retry_s: float,
        since_s: float | None,
    ) -> None:
        """Prepare.

        Args:
            api: Where from.
            job: Whose log.
            pod: Name of worker 0's pod, now; empty while there is none.
            retry_s: Time between attempts.
            since_s: Leave out what is older.
        """
        self.steps = StepCounter()
        self.last_lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._job = job
        self._retry_s = retry_s
        self._speed = ThroughputMonitor()
        self._ended = threading.Event()
        self._end_s = min(WORKER_END_S, 10 * retry_s)
        self._log = PodLog(api.apart(), pod, retry_s=retry_s, since_s=since_s)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Pass on the rest: nothing more will come."""
        self._ended.set()
        self._thread.join(self._end_s)
        self._log.interrupt()
        self._thread.join(LOG_REST_S)

    def stop(self) -> None:
        """End soon; the rest does not matter."""
        self._ended.set()
        self._log.interrupt()

    def _run(self) -> None:
        last_warning = ""
        while True:
            try:
                for line in self._log.lines(self._ended.is_set):
                    self._take(line)
                return
            except AnadilError as error:
                # For now: an API server that restarts refuses what is allowed.
                if str(error) != last_warning:
                    last_warning = str(error)
                    log.warning("the job's log is not shown: %s", error)
            if self._ended.is_set():
                return
            self._ended.wait(self._retry_s)

    def _take(self, line: str) -> None:
        write_log_line(line)
        self.last_lines.append(line)
        step = step_in_line(line)
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
