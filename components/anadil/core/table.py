"""A table of text, for a terminal, a page and Markdown: the one renderer of all three."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from anadil.core.format import visible

HTML_SIGNS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
MARKDOWN_SIGNS = HTML_SIGNS | {ord(sign): f"\\{sign}" for sign in "\\`*_[]|#!~"}
BETWEEN = "  "
STACKED = 4
"""Columns up to which a table fits a narrow screen. Cells of a row of more stand below each other there."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column names the row. `{{ table }}` in a template is its HTML."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A cell with `__html__`, such as `markupsafe.Markup`, is put into HTML as it is."""
    _: KW_ONLY
    words: Sequence[int] = ()
    """Columns, beside the first, that hold words and are aligned as such; all others are numbers."""
    marked: int | None = None
    """Row that was chosen."""
    note: str = ""
    keys: Sequence[int] = ()
    """Colours of the first rows in the chart beside it; the rows after them are sums."""
    pinned: bool = False
    """The first column stays in place while the others scroll."""

    @property
    def is_list(self) -> bool:
        """True if it only pairs names with values, so that it needs no header."""
        return tuple(self.columns) == ("", "value")

    def lines(self, margin: str = "") -> list[str]:
        """Header and rows as aligned lines of a terminal, the marked row with a star; empty without rows."""
        if not self.rows:
            return []
        heads = [] if self.is_list else [tuple(map(visible, self.columns))]
        cells = [*heads, *(tuple(map(visible, row)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        star = None if self.marked is None else self.marked + len(heads)
        return [
            ("* " if number == star else margin)
            + BETWEEN.join(
                cell.ljust(width) if self._is_left(place) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for number, row in enumerate(cells)
        ]

    def markdown(self, empty: str = "None.") -> str:
        """A table of Markdown with its note; without rows, the words that say so."""
        if not self.rows:
            return f"\n{empty}\n" if empty else ""
        sides = ["---" if place in (0, *self.words) else "---:" for place in range(len(self.columns))]
        lines = [_row(self.columns), f"| {' | '.join(sides)} |", *map(_row, self.rows)]
        note = f"\n{markdown_cell(self.note)}\n" if self.note else ""
        return "\n" + "\n".join(lines) + "\n" + note

    def html(self) -> str:
        """Escaped HTML; empty without rows."""
        if not self.rows:
            return ""
        heads = "".join(
            f'<th scope="col"{self._look(place)}>{_html(name)}</th>'
            for place, name in enumerate(self.columns)
        )
        unseen = ' class="unseen"' if self.is_list else ""
        caption = _html(self.caption)
        parts = [
            f'<div class="scroll{" pinned" if self.pinned else ""}{" many" if len(self.columns) > STACKED else ""}" role="region" tabindex="0" aria-label="{caption}">',
            '<table class="pairs">' if self.is_list else "<table>",
            f"<caption>{caption}</caption>",
            f"<thead{unseen}><tr>{heads}</tr></thead>",
            "<tbody>",
            *(self._html_row(number, row) for number, row in enumerate(self.rows)),
            "</tbody>",
            "</table>",
            "</div>",
            f'<p class="small">{_html(self.note)}</p>' if self.note else "",
        ]
        return "\n".join(parts)

    def __html__(self) -> str:
        """The protocol by which templates know markup."""
        return self.html()

    def _html_row(self, number: int, row: Sequence[str]) -> str:
        is_sum = self.keys and number >= len(self.keys)
        kind = ' class="marked"' if number == self.marked else ' class="sum"' if is_sum else ""
        key = f'<span class="key k{self.keys[number]}"></span>' if number < len(self.keys) else ""
        chosen = ' <span class="badge chosen">chosen</span>' if number == self.marked else ""
        cells = "".join(
            f"<td{self._look(place)}{self._label(place)}>{_html(cell)}</td>"
            for place, cell in enumerate(row[1:], start=1)
        )
        head = f'<th scope="row"{self._look(0)}>{key}{_html(row[0])}{chosen}</th>'
        return f"<tr{kind}>{head}{cells}</tr>"

    def _label(self, place: int) -> str:
        """Name of the column, which stands before the cell on a screen too narrow for the row."""
        if len(self.columns) <= STACKED:
            return ""
        name = self.columns[place]
        words = name.striptags() if hasattr(name, "striptags") else name
        return f' data-name="{words.translate(HTML_SIGNS)}"'

    def _is_left(self, place: int) -> bool:
        return place == 0 or self.is_list or place in self.words

    def _look(self, place: int) -> str:
        return ' class="words"' if place in self.words else ""


def markdown_cell(text: str) -> str:
    """Text that is only text in Markdown, on one line."""
    return " ".join(str(text).split()).translate(MARKDOWN_SIGNS)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _html(text: str) -> str:
    return str(text.__html__()) if hasattr(text, "__html__") else text.translate(HTML_SIGNS)
