"""One retraining of a champion at a time: a lock while a process lives, and a claim for runs whose steps are pods.

Both lie in the storage that the retrainings share. A claim has no owner that lives as long as its run, so the run's record
says whether it has ended.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from anadil.artifacts import storage
from anadil.artifacts.lease import StandingObjectLease, Taken
from anadil.artifacts.uri import ConditionsError, join
from anadil.core.errors import DataError, PreflightError
from anadil.core.files import file_lock
from anadil.runtime.run_record import read_record, record_uri

log = logging.getLogger(__name__)

MOMENT_S = 300.0
"""How long a step waits for another that looks at the claim; each takes seconds."""


@contextmanager
def exclusive(root: str, name: str) -> Iterator[None]:
    """Be the only one who retrains a champion as long as the block lasts."""
    with _locked(root, name, 0.0):
        _refuse_other(root, name, "")
        yield


def claim(root: str, name: str, run: str) -> None:
    """Make a run the only one that retrains a champion until `free`; the same run may claim again."""
    with _locked(root, name, MOMENT_S):
        _refuse_other(root, name, run)
        _write(root, name, run)


def free(root: str, name: str, run: str) -> None:
    """Let others retrain the champion; the claim of another run stays."""
    with _locked(root, name, MOMENT_S):
        if _claimed_by(root, name) == run:
            # Emptied, not removed: on S3 a removal that arrives late would hit the next claim.
            _write(root, name, "")


@contextmanager
def _locked(root: str, name: str, patience_s: float) -> Iterator[None]:
    remedy = f"it retrains {name}; wait for its end, or stop it and run the same command again"
    place = _place(root, name, "lock")
    if "://" not in place:
        try:
            with file_lock(Path(place), patience_s):
                yield
        except filelock.Timeout:
            raise Taken(f"{place}: another run writes there now; {remedy}") from None
        return
    lease = StandingObjectLease(_place(root, name, "lease.json"), remedy)
    lease.acquire(patience_s)
    try:
        # Some storages answer 200 to a condition that does not hold, and write all the same.
        lease.check_conditions()
    except ConditionsError as error:
        log.warning("%s; two retrainings of %s at the same time would not see each other", error, name)
    try:
        yield
    finally:
        lease.release()


def _refuse_other(root: str, name: str, run: str) -> None:
    """Refuse where a run that has not ended holds the claim."""
    other = _claimed_by(root, name)
    if other in ("", run):
        return
    try:
        state = read_record(record_uri(root, other)).state
    except DataError:  # it has claimed and written nothing yet, or its record was removed
        state = "running"
    if state == "running":
        place = _place(root, name, "claim.json")
        raise Taken(f"{name}: run {other} retrains it now; wait for its end. If it is gone, remove {place}")
    log.info("run %s, which retrained %s, has ended (%s) and left its claim; taking over", other, name, state)


def _claimed_by(root: str, name: str) -> str:
    place = _place(root, name, "claim.json")
    if not storage.store(place).exists(place):
        return ""
    try:
        return str(json.loads(storage.store(place).read(place))["run"])
    except (ValueError, KeyError, TypeError):
        raise PreflightError(f"{place}: names no run; remove it if no run retrains {name} now") from None


def _write(root: str, name: str, run: str) -> None:
    place = _place(root, name, "claim.json")
    storage.store(place).write(place, json.dumps({"run": run}).encode())


def _place(root: str, name: str, file: str) -> str:
    return join(root, "retrain", name, file)
