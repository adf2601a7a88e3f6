"""Filters of the user's own: functions of Python files that `clean.filters` names.

A filter is called with the text of a document that no rule drops, and its statistics. It returns the reason to drop the
document, or None. A call that fails counts the record as bad, and does not end the stage.
"""

import functools
import hashlib
import inspect
import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anadil.clean.check import KEY, read_filter
from anadil.clean.filters.pairs import REASONS as REASONS_OF_PAIRS
from anadil.clean.kernels.columns import COLUMN
from anadil.core.errors import DataError, RecipeError
from anadil.runtime.executors import process_limits
from anadil.text.filter_rules import MODES

log = logging.getLogger(__name__)

FAILED = "failed"
"""Reason of a document that a filter failed on, which counts as bad and not as dropped."""
FILTER = ": filter "
"""Begins the reason of a bad record, behind its place."""
CALL_CPU_S, CALL_S = 5.0, 60.0
"""CPU time of a call, and time on the clock of a call that waits. Our choice: all other work on a page takes 2 s at most."""
AGAIN_S = 1.0
"""Time from one alarm to the next, for code that goes on after the first."""
MAX_REASONS = 50
"""Reasons of a run. Each has files, columns and lines of its own, so text has no place in them."""
MAX_FAILURES, MAX_FAILED_SHARE = 10, 0.01
"""Failed calls that a run takes, and share of the calls in a larger run. Our choice."""
REASON = re.compile(r"[a-z][a-z0-9_]{0,29}")
TAKEN = frozenset((
    *MODES, *REASONS_OF_PAIRS, "blocked", "page_limits", "contaminated", "duplicate", "near_duplicate", "kept", "dropped", "bad",
))  # fmt: skip
"""Names that count something else."""


class TextStatistics(NamedTuple):
    """Statistics of a text, read-only. Shares are 0 to 1. NaN: not measured in this language or by this recipe."""

    words: float
    chars: float
    lines: float
    letters: float
    mean_word_length: float
    stop_word_share: float
    short_lines: float
    """Share of the lines of at most 30 characters."""
    duplicate_lines: float
    foreign: float
    """Share of the text whose lines are in another language."""
    quality: float
    """Score of `clean.quality_model`."""


PLACES = np.array([COLUMN[name] for name in TextStatistics._fields])


class Answer(NamedTuple):
    """Answer of the filters on a document."""

    reason: str | None
    error: str = ""
    """Filter that failed, and why. Empty if none did."""
    filter: str = ""
    """Filter that drops it."""


KEPT = Answer(None)


class OutOfTime(BaseException):
    """The call takes too long. No `Exception`, which the called code may catch."""


@dataclass(frozen=True, slots=True)
class UserFilter:
    """A function of a file."""

    file: str
    name: str
    """`rules.py:no_lyrics`."""
    function: Callable[[str, TextStatistics], object]

    def ask(self, text: str, statistics: TextStatistics) -> Answer:
        """Call the function, for a limited time."""
        process_limits.allow_one_more_record()
        try:
            reason = _in_time(self.function, text, statistics)
        except MemoryError:
            raise  # The process is at its limit, and the next one tries the record alone.
        except (Exception, SystemExit, OutOfTime) as error:  # noqa: BLE001  code of any kind
            return Answer(FAILED, f"filter {self.name}{_why(error, self.file)}")
        if reason is None:
            return KEPT
        if not isinstance(reason, str) or not REASON.fullmatch(reason):
            fault = "Return None, or a name of up to 30 letters of a-z, digits and _"
        elif reason in TAKEN:
            fault = "It counts other documents. Return another name"
        else:
            return Answer(str.__str__(reason), filter=self.name)
        return Answer(
            FAILED, f"filter {self.name}: returned {reason!r:.60} ({type(reason).__name__}). {fault}"
        )


def statistics_of(row: npt.NDArray[np.float64]) -> TextStatistics:
    """Statistics for filters, out of a row in the order of `STATISTICS`."""
    return TextStatistics(*row[PLACES].tolist())


def ask_filters(filters: Sequence[UserFilter], text: str, statistics: TextStatistics) -> Answer:
    """Ask filters in order. The first that drops the document, or fails, ends it."""
    return next((answer for each in filters if (answer := each.ask(text, statistics)) is not KEPT), KEPT)


def refuse_many_reasons(reasons: Iterable[str]) -> None:
    """Refuse filters that return more reasons than a person reads."""
    names = sorted({*reasons} - TAKEN)
    if len(names) > MAX_REASONS:
        raise RecipeError(
            f"{KEY}: filters returned more than {MAX_REASONS} reasons, such as {', '.join(names[:3])}. Return a name for each kind "
            "of text, not for each text"
        )


def refuse_failures(failed: int, asked: int, places: Sequence[str]) -> None:
    """Refuse filters that failed on all documents, or on many."""
    if failed and (failed == asked or failed > max(MAX_FAILURES, MAX_FAILED_SHARE * asked)):
        listed = "\n  ".join(each for each in places if FILTER in each)
        raise DataError(
            f"{KEY}: failed on {failed:,} of {asked:,} documents, more than {MAX_FAILURES} and {MAX_FAILED_SHARE:.0%}, or all. Correct "
            f"the function:\n  {listed}"
        )


def read_filters(values: Sequence[str]) -> list[tuple[str, str, str]]:
    """Read the files of `clean.filters`, and say which code will run: file, function and source of each filter."""
    filters = []
    for value in values:
        source, code = read_filter(value)
        log.info("%s: %s", KEY, code)
        filters.append((*value.rpartition(":")[::2], source))
    return filters


def load_filter(file: str, function: str, source: str) -> UserFilter:
    """Run a file, and take a function of it."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, _out_of_time)
    taken: Any = getattr(_module(file, source), function, None)
    name = f"{file.rpartition('/')[2]}:{function}"
    try:
        inspect.signature(taken).bind("", None)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"{KEY}: {name} cannot be called with a text and its statistics ({error}). Write `def {function}(text, statistics):`"
        ) from None
    return UserFilter(file, name, taken)


@functools.lru_cache(maxsize=8)
def _module(file: str, source: str) -> ModuleType:
    """Run a file once in each process."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    module = ModuleType(f"anadil_filter_{digest[:16]}")
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        _in_time(exec, compile(source, file, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit, OutOfTime) as error:  # noqa: BLE001  code of any kind
        raise RecipeError(f"{KEY}: {file}{_why(error, file)}, while the file is run. Correct it") from None
    return module


def _in_time(function: Callable[..., Any], *arguments: Any) -> Any:
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)  # only the main thread gets signals
    signal.setitimer(signal.ITIMER_PROF, CALL_CPU_S, AGAIN_S)
    signal.setitimer(signal.ITIMER_REAL, CALL_S, AGAIN_S)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _out_of_time(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  a handler of signals
    limit = f"{CALL_CPU_S:g} s of CPU time" if number == signal.SIGPROF else f"{CALL_S:g} s"
    raise OutOfTime(f"takes more than {limit}")


def _why(error: BaseException, file: str) -> str:
    """Line of the file, and the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    at = f", line {lines[-1]}" if lines else ""
    kind = "" if isinstance(error, OutOfTime) else f"{type(error).__name__}: "
    return f"{at}: {kind}{' '.join(str(error).split())[:300]}"
