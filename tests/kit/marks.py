"""Values of a parameter that only the slow run, or only the full one, tries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Test = TypeVar("Test", bound=Callable[..., object])


def slow(*values: Any) -> ParameterSet:
    """One value of each parameter, that the default tests leave out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def matrix(*values: Any) -> ParameterSet:
    """One value of each parameter, that only `.ci/run --full` tries: it shows once more what another value shows."""
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.matrix])


def gpu(count: int = 1) -> Callable[[Test], Test]:
    """A test that needs CUDA devices, and is skipped where there are fewer."""
    # The driver is asked, not torch: most tests are collected without it.
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    reason = f"needs {count} CUDA device{'s' * (count > 1)}"

    def marked(test: Test) -> Test:
        skipped: Test = pytest.mark.skipif(found < count, reason=reason)(test)
        return pytest.mark.gpu(skipped)  # type: ignore[no-any-return]  # pytest leaves it untyped

    return marked
