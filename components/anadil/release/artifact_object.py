"""A finished artifact as an object: where it lies, its figures, and how a notebook shows it."""

from dataclasses import dataclass, field
from pathlib import Path

from anadil.artifacts.artifact import Manifest, check_sizes, finished_manifest
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute
from anadil.core.format import human_figure, human_seconds
from anadil.core.stages import WRITERS
from anadil.release.notebook import html_table, text_table

COLUMNS = ("figure", "value")


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
        return html_table(f"{self.kind} {self.uri}", COLUMNS, self.rows(), (1,))


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
