"""`anadil watch`: the pages of runs, in a browser of this machine."""

import argparse
import logging
import os
import shlex
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from anadil.cli.options import WORK, number, place
from anadil.core.errors import PreflightError
from anadil.runtime.environment import PARENT_VARIABLE, WATCH_HOST_VARIABLE
from anadil.runtime.signals import die_with_parent

log = logging.getLogger(__name__)


def add_watch(command: argparse.ArgumentParser) -> None:
    """Add `anadil watch`."""
    command.description = f"{command.description}. The address is of this machine alone, and holds a token."
    help_text = f"work directory or storage.root of runs (default: {WORK})"
    command.add_argument("roots", nargs="*", metavar="PLACE", help=help_text)
    help_text = "the same, as `anadil run` names it"
    command.add_argument("--work", action="append", default=[], type=place, metavar="DIR", help=help_text)
    help_text = "port of 127.0.0.1, 0: a free one (default: the first free one from 8765 on)"
    command.add_argument("--port", type=number(0, 65_535), metavar="N", help=help_text)
    command.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    command.set_defaults(command=_watch, needs="watch")


@contextmanager
def watching(work: Path) -> Iterator[None]:
    """Serve the pages of a work directory while the block runs, in a process of its own."""
    command = [sys.executable, "-m", "anadil", "watch", "--work", str(work), "--no-open"]
    # Ctrl-C is for the run, which then saves; the pages show it.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        if not address:
            raise PreflightError(
                process.stderr.read().strip().removeprefix("error: ") or "watch: its server did not start"
            )
        # Nobody reads it; a full pipe would hold the server up.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        # The log masks tokens, and goes to places that others read.
        print(f"watch this run: {address}{_publishing(address)}", file=sys.stderr, flush=True)
        _open(address)
        try:
            yield
        finally:
            process.terminate()
            log.info(
                "the pages of this run have ended; open them again: anadil watch --work %s",
                shlex.quote(str(work)),
            )


def _watch(options: argparse.Namespace) -> int:
    from anadil.watch.server import serve

    die_with_parent()
    # Training must not wait for a page.
    os.nice(10)
    roots = tuple(dict.fromkeys(map(_absolute, (*options.work, *options.roots)))) or (_absolute(WORK),)

    def say(address: str) -> None:
        print(address)
        sys.stdout.flush()
        log.info("watching %s; Ctrl-C ends it%s", " and ".join(roots), _publishing(address))
        if not options.no_open:
            _open(address)

    serve(roots, options.port, say=say)
    return 0


def _publishing(address: str) -> str:
    """Words for a container, whose ports are reached only where docker was told so."""
    port = urlsplit(address).port
    return f" (needs docker run -p 127.0.0.1:{port}:{port})" if os.environ.get(WATCH_HOST_VARIABLE) else ""


def _open(address: str) -> None:
    if sys.stderr.isatty():
        # A browser of the terminal would take it over.
        with suppress(webbrowser.Error):
            if not isinstance(browser := webbrowser.get(), webbrowser.GenericBrowser):
                browser.open(address)


def _absolute(root: str) -> str:
    return root if "://" in root else str(Path(root).resolve())
