"""Labels that a person gives documents: `good.jsonl` and `bad.jsonl` of one folder.

`anadil language learn NAME good.jsonl --bad bad.jsonl` reads them as they are, and a classifier for
`clean.quality_model` can be trained on them.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from anadil.artifacts.storage import store
from anadil.core.errors import DataError

Label = Literal["good", "bad"]
LABELS: tuple[Label, ...] = get_args(Label)
FOLDER = "labels"
KEYS = ("id", "source", "url", "reason", "text")
"""Keys of a line: those of the document, and why it was dropped."""


def labels_folder(roots: tuple[str, ...]) -> Path:
    """Return where labels are written: in the first local place that is watched, else where the command was started."""
    # A store is shared; labels are one person's, until that person hands them on.
    local = [root for root in roots if "://" not in root]
    return Path(local[0], FOLDER) if local else Path.cwd() / FOLDER


def label_of(folder: Path, number: str) -> Label | None:
    """Return the label of a document, by its id."""
    return next((label for label in LABELS for row in _rows(folder, label) if row.get("id") == number), None)


def num_labels(folder: Path) -> dict[Label, int]:
    """Return how many documents have each label."""
    return {label: sum(1 for _ in _rows(folder, label)) for label in LABELS}


def set_label(folder: Path, document: Mapping[str, Any], label: str) -> None:
    """Give a document a label, in place of the one that it has; an empty label takes that away."""
    if label and label not in LABELS:
        raise DataError(f"{label[:40]}: not a label; give {' or '.join(LABELS)}")
    # The text stands in the file itself: a dropped document is stored nowhere else.
    row = {key: document[key] for key in KEYS if document.get(key) is not None}
    try:
        with _locked(folder):
            for each in LABELS:
                known = list(_rows(folder, each))
                others = [one for one in known if one.get("id") != row["id"]]
                if each == label:
                    others.append(row)
                if others != known:
                    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in others)
                    store(str(folder)).write(str(folder / f"{each}.jsonl"), lines.encode(errors="replace"))
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror}); check its rights") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other writers out: two windows of a browser, or two servers."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _rows(folder: Path, label: Label) -> Iterator[dict[str, Any]]:
    path = folder / f"{label}.jsonl"
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield dict(json.loads(line))
                except (ValueError, TypeError):
                    # Labels are somebody's work: what cannot be read must not be written over.
                    raise DataError(
                        f"{path}:{number}: not a JSON object; correct the line or take it out"
                    ) from None
