"""A program that stands for the driver's `nvidia-smi`."""

from pathlib import Path

import pytest


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts the program that stands for the driver's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "nvidia-smi"


def answers(driver: Path, *lines: str, code: int = 0) -> None:
    said = "".join(f"echo '{line}'\n" for line in lines)
    driver.write_text(f'#!/bin/sh\necho "$1" > "$0.asked"\n{said}exit {code}\n', encoding="utf-8")
    driver.chmod(0o755)
