"""What keeps two promotions apart and other bytes out of the registry; no server is asked."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import artifact, lease
from anadil.artifacts.lease import Taken
from anadil.core.errors import IntegrityError, RetryableError
from anadil.release.registry import promotion, promotion_lock
from anadil.release.registry.client import WHOLE_TAG, RegisteredModel
from anadil.release.registry.promotion_lock import RegistryLease
from tests.kit.promotable import model

LOCK = "az.promotion-lock"


class Registry:
    """One lease, of which a test says who holds it."""

    uri = "http://mlflow"

    def __init__(self) -> None:
        self.client = self
        self.tags: dict[str, str] = {}
        self.removed: list[str] = []

    def hold(self, owner: str) -> None:
        self.tags = {promotion_lock.OWNER_TAG: owner}

    def model(self, _: str) -> Any:
        return SimpleNamespace(tags=self.tags) if self.tags else None

    def set_registered_model_tag(self, _: str, name: str, value: str) -> None:
        self.tags[name] = value

    def delete_registered_model(self, name: str) -> None:
        self.tags = {}
        self.removed.append(name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()

    def create(lease: RegistryLease) -> bool:
        if not made.tags:
            made.hold(lease._owner)
        return made.tags[promotion_lock.OWNER_TAG] == lease._owner

    monkeypatch.setattr(RegistryLease, "_create", create)
    monkeypatch.setattr(lease.Lease, "poll_s", 0.0)
    monkeypatch.setattr(promotion_lock, "SETTLE_S", 0.0)
    for module in (promotion_lock, promotion):
        monkeypatch.setattr(module, "registry_errors", lambda _: nullcontext())
    return made


def locked(registry: Any) -> Any:
    return promotion_lock.exclusive(registry, "az")


def test_who_has_lost_the_lease_writes_nothing_more_and_leaves_it_to_its_owner(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(registry) as check:
        check()
        assert promotion_lock.RENEWED_TAG in registry.tags
        registry.hold("node-2 1 another")
        with pytest.raises(Taken, match="another run on node-2 writes there now"):
            check()

    assert (registry.tags, registry.removed) == ({promotion_lock.OWNER_TAG: "node-2 1 another"}, [])
    assert "not given back" in caplog.text


def test_who_was_too_slow_writes_nothing_more(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegistryLease, "fence_s", -1.0)

    with (
        pytest.raises(RetryableError, match="took so long that another may have begun"),
        locked(registry) as check,
    ):
        check()

    assert registry.removed == []


def test_the_lease_of_a_dead_process_is_taken_over(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(promotion_lock, "LEASE_S", 0.0)
    registry.hold("host 1 dead")

    with locked(registry):
        assert registry.removed == [LOCK]

    assert registry.removed == [LOCK, LOCK]
    assert "host 1 dead has ended without giving it back" in caplog.text


def test_a_lease_that_is_renewed_for_ever_is_waited_for_no_longer_than_that(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion_lock, "PATIENCE_S", 0.0)
    owners = (f"host 1 {number}" for number in range(9))

    def model(_: str) -> Any:
        registry.hold(next(owners))
        return SimpleNamespace(tags=registry.tags)

    monkeypatch.setattr(registry, "model", model)

    with (
        pytest.raises(RetryableError, match="another run on host writes there now; see whether"),
        locked(registry),
    ):
        pass

    assert registry.removed == []


def test_a_way_back_that_another_promotion_has_changed_is_not_gone(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter("2131")  # champion and previous, before and after the lock was waited for

    def by_alias(name: str, _: str) -> RegisteredModel:
        return RegisteredModel(name=name, version=next(versions), uri="", digest="", kind="")

    registry.by_alias = by_alias
    monkeypatch.setattr(promotion, "_verify", lambda *_, **__: None)

    with pytest.raises(RetryableError, match="another promotion moved the aliases"):
        promotion.roll_back(registry, "az")

    assert registry.removed == [LOCK]


def test_a_version_that_holds_other_bytes_than_were_promoted_is_refused(tmp_path: Path) -> None:
    made = model(tmp_path / "model")
    manifest = artifact.read_manifest(str(made))
    assert manifest is not None

    def verify(digest: str, whole_digest: str) -> None:
        version = RegisteredModel(
            name="az", version="1", uri=str(made), digest=digest, kind="model", tags={WHOLE_TAG: whole_digest}
        )
        promotion._verify(version, whole=False)

    verify(manifest.digest, manifest.whole_digest)
    for digests in (("0" * 64, manifest.whole_digest), (manifest.digest, "0" * 64)):
        with pytest.raises(IntegrityError, match="its bytes differ from those that were promoted"):
            verify(*digests)
