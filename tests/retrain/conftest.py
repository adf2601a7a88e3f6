"""A registry whose aliases a test sets."""

import pytest

from tests.kit.retraining import Registry, use_registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """An empty registry, which every address leads to."""
    return use_registry(monkeypatch)
