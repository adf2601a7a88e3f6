"""A lock object in S3: one run at a time writes to a place there.

It is written only if it is still as it was seen last (conditional writes), and renewed while its
run lives; a run that is silent may be succeeded.
"""

import contextlib
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Mapping

from anadil.artifacts.s3 import S3
from anadil.artifacts.uri import ConditionsError
from anadil.core.errors import AnadilError, DataError, PreflightError

log = logging.getLogger(__name__)

RENEW_S = 20.0
"""Between renewals of the lock. Assumption: three requests a minute cost nothing."""
SILENT_S = 100.0
"""After so long without a renewal the run that holds the lock is taken for dead: five are missing."""


class Taken(PreflightError):
    """Another run writes there."""


class ObjectLock:
    """A lock object in S3, renewed by a thread."""

    def __init__(self, uri: str, remedy: str, renew_s: float = RENEW_S, silent_s: float = SILENT_S) -> None:
        """Take nothing yet.

        Args:
            uri: The object.
            remedy: What to do where another run holds it, for the message.
            renew_s: Seconds between renewals.
            silent_s: Seconds without a renewal after which another run may take over.
        """
        self._uri = uri
        self._remedy = remedy
        self._renew_s = renew_s
        self._silent_s = silent_s
        self._owner = {"owner": uuid.uuid4().hex, "host": platform.node(), "process": os.getpid()}
        self._tag = ""
        self._lost = False
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._renew_until_ended, name="object-lock", daemon=True)

    def take(self) -> None:
        """Write the object, if it is not there, or if its owner has said that it is done or is silent.

        Raises:
            Taken: Another run holds it.
        """
        if not self._written(""):
            self._succeed()
        self._thread.start()

    def check_conditions(self) -> None:
        """Make sure that the storage heeds conditions; some answer 200 and write all the same.

        Raises:
            ConditionsError: It does not.
        """
        with self._turn:
            content = {**self._owner, "count": time.time_ns(), "released": False}
            tag = S3().write_if(self._uri, json.dumps(content).encode(), "")  # it is there, so this must fail
            if tag is None:
                return
            self._tag = tag
        raise ConditionsError(f"{self._uri}: the storage has no conditional writes (If-None-Match, If-Match)")

    def check(self) -> None:
        """Renew it; raises as `take` does."""
        with self._turn:
            if self._lost or not self._written(self._tag):
                self._lost = True
                raise self._taken(self._read()[0])

    def _succeed(self) -> None:
        """Take over from a run that has ended, well or badly."""
        content, tag = self._read()
        deadline = time.monotonic() + self._silent_s
        if not content.get("released"):
            log.info("%s: held; waiting up to %.0f s to see whether its run lives", self._uri, self._silent_s)
        while not content.get("released") and time.monotonic() < deadline:
            time.sleep(self._renew_s / 10)
            content, now = self._read()
            if now != tag and not content.get("released"):
                raise self._taken(content)
            tag = now
        if not self._written(tag):
            raise self._taken(self._read()[0])

    def release(self) -> None:
        """Say in the object that its owner is done."""
        self._ended.set()
        with self._turn, contextlib.suppress(AnadilError):
            if not self._lost:
                self._written(self._tag, released=True)

    def remove(self) -> None:
        """Leave nothing behind; for a place that is written once."""
        self._ended.set()
        with self._turn, contextlib.suppress(AnadilError):
            if not self._lost and self._written(self._tag):
                S3().remove(self._uri)

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._renew_s):
            try:
                self.check()
            except Taken as error:
                log.warning("%s", error)
                return
            except AnadilError as error:
                log.warning("%s: lock not renewed (%s); trying again", self._uri, error)

    def _written(self, tag: str, *, released: bool = False) -> bool:
        """Whether the object was as `tag` says, and is ours now."""
        content = {**self._owner, "count": time.time_ns(), "released": released}
        new = S3().write_if(self._uri, json.dumps(content).encode(), tag)
        if new is None:
            # An answer may have been lost, and its repetition have found what we wrote ourselves.
            content_now, new = self._read()
            if not new or content_now.get("owner") != self._owner["owner"]:
                return False
        self._tag = new
        return True

    def _read(self) -> tuple[dict[str, object], str]:
        try:
            content, tag = S3().read_tagged(self._uri)
        except DataError:  # removed meanwhile
            return {"released": True}, ""
        try:
            return dict(json.loads(content)), tag
        except ValueError:
            return {}, tag

    def _taken(self, content: Mapping[str, object]) -> Taken:
        where = f" on {content['host']}" if content.get("host") else ""
        return Taken(f"{self._uri}: another run{where} writes there now; {self._remedy}")
