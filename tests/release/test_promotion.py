"""What keeps two promotions apart and other bytes out of the registry; no server is asked."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError, RetryableError
from anadil.release.registry import promotion, promotion_lock
from anadil.release.registry.client import WHOLE_TAG, RegisteredModel
from tests.kit.promotable import model

LOCK = "az.promotion-lock"


class Registry:
    """One lock, of which a test says who holds it."""

    uri = "http://mlflow"

    def __init__(self) -> None:
        self.client = self
        self.owner = ""
        self.removed: list[str] = []

    def model(self, _: str) -> Any:
        return SimpleNamespace(tags={promotion_lock.OWNER_TAG: self.owner}) if self.owner else None

    def delete_registered_model(self, name: str) -> None:
        self.owner = ""
        self.removed.append(name)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()

    def create(_registry: Registry, _lock: str, owner: str) -> bool:
        if not made.owner:
            made.owner = owner
        return made.owner == owner

    monkeypatch.setattr(promotion_lock, "_create", create)
    monkeypatch.setattr(promotion_lock, "POLL_S", (0.0, 0.0))
    monkeypatch.setattr(promotion_lock, "SETTLE_S", 0.0)
    for module in (promotion_lock, promotion):
        monkeypatch.setattr(module, "registry_errors", lambda _: nullcontext())
    return made


def locked(registry: Any) -> Any:
    return promotion_lock.exclusive(registry, "az")


def test_who_has_lost_the_lock_writes_nothing_more_and_leaves_it_to_its_owner(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(registry) as check:
        check()
        registry.owner = "another"
        with pytest.raises(RetryableError, match="another may have begun; run the same command again"):
            check()

    assert (registry.owner, registry.removed) == ("another", [])
    assert "not given back" in caplog.text


def test_the_lock_of_a_dead_process_is_taken_over_after_its_lease(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(promotion_lock, "LEASE_S", 0.0)
    monkeypatch.setattr(promotion_lock, "CALL_S", -60.0)
    monkeypatch.setattr(promotion_lock, "PATIENCE_S", 20.0)
    registry.owner = "host 1 dead"

    with locked(registry):
        assert registry.removed == [LOCK]

    assert registry.removed == [LOCK, LOCK]
    assert "host 1 dead  has ended without giving it back" in caplog.text


def test_a_lock_that_is_never_given_back_is_waited_for_no_longer_than_that(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion_lock, "PATIENCE_S", 0.0)
    registry.owner = "host 1 busy"

    with pytest.raises(RetryableError, match="host 1 busy  holds it"), locked(registry):
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
