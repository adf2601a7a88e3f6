import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.cli.runs.watch import watching
from anadil.core.errors import PreflightError
from tests.kit.watching import put_record

ADDRESS = re.compile(r"http://(anadil-\w{16}\.localhost):(\d+)/\?token=([\w-]{32})")


def as_browser(match: re.Match[str]) -> urllib.request.Request:
    """The address as a browser asks for it, which needs no resolver for such a name."""
    return urllib.request.Request(match[0].replace(match[1], "127.0.0.1"), headers={"Host": match[1]})


def test_the_command_prints_the_address_and_tells_the_token_nowhere_else(tmp_path: Path) -> None:
    put_record(tmp_path)
    command = [sys.executable, "-m", "anadil", "watch", str(tmp_path), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        match = ADDRESS.fullmatch(process.stdout.readline().strip())
        assert match
        with urllib.request.urlopen(as_browser(match), timeout=30) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{match[2]}/", timeout=30)
        arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()

    assert match[3] not in arguments
    assert match[3] not in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_an_error_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])

        assert main(["watch", str(tmp_path), "--port", port, "--no-open"]) == PreflightError.exit_code

    assert (
        f"port {port}: cannot be used (Address already in use); choose another with --port"
        in capsys.readouterr().err
    )


def test_the_pages_of_a_run_last_as_long_as_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(tmp_path):
        match = ADDRESS.search(capsys.readouterr().err)
        assert match
        with urllib.request.urlopen(as_browser(match), timeout=30) as answer:
            assert answer.status == 200

    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(as_browser(match), timeout=30)
    assert os.environ.get("ANADIL_PARENT") is None


def test_in_a_container_it_is_said_how_the_port_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANADIL_WATCH_HOST", "0.0.0.0")

    with watching(tmp_path):
        said = capsys.readouterr().err

    match = ADDRESS.search(said)
    assert match
    assert f"(needs docker run -p 127.0.0.1:{match[2]}:{match[2]})" in said
