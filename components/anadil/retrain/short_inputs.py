"""Few patterns for many new files: a recipe is an argument of each step's command, which has a limit."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from anadil.artifacts import storage
from anadil.core.errors import AnadilError, DataError
from anadil.core.format import counted

MOST_BYTES = 32 * 1024
"""Room for the names of a source's new files. An argument of a command has 128 KiB. Source: execve(2), MAX_ARG_STRLEN."""
SIGNS = frozenset("*?[")


def short_inputs(new: Sequence[str], others: Collection[str], key: str) -> tuple[str, ...]:
    """Return names or patterns of new files, and of no others.

    Args:
        new: Each of them.
        others: Files of the same inputs that are not to be read.
        key: Recipe key of the inputs, for messages.
    """
    if _size(new) <= MOST_BYTES:
        return tuple(new)
    patterns = tuple(
        pattern
        for folder, names in groupby(sorted(new), _folder)
        for pattern in _of_folder(folder, list(names), [each for each in others if _folder(each) == folder])
    )
    if _size(patterns) > MOST_BYTES:
        raise DataError(
            f"{key}: the names of {counted(len(new), 'new file')} take {_size(patterns):,} bytes in the recipe of the "
            f"retraining, which has room for {MOST_BYTES:,}; put the files of a week into a folder of their own, or let their "
            "names begin as no earlier one does, such as with the date"
        )
    return patterns


def _of_folder(folder: str, new: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    if any(SIGNS.intersection(name) for name in new):
        yield from new
        return
    for pattern, names in _covers(folder, new, others):
        # Files that no pattern of the recipe names may lie there too.
        yield from (pattern,) if _matches(pattern) == set(names) else names


def _covers(begin: str, new: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield patterns for names that begin alike, each with its names: as few as leave all others out."""
    if len(new) == 1:
        yield new[0], new
    elif not any(name.startswith(begin) for name in others):
        endings = {os.path.splitext(name)[1] for name in new}  # noqa: PTH122  also of URIs
        yield f"{begin}*{endings.pop() if len(endings) == 1 else ''}", new
    else:
        for longer, names in groupby(new, lambda name: name[: len(begin) + 1]):
            group = list(names)
            yield from [(longer, group)] if group == [begin] else _covers(longer, group, others)


def _matches(pattern: str) -> set[str]:
    try:
        return set(storage.input_store(pattern).sizes(pattern))
    except AnadilError:
        return set()


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]


def _size(names: Sequence[str]) -> int:
    return len(json.dumps(names))
