"""One promotion at a time: a lease that every client of a registry sees, whatever storage each of them uses.

MLflow has no compare-and-set, and the last writer of an alias wins. But a registered model's name is unique in the
registry's database: of several processes that create one, one alone succeeds. That one holds the lease until it deletes
the model.

Limits: two that take over from the same dead owner may both do so if a deletion is on its way for longer than
SETTLE_S. Whoever moves an alias in MLflow's pages, or by another program, knows nothing of the lease.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anadil.artifacts.lease import Entry, Lease, Taken
from anadil.core.errors import RetryableError
from anadil.release.registry.client import Registry, registry_errors

OWNER_TAG = "anadil.owner"
DESCRIPTION = (
    "Held by a running `anadil promote`, which removes it; one that was killed leaves it to the next."
)
RENEWED_TAG = "anadil.renewed"
LEASE_S = 120.0
"""After so long without a renewal its owner is taken for dead; a promotion holds the lease for seconds."""
CALL_S = 50.0
"""The longest that a call may take, its repetitions included: nothing is sent that may arrive after the lease."""
PATIENCE_S = 1_800.0
"""How long a promotion waits for others; fifty at once take a minute or two."""
SETTLE_S = 2.0


@contextmanager
def exclusive(registry: Registry, name: str) -> Iterator[Callable[[], None]]:
    """Be the only one who promotes to a name.

    Yields:
        What to call before each write: it raises when the lease may have gone to another.
    """
    lease = RegistryLease(registry, f"{name}.promotion-lock")
    try:
        lease.acquire(PATIENCE_S)
        yield lease.check
    except Taken as error:
        raise RetryableError(str(error)) from None
    finally:
        lease.release()


class RegistryLease(Lease):
    """A registered model whose tags name the owner of the lease."""

    fence_s = LEASE_S - CALL_S

    def __init__(self, registry: Registry, model: str) -> None:
        super().__init__(model, "see whether it promotes, and run the same command again", silent_s=LEASE_S)
        self._registry = registry

    def _read(self) -> Entry:
        with registry_errors(self._registry.uri):
            model = self._registry.model(self._place)
        if model is None:
            return Entry()
        owner = model.tags.get(OWNER_TAG, "somebody")
        return Entry(owner, f"{owner} {model.tags.get(RENEWED_TAG, '')}", owner.partition(" ")[0])

    def _replace(self, tag: str) -> str | None:
        is_own = tag.startswith(self._owner)
        if is_own and self._read().owner != self._owner:
            return None
        client = self._registry.client
        with registry_errors(self._registry.uri):
            if is_own:
                client.set_registered_model_tag(self._place, RENEWED_TAG, str(time.time_ns()))
            elif tag:
                client.delete_registered_model(self._place)
            if not is_own and not self._create():
                return None
        if tag and not is_own:
            time.sleep(SETTLE_S)  # another may be removing the dead one's just now
        if not tag:
            return f"{self._owner} "  # who creates it has it; a look that failed now would leave it to nobody
        entry = self._read()
        return entry.tag if entry.owner == self._owner else None

    def _remove(self) -> None:
        with registry_errors(self._registry.uri):
            self._registry.client.delete_registered_model(self._place)

    def _create(self) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._registry.client.create_registered_model(
                self._place, tags={OWNER_TAG: self._owner}, description=DESCRIPTION
            )
        except MlflowException as error:
            # It was there, and may be gone again before MLflow looks what it is that was there. SQLite lets one
            # write at a time, and says so to the others.
            codes = ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST")
            if error.error_code in codes or "database is locked" in str(error):
                return False
            raise
        return True
