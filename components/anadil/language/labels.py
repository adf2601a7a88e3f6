"""Texts that people called good or bad."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anadil.artifacts.text_files import json_rows
from anadil.core.errors import DataError
from anadil.text.domains import host_of

GOOD, BAD = "good", "bad"
LEAST = 20
"""Fewest texts of a label. Chosen by us: five parts with four of each."""
REMEDY = 'a row is {"text": ..., "label": "good" or "bad"}, or stands in a file good.jsonl or bad.jsonl'


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledText:
    """A text with its label."""

    text: str
    is_good: bool
    source: str
    """Host of its address, or its file. Empty if the row names neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Texts, each once, and what was skipped."""

    texts: tuple[LabelledText, ...]
    skipped: Counter[str]
    """`repeated`: rows whose text and label another row has. `without_text`: such as one of a page that is not stored any more."""

    @property
    def num_good(self) -> int:
        """Texts that are good."""
        return sum(each.is_good for each in self.texts)


def read_labels(files: Sequence[Path]) -> Labels:
    """Read labels of JSON lines, and refuse sets that a classifier cannot learn from."""
    by_text: dict[str, tuple[LabelledText, str]] = {}
    skipped: Counter[str] = Counter()
    for path in files:
        for number, row in json_rows(path, str(path), REMEDY):
            place = f"{path}:{number}"
            if not isinstance(row, dict):
                raise DataError(f"{place}: not an object: {REMEDY}")
            label = row.get("label", path.stem.split(".")[0])
            if label not in (GOOD, BAD):
                raise DataError(f"{place}: label {str(label)[:40]!r} is neither good nor bad: {REMEDY}")
            text = row.get("text")
            if not isinstance(text, str) or not text.strip():
                skipped["without_text"] += 1
                continue
            key, is_good = " ".join(text.split()), label == GOOD
            if key not in by_text:
                by_text[key] = LabelledText(text=key, is_good=is_good, source=_source(row)), place
            elif by_text[key][0].is_good == is_good:
                skipped["repeated"] += 1
            else:
                raise DataError(
                    f"{place}: is {label}, and the same text in {by_text[key][1]} is not: keep one label"
                )
    labels = Labels(texts=tuple(each for each, _ in by_text.values()), skipped=skipped)
    for word, count in ((GOOD, labels.num_good), (BAD, len(by_text) - labels.num_good)):
        if count < LEAST:
            raise DataError(
                f"{', '.join(map(str, files))}: {count} {word} texts are too few to learn from, beside {skipped['repeated']} repeated "
                f"and {skipped['without_text']} without text: label {LEAST} of each at least, better 150"
            )
    return labels


def files_of(path: Path) -> list[Path]:
    """Return the file, or the files of a folder of labels as `anadil watch` writes it."""
    if not path.is_dir():
        return [path]
    files = [path / f"{each}.jsonl" for each in (GOOD, BAD) if (path / f"{each}.jsonl").is_file()]
    if not files:
        raise DataError(f"{path}: holds neither good.jsonl nor bad.jsonl. Name the file of labels")
    return files


def _source(row: dict[str, object]) -> str:
    host = host_of(str(row.get("url") or ""))
    return host or str(row.get("source") or "").rpartition(":")[0] or str(row.get("source") or "")
