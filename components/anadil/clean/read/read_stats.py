"""Counts of what was read, and of what could not be.

A document that a step cannot work on is counted as bad; it does not end the stage.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from anadil.core.errors import AnadilError, DataError

log = logging.getLogger(__name__)

RESPONSE = "response"
"""Type of a WARC record that holds the answer of a server."""
MAX_PLACES = 10
"""Bad records that an error message lists."""
SUMMED = ("records", "bytes_in", "skipped", "recoded", "bad", "failed", "excused", "null_texts", "addresses")
"""Figures that are added over several ranges."""
OF_THE_RUN = (AnadilError, MemoryError, OSError)
"""Errors that no document is to blame for: our own errors, the memory, the disk."""
PANIC = "PanicException"
"""Name of what a library written in Rust raises on a bug of its own. It is no Exception, so that few catch it."""


@dataclass(slots=True)
class ReadStats:
    """Counts of reading; the same whatever the order of the files."""

    records: int = 0
    bytes_in: int = 0
    skipped: int = 0
    """WARC responses that are no web page or no success."""
    not_read: dict[str, int] = field(default_factory=dict)
    """WARC records of other types that hold no web page, by type, and what workbooks hide."""
    columns_not_read: dict[str, int] = field(default_factory=dict)
    """Columns of .csv and .tsv files that are not read, and in how many files."""
    txt_documents: dict[str, int] = field(default_factory=dict)
    """`.txt` files by what a document of them is: `file`, `line` or `block`; `doubtful`: one document, perhaps lines."""
    null_texts: int = 0
    """Records whose text is null: empty documents."""
    addresses: int = 0
    """Records that name the address of their page."""
    recoded: int = 0
    """Files and pages that were not UTF-8."""
    bad: int = 0
    failed: int = 0
    """Bad records on which a filter of the user's failed. They have a limit of their own."""
    excused: int = 0
    """Bad records that are excused: the torn place that each WARC may have."""
    lines: int = 0
    """In the range of a `.jsonl` file that was read last."""
    responses: int = 0
    """In the range of a WARC file that was read last, beside its damaged places."""
    damaged: int = 0
    first: int = 0
    """Where its first record begins, and the first one behind it; see `ByteRange`."""
    following: int | None = None
    places: list[str] = field(default_factory=list)

    def refuse(self, place: str, why: str) -> None:
        """Count a bad record; `check_bad_share` names the first ones."""
        self.bad += 1
        if len(self.places) < MAX_PLACES:
            self.places.append(f"{place}: {why}")

    def refuse_by_filter(self, place: str, why: str) -> None:
        """Count a record that was read, and on which a filter of the user's failed."""
        self.records -= 1
        self.failed += 1
        self.refuse(place, why)

    def skip(self, kind: str) -> None:
        """Count a WARC record without a web page."""
        if kind == RESPONSE:
            self.skipped += 1
        else:
            self.not_read[kind] = self.not_read.get(kind, 0) + 1

    def add(self, other: "ReadStats") -> None:
        """Add the counts of the ranges that follow."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (
            (self.not_read, other.not_read),
            (self.columns_not_read, other.columns_not_read),
            (self.txt_documents, other.txt_documents),
        ):
            for kind, count in theirs.items():
                mine[kind] = mine.get(kind, 0) + count
        self.places = [*self.places, *other.places][:MAX_PLACES]

    def check_bad_share(self, max_share: float) -> None:
        """Refuse the input if too much of it is unreadable."""
        if not self.bad:
            return
        total = self.records + self.bad
        more = self.bad - len(self.places)
        listed = "\n  ".join(self.places) + (f"\n  and {more:,} more" if more else "")
        by_filter = f", {self.failed:,} of them for clean.filters" if self.failed else ""
        counted = f"{self.bad:,} of {total:,} records are unreadable ({self.bad / total:.2%}){by_filter}"
        if self.bad - self.failed - self.excused > max_share * total:
            raise DataError(
                f"{counted}, more than clean.max_bad_records ({max_share:g}) allows; "
                f"correct them or raise it:\n  {listed}"
            )
        log.warning("%s and were skipped:\n  %s", counted, listed)


def is_fault_of_document(error: BaseException) -> bool:
    """Return whether an error tells of the document at hand, and not of the machine, the run or its user."""
    if isinstance(error, OF_THE_RUN):
        return False
    return isinstance(error, Exception) or type(error).__name__ == PANIC


@contextmanager
def skip_failed_document(stats: ReadStats, place: str) -> Iterator[None]:
    """Count the document, which was counted as a good record, as bad if the block cannot work on it."""
    try:
        yield
    except BaseException as error:
        if not is_fault_of_document(error):
            raise
        log.warning("%s: skipped; please report it as a bug", place, exc_info=True)
        stats.records -= 1
        stats.refuse(place, f"{type(error).__name__}: {error}")
