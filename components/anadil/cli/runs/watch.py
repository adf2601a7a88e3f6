"""`anadil watch`: the pages of runs, in a browser of this machine."""

import argparse
import logging
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from anadil.cli.options import WORK, place
from anadil.core.errors import PreflightError
from anadil.core.install import install

log = logging.getLogger(__name__)


def add_watch(name: str, commands: Any, text: str) -> None:
    """Add `anadil watch`."""
    watch = commands.add_parser(
        name, help=text, description=f"{text}. The address is of this machine alone, and holds a token."
    )
    help_text = f"work directory or storage.root of runs (default: {WORK})"
    watch.add_argument("roots", nargs="*", metavar="PLACE", help=help_text)
    watch.add_argument(
        "--work",
        action="append",
        default=[],
        type=place,
        metavar="DIR",
        help="the same, as `anadil run` names it",
    )
    help_text = "port of 127.0.0.1, 0: a free one (default: the first free one from 8765 on)"
    watch.add_argument("--port", type=int, metavar="N", help=help_text)
    watch.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    watch.set_defaults(command=_watch)


def _watch(options: argparse.Namespace) -> int:
    try:
        from anadil.watch.server import serve
    except ModuleNotFoundError as error:
        raise PreflightError(f"watch: {error.name} is missing; {install('watch')}") from None
    # Training must not wait for a page.
    os.nice(10)
    roots = tuple(dict.fromkeys(map(_absolute, (*options.work, *options.roots)))) or (_absolute(WORK),)

    def say(address: str) -> None:
        print(address)
        sys.stdout.flush()
        log.info("watching %s; Ctrl-C ends it", " and ".join(roots))
        if not options.no_open and sys.stdout.isatty():
            webbrowser.open(address)

    serve(roots, options.port, say=say)
    return 0


def _absolute(root: str) -> str:
    return root if "://" in root else str(Path(root).resolve())
