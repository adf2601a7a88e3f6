"""End of a process: one clear message, its exit code, and whether another start would end the same."""

import contextlib
import errno
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from anadil import __version__
from anadil.core import errors
from anadil.core import log as logs
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, RetryableError
from anadil.core.install import extra_with, install
from anadil.runtime import sagemaker
from anadil.runtime.environment import END_VARIABLE, in_group

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
"""Where Kubernetes reads the last words of a container, 4,096 bytes at most."""
DETERMINISTIC = (2, 3, 4, 5, 6, 7, errors.BUG)
"""Exit codes that another start would end with too."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_WORDS = re.compile(r"No space left on device|Disk quota exceeded|\bos error (28|122|27)\b|disk is full")
"""Words of errors of libraries that pass on the system's words but not its number: safetensors, Arrow, SQLite."""
NO_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR)
NO_TEMPORARY = "No usable temporary directory"
"""Words of Python's `tempfile` where neither TMPDIR nor /tmp can be written."""
KERNELS = ("/proc/", "/sys/")
FAILED = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN, errno.ESHUTDOWN)
"""A disk that fails, and network file systems that have lost their server: Linux' errno(3)."""
FAILED_WORDS = re.compile(r"Input/output error|Stale file handle|\bos error (5|116|121)\b")
CUT_OFF = re.compile(
    r"inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing|\d+ requested and \d+ written"
)
"""Words of torch 2.13 and numpy 2 for a file that could not be written whole, without the system's words."""
WRITING = "while writing "
"""Begins the note of an error that says where its block writes; a worker's traceback is a note too."""
HARDWARE = re.compile(
    r"\b(CUDA|CUBLAS|CUDNN|NCCL)|Accelerator|Dist\w*Error|Rendezvous\w*Error|Connection (closed|reset|refused)"
    r"|Broken pipe|[Tt]imed out"
)
"""In the words of a bug: a device or another node may be to blame, which the next start may not have.
Source: class names and texts of torch 2.13."""
PEER_LOST = "lost another process of the job"
"""In the words of a process that ended because another one had: the end of that one says why."""
CAUSED_BY_PEER = re.compile(rf"{PEER_LOST}|Rendezvous\w*Error|Dist(Store|Network)Error")
"""The same in the words of any version: older ones called it a bug."""


