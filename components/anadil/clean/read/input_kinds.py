"""Kinds of files that clean reads, apart from the readers: who only plans needs none of their packages."""

from collections.abc import Sequence

from anadil.artifacts.json_values import JSON_SUFFIXES
from anadil.artifacts.line_reader import PACKED_LINES, PLAIN_LINES
from anadil.artifacts.separated_file import PACKED_TABLES, PLAIN_TABLES
from anadil.artifacts.workbook import WORKBOOK
from anadil.core.errors import DataError
from anadil.core.format import counted

PAGES = (".html", ".htm", ".warc", ".warc.gz")
ARCHIVES = (".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz")
TABLES = (*PLAIN_TABLES, *PACKED_TABLES, WORKBOOK)
SUFFIXES = (
    *PLAIN_LINES, *PACKED_LINES, *JSON_SUFFIXES, *TABLES, ".txt", ".html", ".htm", *ARCHIVES, ".parquet",
)  # fmt: skip
"""All in lower case; none ends with another one."""

OF_FIELDS = (*PLAIN_LINES, *PACKED_LINES, *JSON_SUFFIXES, *TABLES, ".parquet")
"""Kinds whose records have fields by name."""
PASTE = "make a table of two files whose lines belong together: paste en.txt az.txt > en-az.tsv"
REMEDY = (
    "unpack what is packed otherwise (.zip, .wacz, .warc.zst, .xz, .bz2); make .html or .txt of documents (.docx, .epub, .pdf), "
    ".xlsx of other spreadsheets (.xls, .ods), and a line of .jsonl with the key `text` of each row of an .arrow; of Common Crawl take .warc.gz or .warc.wet.gz, not .warc.wat.gz"
)


def suffix_of(uri: str) -> str | None:
    """Return the known suffix of a file; None where it has none."""
    return next((suffix for suffix in SUFFIXES if uri.lower().endswith(suffix)), None)


def check_suffixes(uris: Sequence[str], key: str, *, is_pairs: bool = False, is_text: bool = False) -> None:
    """Refuse files that no reader knows, before any work is done; `key` of the recipe names them.

    Parallel text is read of files whose records have fields. Where texts stay as they are, a page is no text yet.
    """
    unknown = [uri for uri in uris if suffix_of(uri) is None]
    if is_pairs and (without := [uri for uri in uris if suffix_of(uri) not in OF_FIELDS]):
        raise DataError(
            f"{key}: {counted(len(without), 'file')} without a field for each side of a pair, such as {', '.join(without[:5])}; "
            f"known are {' '.join(OF_FIELDS)}; {PASTE}"
        )
    if unknown:
        raise DataError(
            f"{key}: {counted(len(unknown), 'file')} of unknown kind, such as {', '.join(unknown[:5])}; "
            f"known are {' '.join(SUFFIXES)}; {REMEDY}"
        )
    if is_text and (pages := [uri for uri in uris if suffix_of(uri) in PAGES]):
        raise DataError(
            f"{key}: {counted(len(pages), 'file')} of web pages, such as {', '.join(pages[:5])}, and clean.as_is is true; "
            "give text, or let clean make text of them (as_is: false)"
        )
