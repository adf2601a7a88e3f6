"""Values of a parameter that only the slow run, or only the full one, tries."""

from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def slow(*values: Any) -> ParameterSet:
    """One value of each parameter, that the default tests leave out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def matrix(*values: Any) -> ParameterSet:
    """One value of each parameter, that only `.ci/run --full` tries: it shows once more what another value shows."""
    return pytest.param(*values, marks=[pytest.mark.slow, pytest.mark.matrix])
