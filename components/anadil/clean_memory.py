"""The memory that `clean` needs for given files: it holds every kept text until it has written them.

An upper bound, as nobody knows before reading how much will be kept. A crawl of which one page in a
hundred is in the language needs a hundredth of what is said here, besides `BASE_BYTES`.
"""

from collections.abc import Mapping

from anadil.core.format import MIB

BASE_BYTES = 512 * MIB
"""Interpreter, libraries, vocabulary, and one document at the limit. Measured: 85 MB at the start, 405 MB while a
line of 15 MiB was judged, 150 MB with a page of 1.9 MB."""
MEMORY_PER_TEXT_BYTE = 5.5
"""Bytes of memory for each kept byte of UTF-8, with index and signatures.

Source: measured in a process of its own on two EPYC cores, Python 3.11, over the memory at the start: Azerbaijani
documents of 2,000 characters 3.7 at 40 MB and 3.1 at 159 MB of kept text, of 20,000 characters 3.6, of 600 characters
4.4 (each at 40 MB); Japanese ones of 1,000 characters 2.5 at 40 MB and 2.4 at 119 MB. Where each document has a
character above U+FFFF, such as an emoji, 5.4: Python then spends four bytes on every character of it.
"""
TEXT_PER_BYTE = {
    ".jsonl": 1.0,
    ".txt": 1.0,
    ".jsonl.gz": 5.0,
    ".jsonl.zst": 5.0,
    ".parquet": 4.0,
    ".html": 0.2,
    ".htm": 0.2,
    ".warc": 0.2,
    ".warc.gz": 3.0,
}
"""Bytes of text in one byte of a file, by suffix, rounded up.

Source: measured on prose and law in five languages: gzip 3.1 to 4.7, zstd at its default level 3.2 to 4.5
(4.0 to 6.4 at level 19), Parquet 1.9 to 2.7 with snappy and 2.8 to 4.2 with zstd; 160 Japanese web pages gave
0.12 bytes of text for a byte of HTML and 0.68 for a byte of gzip, Azerbaijani articles in plain pages 2.6.
"""


def clean_memory_bytes(sizes: Mapping[str, int]) -> int:
    """Memory that `clean` needs if it keeps everything that the files hold.

    Args:
        sizes: Bytes of each file by its name or URI, as `storage.sizes` gives them.
    """
    text = sum(size * _ratio(name) for name, size in sizes.items())
    return BASE_BYTES + int(MEMORY_PER_TEXT_BYTE * text)


def _ratio(name: str) -> float:
    """Text in a byte of a file; of one that no reader knows, as much as in plain text."""
    lowered = name.lower()
    fitting = [suffix for suffix in TEXT_PER_BYTE if lowered.endswith(suffix)]
    return TEXT_PER_BYTE[max(fitting, key=len)] if fitting else 1.0
