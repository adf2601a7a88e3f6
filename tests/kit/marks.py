"""Values of a parameter that only the slow run tries."""

from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def slow(*values: Any) -> ParameterSet:
    """One value of each parameter, that the default tests leave out."""
    return pytest.param(*values, marks=pytest.mark.slow)