def exit_code_of(work: Callable[[], int]) -> int:
    """Turn errors into one clear message and their exit code; a traceback only for a bug."""
    try:
        code = work()
        if sys.stdout:
            sys.stdout.flush()  # here, where a pipe that is gone can be told from a bug
        return code
    except AnadilError as error:
        return report_failure(errors.message_of(error), error.exit_code)
    except KeyboardInterrupt:
        return report_failure("interrupted; run the same command again to resume", errors.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read stdout went away (`| head`); say nothing, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # The border of the program: whatever nobody foresaw is a bug.
        if cause := disk_error(error):
            return report_failure(str(cause), cause.exit_code)
        if isinstance(error, UnicodeEncodeError) and sys.getfilesystemencoding() != "utf-8":
            return report_failure(_not_in_locale(error), PreflightError.exit_code)
        if isinstance(error, OSError) and (file := _file_in_the_way(error)):
            words = f"{file}: is a file, not a directory. Choose another place, or remove it"
            return report_failure(words, RecipeError.exit_code)
        if isinstance(error, OSError) and is_wrong_place(error):
            return report_failure(f"{error}; grant access or choose another place", PreflightError.exit_code)
        if isinstance(error, FileNotFoundError) and _is_directory_gone():
            words = "the working directory is removed; go into another, and run it again"
            return report_failure(words, PreflightError.exit_code)
        if isinstance(error, FileNotFoundError) and error.filename:
            log.debug("gone", exc_info=True)
            words = f"{error.filename}: no such file or directory; if something has removed it since the start, put it"
            return report_failure(f"{words} back, and run the same command again", DataError.exit_code)
        if isinstance(error, ModuleNotFoundError) and (extra := extra_with(error.name or "")):
            return report_failure(
                f"{error.name} is not installed; {install(extra)}", PreflightError.exit_code
            )
        log.exception("bug in anadil %s", __version__)
        return report_failure(
            f"bug: {type(error).__name__}: {errors.message_of(error)}", errors.BUG, logged=True
        )


def _is_directory_gone() -> bool:
    try:
        return not Path.cwd()
    except FileNotFoundError:
        return True


def _not_in_locale(error: UnicodeEncodeError) -> str:
    return (
        f"the encoding of this locale, {sys.getfilesystemencoding()}, has no way to write {error.object!r}, such as a "
        "name of a file; set PYTHONUTF8=1, or LC_ALL=C.UTF-8, and run the same command again"
    )


def _file_in_the_way(error: OSError) -> Path | None:
    """Return the file in whose place an error asks for a directory."""
    if error.errno not in (errno.EEXIST, errno.ENOTDIR) or not error.filename:
        return None
    place = Path(os.fsdecode(error.filename))
    return next((each for each in (place, *place.parents) if each.is_file()), None)


def is_wrong_place(error: OSError) -> bool:
    """Return whether the place that an error names can never hold a file of this user."""
    # Below /proc and /sys the kernel says of a new file that it does not exist.
    kernels = str(error.filename or "").startswith(KERNELS) and error.errno == errno.ENOENT
    return kernels or error.errno in NO_PLACE or NO_TEMPORARY in str(error)


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Note the place on an error of the block: Arrow's and Python's own name none on a full disk."""
    try:
        yield
    except Exception as error:  # of any kind: torch's writers raise a RuntimeError, and it goes on as it came
        error.add_note(f"{WRITING}{place}")
        raise


def disk_error(error: BaseException) -> AnadilError | None:
    """Return an error about the disk, however deep libraries have wrapped it; None if it is about something else."""
    seen: BaseException | None = error
    notes = getattr(error, "__notes__", ())
    place = next((f", {note}" for note in notes if note.startswith(WRITING)), "")
    remedy = "free space, or choose another --out or storage.root"
    while seen is not None:
        number = seen.errno if isinstance(seen, OSError) else None
        if number in FULL or FULL_WORDS.search(str(seen)):
            return PreflightError(f"disk full: {seen}{place}; {remedy}")
        if number in FAILED or FAILED_WORDS.search(str(seen)):
            return RetryableError(
                f"the disk or the way to it failed: {seen}{place}; run the same command again, and check the machine's "
                "kernel log where it comes again"
            )
        if CUT_OFF.search(str(seen)):
            return PreflightError(
                f"disk full, most likely: a file could not be written whole ({seen}){place}; {remedy}"
            )
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return None


def report_failure(message: str, code: int, *, logged: bool = False) -> int:
    """Log why the program ends, and leave it where the platform looks for it; the exit code."""
    if threading.current_thread() is threading.main_thread():
        # One more signal would break into these words with a traceback and exit code 1.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
    if not logged:
        log.error("%s", message)
    words = json.dumps({"exit_code": code, "message": logs.masked(message)[:600]})
    if END_VARIABLE in os.environ and in_group() and is_deterministic(code, message):
        # The first of a node's processes says why; the others follow.
        end = Path(os.environ[END_VARIABLE])
        with contextlib.suppress(OSError), end.open("x", encoding="utf-8") as file:
            file.write(words)
    with contextlib.suppress(OSError):
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(words)
    sagemaker.tell_failure(words)
    return code


def is_deterministic(code: int | None, message: str) -> bool:
    """Return whether another start of a process that ended so would end so too."""
    return code in DETERMINISTIC and not (code == errors.BUG and HARDWARE.search(message))


def repeat_end() -> int | None:
    """Report again how an earlier start under the same torchrun ended, if another would end the same; its exit code."""
    if END_VARIABLE not in os.environ or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    try:
        end = json.loads(Path(os.environ[END_VARIABLE]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report_failure(end["message"], end["exit_code"])
