"""Rows of CSV, TSV and Excel files whose first row names the columns, as chats and questions are kept in."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anadil.artifacts.separated_file import SEPARATORS, Fault, Place, SeparatedFile, not_utf_8
from anadil.artifacts.workbook import WORKBOOK, Workbook, open_workbook
from anadil.core.errors import DataError
from anadil.core.format import MIB
from anadil.text.code_pages import best_code_page, nearly_utf_8, say_lost_letters
from anadil.text.letters import UNKNOWN, Letters

log = logging.getLogger(__name__)

SEPARATED = tuple(SEPARATORS)
TEXT_TABLES = (*SEPARATED, WORKBOOK)
BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
SAVE = 'save it as UTF-8; Excel calls that "CSV UTF-8"'
SAMPLE_BYTES = MIB
"""First bytes of a file, by which its encoding is known."""

Row = tuple[Place, dict[str, object] | Fault]


def separated_rows(path: Path, name: str, letters: Letters = UNKNOWN) -> Iterator[Row]:
    """Yield each row with the number of its first line; a cell without text is None.

    Args:
        path: The file.
        name: Name with its suffix, for messages too.
        letters: Letters of the language, which tell code pages apart; without them a file must be UTF-8 or UTF-16.
    """
    with _table(path, name, letters) as table:
        columns = _columns(table.columns, f"{name}:{table.first_line}")
        for number, cells in table.rows():
            if isinstance(cells, Fault):
                yield number, cells
            elif (fault := not_utf_8(each for each in cells if isinstance(each, str))) is not None:
                yield number, fault
            else:
                yield (
                    number,
                    {key: None if cell == "" else cell for key, cell in zip(columns, cells, strict=False)},
                )


@contextmanager
def _table(path: Path, name: str, letters: Letters) -> Iterator[SeparatedFile | Workbook]:
    if name.lower().endswith(WORKBOOK):
        with open_workbook(path, name) as workbook:
            yield workbook
        return
    encoding = _encoding(path, name, letters)
    # Bytes that are not UTF-8 cost the row that they are in.
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    with path.open(encoding=encoding, errors=errors, newline="") as text:
        yield SeparatedFile(text, name, "")


def _encoding(path: Path, name: str, letters: Letters) -> str:
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
    if mark := BYTE_ORDER_MARKS.get(sample[:2]):
        return mark
    whole = sample[: sample.rfind(b"\n") + 1] or sample
    if nearly_utf_8(whole) is not None:
        return "utf-8-sig"
    page = best_code_page(whole, (), letters)
    if page is None:
        raise DataError(f"{name}: is not UTF-8, nor in a code page of the language; {SAVE}")
    log.warning("%s: not UTF-8; read as %s", name, page)
    say_lost_letters(name, whole.decode(page, "replace"), page)
    return page


def _columns(names: Sequence[str], place: str) -> list[str]:
    named = [name or f"column {number}" for number, name in enumerate(names, 1)]
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{place}: two columns are called {twice!r}; rename one")
    return named
