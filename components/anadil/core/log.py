"""Messages on stderr: sentences for people, one JSON object a line for log collectors.

Containers speak JSON unless they have a terminal, the command `anadil` speaks text;
`ANADIL_LOG` = `json` or `text` overrides. stdout stays free for results.
"""

import contextlib
import functools
import json
import logging
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from anadil.core.errors import message_of
from anadil.core.format import JSON_CONTROLS, visible_lines

SECRET_WORDS = ("SECRET", "PASSWORD", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
URL_PASSWORD = re.compile(
    r"((?:sql|maria|oracle)[\w+]*://[^/\s:@]*):[^\s'\"<>]*(?=@)"
    r"|(?<=://)([^/\s:@]*):(?!\d+/)[^\s'\"<>]*(?=@)"
)
"""Up to the last `@`, since people do not escape what is in a password. A number before a slash is a port, but for
databases, whose addresses have a user."""
URL_USER = re.compile(r"(\bhttps?://)[^/\s:@?#'\"<>]+(?=@)|(://)[^/\s:@?#'\"<>]{20,}(?=@)", re.IGNORECASE)
"""A user without a password. Tokens stand in that place for web servers, and long ones for others."""
URL_TOKEN = re.compile(
    r"([?&;][\w.-]*(?:token|secret|password|signature|credential|(?:api|access)[_-]?key|sig)=)[^&;#\s'\"]+",
    re.IGNORECASE,
)
"""A query's value that signs in whoever has it, such as that of a presigned URL of S3."""
PATH_TOKEN = re.compile(
    r"(?:hf_|gh[a-z]_|github_pat_|glpat-|dapi|sk-|xox[a-z]-|AKIA|eyJ)[\w.~+=-]{8,}"
    r"|[\w.~+=-]*(?<![A-Za-z0-9])(?=(?:[A-Za-z]*\d+[A-Za-z]+){2}|(?:\d*[A-Za-z]+\d+){2})[A-Za-z0-9]{20,}[\w.~+=-]*"
)
"""A part of an address's path that is a token: by its beginning, or 20 letters and digits that change three times."""
RUN_LOG = "ANADIL_RUN_LOG"
"""Names the file that a run's processes write their messages to, beside stderr."""
MAX_LINE_BYTES = 16_000
"""A container runtime splits log lines at 16 KiB; a split line is no JSON."""


def set_up(stage: str = "", *, container: bool = False, verbose: bool = False) -> None:
    """Send the log of the whole program to stderr, marked with the stage that speaks.

    Ranks other than 0 only warn, so that a job of 256 processes reads as one.
    """
    rank = int(os.environ.get("RANK", "0"))
    handler = Stderr()
    wish = os.environ.get("ANADIL_LOG", "")
    is_json = wish == "json" if wish in ("json", "text") else container and not sys.stderr.isatty()
    handler.setFormatter(JsonFormatter(stage, rank) if is_json else TextFormatter(stage))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    if place := os.environ.get(RUN_LOG):
        logging.getLogger().addHandler(RunLog(place, stage, rank))
    level = logging.WARNING if rank else logging.DEBUG if verbose else logging.INFO
    logging.getLogger("anadil").setLevel(level)
    logging.getLogger("anadil_pipelines").setLevel(level)
    logging.captureWarnings(True)
    # Its line for each retry says nothing to a user; what becomes of the call is said by us.
    for name in ("py.warnings", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.ERROR)


@contextlib.contextmanager
def run_log(path: str) -> Iterator[None]:
    """Let this process, and those that the block starts, write their messages to a file as well."""
    os.environ[RUN_LOG] = path
    handler = RunLog(path, "", 0)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        del os.environ[RUN_LOG]


def name_speaker(step: str) -> None:
    """Mark every message from here on with a step, such as `clean-web`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextFormatter | JsonFormatter):
            handler.formatter.stage = step


class Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at the moment: a progress bar puts itself there, to stay below."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a stderr that is gone is nobody's error."""
        if getattr(record, "is_on_bar", False):
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


class RunLog(logging.FileHandler):
    """Appends JSON lines to the file of a run, which is read while the run goes on."""

    def __init__(self, path: str, stage: str, rank: int) -> None:
        super().__init__(path, encoding="utf-8", errors="replace", delay=True)
        self.setFormatter(JsonFormatter(stage, rank))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a disk that is full ends no run for its log."""
        with contextlib.suppress(OSError, ValueError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Say nothing; see `emit`."""


class TextFormatter(logging.Formatter):
    """`stage: message`, with the level where it is not information."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    def format(self, record: logging.LogRecord) -> str:
        """One line of text, and the traceback if the record has one."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        prefix = f"{self.stage}: " if self.stage else ""
        text = f"{prefix}{level}{_message(record)}"
        if record.exc_info:
            text += "\n" + textwrap.indent(self.formatException(record.exc_info), "  ", bool)
        return visible_lines(masked(text))


class JsonFormatter(logging.Formatter):
    """One JSON object: ts (RFC 3339, UTC), level, stage, rank, msg, figures, err, and `logger` where a library speaks."""

    def __init__(self, stage: str, rank: int) -> None:
        super().__init__()
        self.stage, self.rank = stage, rank

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line that a container runtime does not split."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "stage": self.stage,
            "rank": self.rank,
            "msg": "",
        }
        if not record.name.startswith("anadil"):
            line["logger"] = record.name
        for name in ("figures", "progress"):
            if values := getattr(record, name, None):
                line[name] = values
        message = masked(_message(record))
        stack = masked(self.formatException(record.exc_info)) if record.exc_info else ""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        text = ""
        for limit in (MAX_LINE_BYTES, MAX_LINE_BYTES // 4, MAX_LINE_BYTES // 16):
            line["msg"] = message[:limit]
            if kind:
                line["err"] = {"type": kind, "stack": stack[-limit // 2 :]}
            text = json.dumps(line, ensure_ascii=False, default=str).translate(JSON_CONTROLS)
            if len(text.encode(errors="replace")) <= MAX_LINE_BYTES:
                break
        return text


def _message(record: logging.LogRecord) -> str:
    if not isinstance(record.args, tuple) or not record.args:
        return record.getMessage()
    said = (message_of(each) if isinstance(each, BaseException) else each for each in record.args)
    return str(record.msg) % tuple(said)


def secrets() -> list[str]:
    """Values of secret environment variables, and tokens in the path of the tracker's address."""
    return [
        *path_tokens(os.environ.get("MLFLOW_TRACKING_URI", "")),
        *(
            value
            for name, value in os.environ.items()
            if len(value) >= 8 and any(word in name.upper() for word in SECRET_WORDS)
        ),
    ]


@functools.lru_cache(maxsize=8)
def path_tokens(uri: str) -> tuple[str, ...]:
    """Return the parts behind the host of a tracker's address that are tokens, as they are written there."""
    if not uri.lower().startswith(("http://", "https://", "wandb://")):
        return ()
    parts = re.split(r"[/?#&;=,:@]", uri.partition("://")[2])
    return tuple(
        each for each in parts[uri.lower().startswith("http") :] if PATH_TOKEN.fullmatch(unquote(each))
    )


def masked(text: str, hidden: Sequence[str] | None = None) -> str:
    """The text with `***` for passwords and tokens in URLs and values of secret environment variables.

    Who masks a hundred texts asks `secrets` once and gives it as `hidden`.
    """
    for value in secrets() if hidden is None else hidden:
        text = text.replace(value, "***")
    text = URL_PASSWORD.sub(lambda match: f"{match[1] or match[2] or ''}:***", text)
    return URL_TOKEN.sub(r"\1***", URL_USER.sub(lambda match: f"{match[1] or match[2]}***", text))
