"""Format of the list of documents that training leaves out, each with reason and counterpart, sorted by id."""

import json
from collections.abc import Iterator

from anadil.core.errors import IntegrityError
from anadil.core.stages import COMPARED

EXCLUDING = next(iter(COMPARED), "")
"""The artifact that has it; empty where no stage compares sources."""
EXCLUDED = "excluded.jsonl"
REASONS = ("heldout", "duplicate", "near_duplicate")
HELDOUT, DUPLICATE, NEAR_DUPLICATE = range(3)
"""Places among them: of two reasons the first is the one."""


def excluded_rows(content: bytes, place: object) -> Iterator[dict[str, str]]:
    """Rows of a list. A line without id and reason raises IntegrityError."""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line)
            yield row | {key: str(row[key]) for key in ("id", "reason")}
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError(
                f"{place}:{number}: not a line with id and reason ({error!r}); make it again"
            ) from None
