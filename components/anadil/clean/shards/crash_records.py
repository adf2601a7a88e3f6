"""Find, retry alone and skip records that crash a worker.

A process notes in a small file, mapped into memory, which record it is at. The note outlives it, however it
ends. The next process that takes up the shard finds the note, tries that record in a process of its own, and skips
it if that process dies too.
"""

import mmap
import multiprocessing
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from anadil.core.json_text import read_json, write_json
from anadil.core.processes import die_with
from anadil.runtime.executors import process_limits

MAX_DEATHS = 3
"""Deaths of processes at a record that harms nobody alone: then it is skipped all the same."""
NOTE = struct.Struct("<IQB")
ONE_BY_ONE = "one by one"


class Phase(IntEnum):
    """Work on a record."""

    NONE = 0
    READ = 1
    JUDGE = 2
    BATCH = 3
    """Several records are judged at a time: which of them is to blame is not known."""


class Place(NamedTuple):
    """A record of a shard."""

    range_index: int
    record: int
    """Its number within the range."""


class CrashGuard:
    """Skipped records of a shard, and the note of the one that is worked on."""

    def __init__(self, folder: Path, dies_alone: Callable[[Place, Phase], str]) -> None:
        """Look at the note of an earlier process.

        Args:
            folder: Folder of the shard's output; the notes lie beside it.
            dies_alone: Tries a record in a process of its own and says how that died; empty if it did not.
        """
        self._note_path, self._verdict_path = _files(folder)
        self._verdicts: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            self._verdicts = read_json(self._verdict_path)
        with suppress(OSError, struct.error):
            *place, phase = NOTE.unpack(self._note_path.read_bytes()[: NOTE.size])
            if phase == Phase.BATCH:
                self._verdicts[ONE_BY_ONE] = {}
                self._write()
            elif phase:
                self._suspect(Place(*place), Phase(phase), dies_alone)

    @property
    def is_one_by_one(self) -> bool:
        """True if a process died at a batch: then each record is judged by itself, so that its note names it."""
        return ONE_BY_ONE in self._verdicts

    def why_skipped(self, place: Place, phase: Phase) -> str:
        """Return the reason why a record must not be read or judged; empty where it may."""
        if not self._verdicts:
            return ""
        return str(self._verdicts.get(_key(place, phase), {}).get("why", ""))

    def __enter__(self) -> Self:
        """Begin to take notes."""
        self._note_path.parent.mkdir(parents=True, exist_ok=True)
        self._note_path.write_bytes(bytes(NOTE.size))
        with self._note_path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), NOTE.size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the note: an error has not killed the process, unless its memory was at its limit."""
        if not isinstance(error, MemoryError):
            self.begin(Place(0, 0), Phase.NONE)
        self._note.close()

    def begin(self, place: Place, phase: Phase) -> None:
        """Note which record is worked on, and give it its share of CPU time."""
        NOTE.pack_into(self._note, 0, *place, phase)
        process_limits.allow_one_more_record()

    def _suspect(self, place: Place, phase: Phase, dies_alone: Callable[[Place, Phase], str]) -> None:
        verdict = self._verdicts.setdefault(_key(place, phase), {"deaths": 0})
        verdict["deaths"] += 1
        if how := dies_alone(place, phase):
            verdict["why"] = f"kills the process that works on it ({how})"
        elif verdict["deaths"] >= MAX_DEATHS:
            verdict["why"] = f"{MAX_DEATHS} processes died at it"
        self._write()

    def _write(self) -> None:
        draft = self._verdict_path.with_suffix(f".{os.getpid()}")
        write_json(draft, self._verdicts)
        draft.replace(self._verdict_path)


def remove_notes(folder: Path) -> None:
    """Remove the notes of a shard whose ranges have changed."""
    for path in _files(folder):
        path.unlink(missing_ok=True)


def _files(folder: Path) -> tuple[Path, Path]:
    return folder.with_suffix(".place"), folder.with_suffix(".suspects.json")


def _key(place: Place, phase: Phase) -> str:
    return f"{place.range_index} {place.record} {phase.name}"


def death_alone(function: Callable[..., None], *arguments: object) -> str:
    """Call a function in a process of its own; return how that died, empty if it came to its end."""
    process = multiprocessing.get_context("spawn").Process(
        target=_call, args=(os.getpid(), function, *arguments), name="anadil-clean-alone"
    )
    process.start()
    process.join()
    return process_limits.describe_exit(process.exitcode) if process.exitcode else ""


def _call(parent: int, function: Callable[..., None], *arguments: object) -> None:
    die_with(parent)
    process_limits.limit_process()
    try:
        function(*arguments)
    except MemoryError:
        os._exit(process_limits.OUT_OF_MEMORY)
    except BaseException:  # noqa: BLE001  it does not kill, and the shard will meet it
        os._exit(0)
