"""A finished artifact as an object: where it lies, its figures, and how a notebook shows it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from anadil.artifacts.artifact import Manifest, check_sizes, finished_manifest
from anadil.artifacts.find import read_verified
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute
from anadil.core.errors import AnadilError
from anadil.core.format import human_figure, human_seconds
from anadil.core.stages import WRITERS
from anadil.release.notebook import html_chart, html_table, text_table

COLUMNS = ("figure", "value")
TRAINING = "training.jsonl"
CURVES = (
    ("loss", "Loss", "nats per token"),
    ("validation_bits_per_byte", "Held-out text", "bits per byte"),
    ("validation_loss", "Loss on held-out answers", "nats per token"),
)
"""Key of a logged line, title and unit of each picture in a notebook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A corpus, tokenizer, model, adapter or scores; a notebook shows its figures."""

    uri: str
    manifest: Manifest = field(repr=False)
    """Its files with their digests, its recipe and sources; see `anadil trace`."""

    @property
    def kind(self) -> str:
        """Word of the artifact, such as `corpus`."""
        return self.manifest.kind

    @property
    def path(self) -> Path:
        """Local directory with it, every byte checked; one on S3 is downloaded.

        Raises:
            IntegrityError: A file differs from the manifest.
            PreflightError: The disk has too little space for a copy.
        """
        return fetch(self.uri, self.kind)[0]

    @property
    def figures(self) -> dict[str, float | int | str]:
        """Figures of the stage's last line, by name."""
        return dict(self.manifest.figures)

    def rows(self) -> list[tuple[str, str]]:
        """Figures as text."""
        return [
            (
                name.replace("_", " "),
                human_seconds(float(value)) if name == "seconds" else human_figure(value),
            )
            for name, value in self.figures.items()
        ]

    def __str__(self) -> str:
        return "\n".join([f"{self.kind} {self.uri}", *text_table(COLUMNS, self.rows(), (1,))])

    def _repr_html_(self) -> str:
        curves, note = "", ""
        try:
            curves = self._curves()
        except AnadilError as error:
            note = str(error)
        return html_table(f"{self.kind} {self.uri}", COLUMNS, self.rows(), (1,), note=note) + curves

    def _curves(self) -> str:
        """Pictures of loss and held-out text in a notebook; empty for what is not trained.

        Raises:
            AnadilError: The artifact is gone or damaged.
        """
        from anadil.report.charts import Line, line_chart
        from anadil.report.read import series
        from anadil.report.render import style

        if TRAINING not in self.manifest.files:
            return ""
        content = read_verified(self.uri, self.manifest, TRAINING)
        lines = [json.loads(line) for line in content.splitlines()]
        points = {title: (unit, series(lines, key)) for key, title, unit in CURVES}
        return "".join(
            html_chart(line_chart([Line(title, drawn)], title=title, unit=f"{title}, {unit}"), title, style())
            for title, (unit, drawn) in points.items()
            if drawn
        )


def open_artifact(uri: str | Path) -> Artifact:
    """Open a finished artifact of any kind.

    Args:
        uri: Directory or `s3://` URI.

    Raises:
        DataError: There is no finished artifact.
        IntegrityError: Its manifest is damaged, or its files have other sizes.

    Example:
        >>> anadil.open_artifact("demo/corpus/0a1b2c3d4e5f6a7b").figures["kept"]  # doctest: +SKIP
        1432
    """
    # Sizes alone: a model of many GB is verified where its files are asked for.
    place = absolute(str(uri))
    manifest = finished_manifest(place, *WRITERS)
    check_sizes(place, manifest)
    return Artifact(uri=place, manifest=manifest)
