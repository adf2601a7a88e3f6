"""Read the texts of files that a command learns from, and say what of them cannot be read."""

from collections.abc import Iterator, Sequence
from typing import Self
from urllib.parse import urlsplit

from anadil.clean.read.input_kinds import check_suffixes
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import read_records
from anadil.core.errors import DataError


class SampleText(str):
    """A text that knows its source: the host that its record names, or its file."""

    __slots__ = ("source",)
    source: str

    @classmethod
    def of(cls, text: str, source: str) -> Self:
        """Make the text of a source."""
        known = cls(text)
        known.source = source
        return known


def read_texts(uris: Sequence[str], text_field: str) -> Iterator[SampleText]:
    """Yield the texts of files, in order."""
    check_suffixes(uris, "the texts to learn from")
    for uri in uris:
        stats = ReadStats()
        for record in read_records(uri, uri, text_field, stats):
            if record.html is not None:
                raise DataError(f"{uri}: holds web pages; clean them first, and give the corpus's text")
            yield SampleText.of(record.text, urlsplit(record.url).hostname or uri)
        if not stats.records:
            raise DataError(
                f"{uri}: holds no text that can be read; {'; '.join(stats.places) or 'it is empty'}"
            )
        stats.check_bad_share(1)  # a warning, since nobody trains on a sample
