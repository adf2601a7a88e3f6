"""Records of a WARC file whose headers lie about their lengths."""

import re
from collections.abc import Callable

from anadil.core.format import MIB
from tests.kit.clean_stage import page, warc_record
from tests.kit.texts import AZERBAIJANI

LIMIT = MIB
"""Longest block that tests read."""
BODY = page(AZERBAIJANI)
PLAIN = [warc_record(BODY, url=f"https://a.az/{n}") for n in range(6)]
"""Records of equal length."""


def with_length(record: bytes, length: Callable[[int], object]) -> bytes:
    """A record whose WARC header says another length, or has none."""
    field = re.search(rb"\r\nContent-Length: (\d+)", record)
    assert field is not None
    said = length(int(field[1]))
    written = b"" if said is None else f"\r\nContent-Length: {said}".encode()
    return record[: field.start()] + written + record[field.end() :]


SIZE = len(PLAIN[0])
WRONG: dict[str, Callable[[int], object]] = {
    "a little long": lambda true: true + 100,
    "into the next record": lambda true: true + SIZE // 2,
    "one record long": lambda true: true + SIZE,
    "three records long": lambda true: true + 3 * SIZE,
    "to the last byte of the file": lambda true: true + 6 * SIZE,
    "a little short": lambda true: true - 100,
    "zero": lambda _: 0,
    "negative": lambda _: -5,
    "missing": lambda _: None,
    "more than the limit": lambda _: 2 * LIMIT,
    "huge": lambda _: 10**12,
    "absurd": lambda _: 10**30,
    "a word": lambda _: "many",
    "two": lambda true: f"{true}\r\nContent-Length: 7",
}
