"""Names and tags that a person gives runs on a page: one small file of a place, so that a list takes one read."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError
from anadil.core.files import file_lock
from anadil.release.runs import Run

FILE = ".notes.json"
"""In `runs/`. A dot, since other files there are records of runs."""
MAX_NAME, MAX_TAGS = 80, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """Name and tags of a run."""

    name: str = ""
    tags: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Both as one text, such as `baseline #az`."""
        return " ".join(filter(None, (self.name, *(f"#{tag}" for tag in self.tags))))


def notes_in(place: str) -> dict[str, RunNote]:
    """Return the notes of the runs of a work directory or a store, by the id of the run."""
    uri = join(place, "runs", FILE)
    if not storage.store(uri).exists(uri):
        return {}
    try:
        known = json.loads(storage.store(uri).read(uri))
        return {
            str(run): RunNote(name=str(one["name"]), tags=tuple(map(str, one["tags"])))
            for run, one in known.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{uri}: not the names of runs ({error}), correct it or remove it") from None


def notes_of(runs: Sequence[Run]) -> list[RunNote]:
    """Return the note of each run, empty where it has none."""
    notes = {place: notes_in(place) for place in {run.place for run in runs}}
    return [notes[run.place].get(run.id, RunNote()) for run in runs]


def set_note(place: str, run: str, fields: Mapping[str, str]) -> None:
    """Give a run the name and the tags of a form. Empty ones take them away."""
    tags = dict.fromkeys(each.strip()[:MAX_NAME] for each in fields.get("tags", "").split(","))
    note = RunNote(
        name=" ".join(fields.get("name", "").split())[:MAX_NAME], tags=tuple(filter(None, tags))[:MAX_TAGS]
    )
    uri = join(place, "runs", FILE)
    # In a store the last writer wins: names are no data.
    with nullcontext() if "://" in place else file_lock(Path(place, "runs", ".notes.lock")):
        notes = {each: asdict(known) for each, known in notes_in(place).items() if each != run}
        notes |= {run: asdict(note)} if note != RunNote() else {}
        storage.store(uri).write(uri, json.dumps(notes, ensure_ascii=False).encode(errors="replace"))
