"""Of several launchers that follow one job, the one that looks after it and may end it."""

import logging
import os
import time
import uuid
from datetime import UTC, datetime

from anadil.launch.api.kinds import ApiObject, annotations
from anadil.launch.api.pods import parse_time
from anadil.launch.job import DETACHED_ANNOTATION, DOMAIN, HEARTBEAT_ANNOTATION

log = logging.getLogger(__name__)

LAUNCHER_ANNOTATION = f"{DOMAIN}/launcher"
"""Which launcher's heartbeat it is."""
POD_VARIABLE = "KFP_POD_NAME"
"""The pod of a pipeline's step. Source: kubeflow/pipelines 2.17, argocompiler/container.go."""


class Claim:
    """What this launcher knows of whose the job is.

    The heartbeat of another one is alive while it changes: clocks of two machines may differ.
    """

    def __init__(self, live_s: float) -> None:
        """Nothing is known yet.

        Args:
            live_s: Without a new heartbeat the launcher that left the last one counts as dead.
        """
        # A pipeline's job has a name of its own, so that a step that is tried again takes it over at once.
        self.launcher = "pipeline" if POD_VARIABLE in os.environ else uuid.uuid4().hex
        self.is_known = False
        self.is_guest = False
        """Whether another launcher looks after the job."""
        self._live_s = live_s
        self._beat = ""
        self._beat_until = 0.0

    def see(self, job: ApiObject) -> None:
        """Take in the annotations of the job as it is now."""
        told = annotations(job)
        beat = told.get(HEARTBEAT_ANNOTATION, "")
        is_mine = told.get(LAUNCHER_ANNOTATION) == self.launcher
        if beat != self._beat:
            # Of the first one that is seen only its time tells how old it is.
            age_s = 0.0 if self._beat else (datetime.now(UTC) - parse_time(beat)).total_seconds()
            self._beat, self._beat_until = beat, time.monotonic() + self._live_s - max(0.0, age_s)
        is_alive = bool(beat) and time.monotonic() < self._beat_until
        was_guest = self.is_guest
        self.is_guest = is_alive and not is_mine and told.get(DETACHED_ANNOTATION) != "true"
        self.is_known = True
        name = job["metadata"]["name"]
        if self.is_guest and not was_guest:
            log.info(
                "%s: another launcher looks after it; this one only follows, and its end leaves the job", name
            )
        elif was_guest and not self.is_guest:
            log.info("%s: the launcher that looked after it is gone; this one does from now on", name)
