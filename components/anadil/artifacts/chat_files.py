"""Chats out of files: JSON lines, plain or packed.

A row that is no good chat is left out under a reason; a line that is no JSON ends the stage, because
then the file itself is damaged.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from anadil.artifacts import storage
from anadil.artifacts.line_reader import DAMAGED, TooLong, bounded_lines
from anadil.core.errors import DataError
from anadil.text.chats import DROP_REMEDIES, Chat, DroppedChats, Refusal, messages_of

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
NO_NAME = re.compile(r"(train|data|part|shard|default|0+)?[-_.]?\d*(-of-\d+)?", re.IGNORECASE)
"""Names of files that do not tell a data set from others; its directory does."""


def read_chats(
    uris: Sequence[str], dropped: DroppedChats, copy: storage.Copy = storage.local_copy
) -> Iterator[Chat]:
    """The good chats of files, in order; the other rows are counted in `dropped`.

    Args:
        uris: The files.
        dropped: Gets the rows that are no chats.
        copy: Gives what is to be read of a file.

    Raises:
        DataError: A file is of another kind or damaged, or a row is not a JSON object; with file and line.
    """
    check_chat_files(uris)
    for uri in uris:
        source = source_of(uri)
        with copy(uri) as path:
            for number, row in _rows(path, uri):
                place = f"{Path(uri).name}:{number}"
                found = messages_of(row)
                if isinstance(found, Refusal):
                    dropped.add(found.reason, f"{place} ({found.value!r})" if found.value else place)
                else:
                    yield Chat(messages=found, place=place, source=source)


def source_of(uri: str) -> str:
    """Name of the data set that a file belongs to: the file's, or its directory's where that tells nothing."""
    path = PurePosixPath(uri)
    names = [path.name.partition(".")[0], *(parent.name for parent in path.parents)]
    return next((name for name in names if name and not NO_NAME.fullmatch(name)), names[0])


def check_chat_files(uris: Sequence[str]) -> None:
    """Refuse files of another kind, before any is read.

    Raises:
        DataError: Of the first such file.
    """
    for uri in uris:
        if not uri.lower().endswith(SUFFIXES):
            raise DataError(f"{uri}: chats are read from {', '.join(SUFFIXES)} only; convert the file")


def refuse_no_chats(uris: Sequence[str], num_chats: int, dropped: DroppedChats) -> None:
    """Refuse files without a chat to train on.

    Raises:
        DataError: With the reason of each kind of row.
    """
    if num_chats:
        return
    if not dropped.total:
        raise DataError(f"chats: {', '.join(uris)} hold no rows; {DROP_REMEDIES['no_chat']}")
    raise DataError(f"chats: none of {dropped.total:,} rows can be trained on: {dropped}")


def _rows(path: Path, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    suffix = next(end for end in SUFFIXES if name.lower().endswith(end))
    try:
        yield from _json_lines(path, name, suffix)
    except DAMAGED as error:
        raise DataError(f"{name}: is damaged ({error}); repair the file") from None


def _json_lines(path: Path, name: str, suffix: str) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in enumerate(bounded_lines(path, suffix), start=1):
        if isinstance(line, TooLong):
            raise DataError(f"{name}:{number}: {line}; write each chat as a line of its own")
        if not line.strip():
            continue
        try:
            # Some editors begin a file with a byte order mark.
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{name}:{number}: not a JSON line ({error}); correct or remove the line"
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{name}:{number}: a {type(row).__name__}, not an object; {DROP_REMEDIES['no_chat']}"
            )
        yield number, row
