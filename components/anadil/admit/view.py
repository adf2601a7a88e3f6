"""The part of pages on the admission of new text."""

from collections.abc import Mapping
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.core.format import counted, human_figure, human_percent
from anadil.core.table import Table
from anadil.page.part import Part

FILE = "admission.json"
SHARES = ("language", "duplicates", "contaminated", "unusable", "personal_data")
"""Checks of `admit` whose figures are shares; the others are times and indices."""


def part(made: Mapping[str, Any], recipe: Mapping[str, object], manifests: Mapping[str, Manifest]) -> Part:  # noqa: ARG001  all views have these
    """The part: a row for each check of new text."""
    rows = []
    for check in made.get("checks", ()):
        say = human_percent if check["name"] in SHARES else human_figure
        figures = [say(check[key]) for key in ("value", "usual", "limit")]
        rows.append((check["name"].replace("_", " "), check["source"] or "text", *figures, check["words"]))
    weeks = made.get("earlier_weeks", 0)
    # A limit that is passed by chance alone refuses nothing, so a figure may be above it.
    notes = [f"Compared with {counted(weeks, 'earlier week')}."] if weeks else []
    columns = ("check", "source", "now", "usually", "limit", "")
    note = " ".join([*notes, *made.get("notes", ())])
    table = Table("Admission of the new text", columns, rows, words=(1, 5), note=note)
    return Part(section="corpus", tables=[table])
