"""Tables as text for a terminal and as HTML for a notebook, without a style that would leak into its page."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from anadil.core.format import visible

CELL = "padding:.2em .9em .2em 0;text-align:{};vertical-align:top"


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> list[str]:
    """Lines of a table; the last column takes what it needs."""
    table = [tuple(columns), *(tuple(map(visible, row)) for row in rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def html_table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] = (),
    *,
    note: str = "",
) -> str:
    """A table in HTML; every text is escaped, colours and fonts are the notebook's."""
    sides = [CELL.format("right" if place in numbers else "left") for place in range(len(columns))]

    def cells(texts: Sequence[str], tag: str) -> str:
        name = tag.partition(" ")[0]
        pairs = zip(texts, sides, strict=True)
        return "".join(f'<{tag} style="{side}">{escape(text)}</{name}>' for text, side in pairs)

    head = cells(columns, 'th scope="col"')
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    footnote = f"<p>{escape(note)}</p>" if note else ""
    return (
        f'<div style="overflow-x:auto"><table><caption style="text-align:left">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{footnote}"
    )


def html_chart(svg: str, label: str, style: str) -> str:
    """A picture with a style of its own, which neither takes that of the notebook nor gives it one."""
    begin, _, rest = svg.partition(">")
    rules = f"<style>{style}.chart{{background:var(--paper);font-family:system-ui,sans-serif}}</style>"
    picture = f'{begin} xmlns="http://www.w3.org/2000/svg">{rules}{rest}'
    data = b64encode(picture.encode()).decode()
    return f'<img alt="{escape(label)}" src="data:image/svg+xml;base64,{data}" style="width:480px;max-width:100%">'


def html_page(page: str, label: str) -> str:
    """A whole page, folded, in a frame of its own, so that its style stays there."""
    frame = f'<iframe title="{escape(label)}" srcdoc="{escape(page)}" style="width:100%;height:640px;border:0"></iframe>'
    return f"<details><summary>{escape(label)}</summary>{frame}</details>"
