"""One promotion at a time: a lock that every client of a registry sees, whatever storage each of them uses.

MLflow has no compare-and-set, and the last writer of an alias wins. But a registered model's name is unique in the
registry's database, so that of several processes that create one, one alone succeeds: it holds the lock until it deletes
that model again.

Limits: a process that was killed leaves the lock, and the next one waits LEASE_S before it removes it. Two that take
over from the same dead one may both do so if a deletion is on its way for longer than SETTLE_S. Whoever moves an alias
in MLflow's pages, or by another program, knows nothing of it.
"""

import logging
import os
import platform
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anadil.core.errors import AnadilError, RetryableError
from anadil.release.registry.client import Registry, registry_errors

log = logging.getLogger(__name__)

OWNER_TAG = "anadil.owner"
DESCRIPTION = (
    "Held by a running `anadil promote`, which removes it; one that was killed leaves it to the next."
)
RENEWED_TAG = "anadil.renewed"
LEASE_S = 120.0
"""After so long without a renewal its owner is taken for dead; a promotion holds the lock for seconds."""
RENEW_S = 15.0
CALL_S = 50.0
"""The longest that a call may take, its repetitions included: nothing is sent that may arrive after the lease."""
PATIENCE_S = 1_800.0
"""How long a promotion waits for others; fifty at once take a minute or two."""
SETTLE_S = 2.0
POLL_S = (0.05, 0.5)
"""Between two looks, at random, so that those who wait do not ask at the same time."""


@contextmanager
def exclusive(registry: Registry, name: str) -> Iterator[Callable[[], None]]:
    """Be the only one who promotes to a name.

    Yields:
        What to call before each write: it raises when the lock may have gone to another.

    Raises:
        RetryableError: Others hold it for too long, or this process was too slow.
    """
    lock, owner = f"{name}.promotion-lock", f"{platform.node()} {os.getpid()} {uuid.uuid4().hex}"
    since = _take(registry, lock, owner)

    def check() -> None:
        nonlocal since
        now = time.monotonic()
        if now - since > LEASE_S - CALL_S or not _holder(registry, lock).startswith(owner):
            raise RetryableError(
                f"{lock}: this promotion took so long that another may have begun; run the same command again"
            )
        if now - since > RENEW_S:
            with registry_errors(registry.uri):
                registry.client.set_registered_model_tag(lock, RENEWED_TAG, str(time.time_ns()))
            since = now

    try:
        yield check
    finally:
        try:
            check()
            with registry_errors(registry.uri):
                registry.client.delete_registered_model(lock)
        except AnadilError as error:
            log.warning("%s: not given back (%s); the next promotion removes it", lock, error)


def _take(registry: Registry, lock: str, owner: str) -> float:
    """Create the model of that name; the time before that."""
    deadline, takes_over = time.monotonic() + PATIENCE_S, False
    seen, seen_at = "", 0.0
    while True:
        since = time.monotonic()
        if _create(registry, lock, owner):
            time.sleep(SETTLE_S if takes_over else 0)  # another may be removing the dead one's just now
            if not takes_over or _holder(registry, lock).startswith(owner):
                return since
        current = _holder(registry, lock)
        if current.startswith(
            owner
        ):  # an answer was lost, and its repetition found what we created ourselves
            return since
        if current != seen:
            seen, seen_at = current, time.monotonic()
        elif current and time.monotonic() - seen_at > LEASE_S:
            log.warning("%s: %s has ended without giving it back; it is removed", lock, current)
            takes_over, seen = True, ""
            with registry_errors(registry.uri):
                registry.client.delete_registered_model(lock)
        if time.monotonic() > deadline:
            raise RetryableError(f"{lock}: {current} holds it; see whether it promotes, and run again")
        time.sleep(random.uniform(*POLL_S))  # noqa: S311  no secret


def _create(registry: Registry, lock: str, owner: str) -> bool:
    """Try to take the lock; True if it is ours now."""
    from mlflow.exceptions import MlflowException

    with registry_errors(registry.uri):
        try:
            registry.client.create_registered_model(lock, tags={OWNER_TAG: owner}, description=DESCRIPTION)
        except MlflowException as error:
            # It was there, and may be gone again before MLflow looks what it is that was there. SQLite lets one
            # write at a time, and says so to the others.
            codes = ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST")
            if error.error_code in codes or "database is locked" in str(error):
                return False
            raise
    return True


def _holder(registry: Registry, lock: str) -> str:
    """Who holds the lock, and when it was renewed; empty where nobody does."""
    with registry_errors(registry.uri):
        model = registry.model(lock)
    return f"{model.tags.get(OWNER_TAG, '')} {model.tags.get(RENEWED_TAG, '')}" if model else ""
