"""Templates, filled; text from outside stays text in HTML, Markdown and YAML."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from anadil.core.format import one_line
from anadil.core.table import markdown_cell

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FOLDER = Path(__file__).parent
MAX_VALUE = 500
"""Characters of a text in front matter."""


def render_template(template: Path, view: dict[str, object]) -> str:
    """Fill a template, which may include those of this folder. Text from outside is escaped whatever it is."""
    from markupsafe import Markup

    filled = environment(template.parent).get_template(template.name)
    return filled.render(view, style=Markup(style()))  # noqa: S704  our own file


@functools.cache
def environment(*folders: Path) -> "Environment":
    """Templates of some folders and of this one."""
    import jinja2
    from markupsafe import Markup

    # A missing field is a mistake of ours and must fail; text from outside is never markup.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, FOLDER]), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    # Both return escaped text.
    environment.filters["cell"] = lambda text: Markup(markdown_cell(text))  # noqa: S704
    environment.filters["markdown"] = lambda table, *empty: Markup(table.markdown(*empty))  # noqa: S704
    environment.filters["capfirst"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    return environment


def style() -> str:
    """The style sheet of all pages."""
    return (FOLDER / "style.css").read_text(encoding="utf-8")


def front_matter(fields: Mapping[str, object]) -> "Markup":
    """Front matter of a card, as the Hugging Face hub reads it.

    Every text is put on one line, so that none can hold the `---` that ends the block; empty fields are left out.
    """
    from markupsafe import Markup

    filled = {name: _plain(value) for name, value in fields.items() if value not in (None, "", [], {})}
    text = yaml.safe_dump(filled, allow_unicode=True, sort_keys=False, width=10_000)
    return Markup(text)  # noqa: S704  YAML is no HTML; the dumper has quoted what has to be


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return one_line(value, MAX_VALUE) if isinstance(value, str) else value
