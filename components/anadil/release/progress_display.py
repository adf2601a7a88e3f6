"""How far a command is, as a notebook shows it: one bar that moves, the last line, and the log in a fold."""

import re
import sys
import time
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import Any

from anadil.core.errors import INTERRUPTED, Stopped
from anadil.core.format import human_seconds, visible
from anadil.core.progress import SECONDS_VARIABLE

# A bar that takes the place of the last one may come oftener than a line of a log.
PROGRESS: Mapping[str, str] = MappingProxyType({SECONDS_VARIABLE: "1", "ANADIL_LOG": "text"})
"""Environment of a command whose log is shown so."""
COUNT = re.compile(r"(?P<loop>.+): (?P<done>\d[\d,]*) of (?P<total>\d[\d,]*)(?:, (?P<note>.*))?")
"""A line of `core.progress`."""
MAX_LINES = 200
"""Lines of the log that are shown: each update sends all of them."""
PAUSED = (INTERRUPTED, Stopped.exit_code)


def in_notebook() -> bool:
    """Return whether a kernel, such as Jupyter's, runs this process and shows HTML."""
    ipython: Any = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython() if ipython else None, "kernel")


class Display:
    """Takes the lines of a command and shows its state in place of the last one."""

    def __init__(self, name: str) -> None:
        self._name, self._state = name, "running"
        self._started = time.monotonic()
        self._lines: list[str] = []
        self._bar = ""
        self._handle = self._shown(None)

    def __call__(self, line: str) -> None:
        """Show one more line; a count only moves the bar."""
        if count := COUNT.fullmatch(line):
            done, total = (int(count[word].replace(",", "")) for word in ("done", "total"))
            note = ", ".join(filter(None, (f"{done:,} of {total:,}", count["note"])))
            self._bar = f'{escape(count["loop"])} <progress value="{done}" max="{max(total, 1)}"></progress> {escape(note)}'
        else:
            self._lines.append(visible(line))
            self._bar = ""
        self._shown(self._handle)

    def end(self, exit_code: int) -> None:
        """Show how it ended."""
        self._state = "stopped, resumes with the same call" if exit_code in PAUSED else "failed"
        self._state = self._state if exit_code else "finished"
        self._bar = ""
        self._shown(self._handle)

    def _shown(self, handle: Any) -> Any:
        from IPython.display import display

        data = {"text/html": self._html(), "text/plain": f"anadil {self._name}: {self._state}"}
        if handle is None:
            return display(data, raw=True, display_id=True)
        handle.update(data, raw=True)
        return handle

    def _html(self) -> str:
        head = (
            f"anadil {escape(self._name)}: {self._state}, {human_seconds(time.monotonic() - self._started)}"
        )
        now = self._bar or escape(self._lines[-1] if self._lines else "")
        left_out = len(self._lines) - MAX_LINES
        earlier = [f"{left_out:,} earlier lines are not shown"] if left_out > 0 else []
        log = escape("\n".join([*earlier, *self._lines[-MAX_LINES:]]))
        return (
            f'<div role="status"><strong>{head}</strong><br>{now}</div>'
            f'<details><summary>Log</summary><pre style="white-space:pre-wrap">{log}</pre></details>'
        )
