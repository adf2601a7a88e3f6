"""A program that stands for the driver's `nvidia-smi`."""

import logging
from pathlib import Path

import pytest


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts the program that stands for the driver's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "nvidia-smi"


@pytest.fixture(autouse=True)
def no_records_of_liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records of missing back ends carry tracebacks; where they are kept, so are the tensors in them."""
    # Not by caplog, which would keep warnings of others from the tests too.
    monkeypatch.setattr(logging.getLogger("liger_kernel"), "level", logging.ERROR)


def answers(driver: Path, *lines: str, code: int = 0) -> None:
    said = "".join(f"echo '{line}'\n" for line in lines)
    driver.write_text(f'#!/bin/sh\necho "$1" > "$0.asked"\n{said}exit {code}\n', encoding="utf-8")
    driver.chmod(0o755)
