"""The admission of a week's text: each check with its figure, the usual one and the limit."""

from collections.abc import Mapping
from typing import Any

from anadil.core.format import counted, human_figure, human_percent
from anadil.report.elements import TextTable

SHARES = ("language", "duplicates", "contaminated", "unusable", "personal_data")
"""Checks whose figures are shares; the others are times and indices."""


def admission_table(admission: Mapping[str, Any]) -> TextTable:
    """Build a row for each check; no rows for a run that admits nothing."""
    rows = []
    for check in admission.get("checks", ()):
        say = human_percent if check["name"] in SHARES else human_figure
        figures = [say(check[key]) for key in ("value", "usual", "limit")]
        rows.append((check["name"].replace("_", " "), check["source"] or "text", *figures, check["words"]))
    weeks = admission.get("earlier_weeks", 0)
    # A limit that is passed by chance alone refuses nothing, so a figure may be above it.
    notes = [
        f"Compared with {counted(weeks, 'earlier week')}." if weeks else "",
        *admission.get("notes", ()),
    ]
    columns = ("check", "source", "now", "usually", "limit", "")
    return TextTable(
        "Admission of the new text", columns, rows, words=(1, 5), note=" ".join(filter(None, notes))
    )
