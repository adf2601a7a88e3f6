import pytest

from anadil.preflight import inputs
from tests.kit.inspect_inputs import SMALL


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "FIRST_BYTES", dict.fromkeys(inputs.FIRST_BYTES, SMALL))
