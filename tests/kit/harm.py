"""A record that does harm to the process which works on it."""

import json
from pathlib import Path

import pytest

from tests.kit.texts import AZERBAIJANI

HARM = {
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "memory": "bytearray(6 << 30)",
    "batch": "in_batch = True",
    "processor": "resource.setrlimit(resource.RLIMIT_CPU, (1, -1)); [None for _ in iter(int, 1)]",
}
HARMFUL = f"Zərərli {AZERBAIJANI}"
SITE = """
import os, resource, signal
import numpy
import pycld2
detect, frombuffer = pycld2.detect, numpy.frombuffer
in_batch = False

def harmful(text, **settings):
    global in_batch
    if text.startswith("Zərərli"):
        {harm}
    return detect(text, **settings)

def harmful_batch(buffer, **settings):
    if in_batch and "Zərərli".encode("utf-32-le") in buffer:
        os.kill(os.getpid(), signal.SIGSEGV)
    return frombuffer(buffer, **settings)

numpy.frombuffer = harmful_batch
pycld2.detect = harmful
"""


def install_harm(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the identifier of processes that are started from now on do harm where a text begins like `HARMFUL`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE.format(harm=HARM[kind]), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def bad_and_harmful(path: Path) -> tuple[bytes, bytes]:
    """A file of lines with another one in the middle: once unreadable, once harmful, and as long."""
    lines = path.read_bytes().splitlines()
    harmful = json.dumps({"text": HARMFUL}).encode()
    made = [[*lines[:4], line.ljust(len(harmful)), *lines[4:], b""] for line in (b"{", harmful)]
    unreadable, deadly = (b"\n".join(each) for each in made)
    return unreadable, deadly
