"""A registry whose aliases a test sets."""

from contextlib import nullcontext

import pytest

from anadil.core.errors import RecipeError
from anadil.retrain import champion
from tests.kit.retraining import Registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """An empty registry, which every address leads to."""
    made = Registry()

    def open_made(tracking: str | None, *, makes: bool) -> Registry:
        assert not makes
        if not tracking:
            raise RecipeError("no registry")
        return made

    monkeypatch.setattr(champion, "open_registry", open_made)
    monkeypatch.setattr(champion, "registry_errors", lambda _: nullcontext())
    return made
