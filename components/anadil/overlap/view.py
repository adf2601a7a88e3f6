"""The part of pages on documents that training leaves out, since another source has them."""

from collections.abc import Mapping

from anadil.artifacts.artifact import Manifest
from anadil.core.format import DASH, human_figure, human_percent, number
from anadil.core.table import Table
from anadil.page.format import ratio
from anadil.page.part import Part
from anadil.runtime.job import by_source

FILE = ""
REASONS = {"heldout": "held-out text", "duplicate": "duplicates", "near_duplicate": "near duplicates"}
"""Figure of the stage `overlap` -> its name on the page."""
HELD_IN = "in_"


def part(made: object, recipe: object, manifests: Mapping[str, Manifest]) -> Part:  # noqa: ARG001  all views have these
    """The part: a row for each source that was compared with the others, by the figures of the manifests."""
    rows = []
    for source, manifest in by_source("overlap", manifests).items():
        counts = {key: number(manifest.figures.get(key)) for key in ("documents", *REASONS, "remaining")}
        # The figures name each source that holds some of its documents.
        holders = [
            f"{key.removeprefix(HELD_IN)}: {human_figure(count)}"
            for key, count in manifest.figures.items()
            if key.startswith(HELD_IN)
        ]
        share = ratio(counts["documents"], sum(counts[reason] or 0 for reason in REASONS))
        rows.append(
            (source, *map(human_figure, counts.values()), human_percent(share), ", ".join(holders) or DASH)
        )
    columns = (
        "source",
        "documents to train on",
        *REASONS.values(),
        "remaining",
        "left out",
        "which stand in",
    )
    note = (
        "Held-out text: 13 words in a row of a held-out document of another source, which few documents hold. "
        "Of documents that are alike in two sources, that of the earlier one stays."
    )
    title = "Documents that training leaves out for another source"
    return Part(section="corpus", tables=[Table(title, columns, rows, words=(7,), note=note)])
