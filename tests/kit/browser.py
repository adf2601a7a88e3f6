"""Pages as a person's browser builds them, by a headless Chromium."""

import shutil
import subprocess
import tempfile

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def page_text(url: str, wait_ms: int = 20_000) -> str:
    """The page after its scripts have run, as HTML.

    Args:
        url: Address.
        wait_ms: Time that the page may take, on a clock that stands still while it loads something.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}", f"--virtual-time-budget={wait_ms}", "--dump-dom", url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
