"""Metrics for Prometheus as in a process that has just started."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anadil.runtime import prometheus


@contextmanager
def fresh_gauges(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[None]:
    """No gauge is set, and the files of those that are set now lie in `directory` and are closed at the end."""
    values = pytest.importorskip("prometheus_client.values", reason="needs prometheus-client")
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(prometheus.DIRECTORY_VARIABLE, "")
    forget_gauges()
    yield
    forget_gauges()
    values.close_all_multiprocess_files()


def forget_gauges() -> None:
    """The next gauge starts everything again."""
    prometheus._start.cache_clear()
    prometheus._gauge.cache_clear()
