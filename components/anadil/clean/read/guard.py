"""One document that a step cannot work on is left out and counted; it does not end the stage."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from anadil.clean.read.read_stats import ReadStats
from anadil.core.errors import AnadilError

log = logging.getLogger(__name__)

OF_THE_RUN = (AnadilError, MemoryError, OSError)
"""Errors that no document is to blame for: our own errors, the memory, the disk."""
PANIC = "PanicException"
"""Name of what a library written in Rust raises on a bug of its own. It is no Exception, so that few catch it."""


def is_fault_of_document(error: BaseException) -> bool:
    """True if an error tells of the document at hand, and not of the machine, the run or its user."""
    if isinstance(error, OF_THE_RUN):
        return False
    return isinstance(error, Exception) or type(error).__name__ == PANIC


@contextmanager
def skip_failed_document(stats: ReadStats, place: str) -> Iterator[None]:
    """Count the document as bad, with its place, if the block cannot work on it.

    Args:
        stats: Has counted the document as a good record.
        place: File, and place in it.
    """
    try:
        yield
    except BaseException as error:
        if not is_fault_of_document(error):
            raise
        log.warning("%s: skipped; please report it as a bug", place, exc_info=True)
        stats.records -= 1
        stats.refuse(place, f"{type(error).__name__}: {error}")
