"""Chats out of files: JSON lines, JSON, Parquet, CSV, Excel, and directories of Hugging Face datasets.

A row that is no good chat is skipped under a reason. A line that is no JSON ends the stage: the file itself is damaged.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from anadil.artifacts import storage
from anadil.artifacts.json_values import holds_lines, json_values
from anadil.artifacts.line_reader import DAMAGED
from anadil.artifacts.separated_file import Fault, Place
from anadil.artifacts.storage import is_no_data
from anadil.artifacts.text_files import LINE_SUFFIXES, TEXT_TABLES, json_rows, separated_rows, table_rows
from anadil.core.errors import DataError, RecipeError
from anadil.core.json_text import json_lines
from anadil.text.chat_columns import (
    SIDES,
    Names,
    choices_of,
    columns_read,
    first_place,
    named_in,
    names_place,
    unread_columns,
    unread_of_turns,
    with_chosen,
    with_names,
)
from anadil.text.chats import DROP_REMEDIES, Chat, DroppedChats, Message, Pair, Refusal, messages_of, pair_of
from anadil.text.letters import UNKNOWN, Letters

log = logging.getLogger(__name__)

TABLES = (".parquet", ".arrow")
SUFFIXES = (*LINE_SUFFIXES, ".json", *TABLES, *TEXT_TABLES)
NO_NAME = re.compile(r"(train|data|part|shard|default|0+)?[-_.]?\d*(-of-\d+)?", re.IGNORECASE)
"""Names of files that do not tell a data set from others; its directory does."""
TRAIN, OTHER = re.compile(r"train\b|train_"), re.compile(r"(test|validation|valid|val|dev|eval)(\b|_)")
"""How files and directories of a dataset's parts begin."""
MAX_NAMED_COLUMNS = 30
"""In a message."""
ROWS_AT_A_TIME = 256
"""Rows of a table in memory at a time, fewer where they are long."""
HELDOUT_CHATS, SEEN_CHATS = "heldout_chats.jsonl", "seen_chats.jsonl"
"""Files that finetuning writes beside an adapter."""
NO_NAMES: Names = {}
MAX_TOPIC = 60
"""Characters of a text that may be a topic. Chosen by us."""


def read_chats(
    uris: Sequence[str], dropped: DroppedChats, copy: storage.Copy = storage.local_copy,
    columns: Names = NO_NAMES, letters: Letters = UNKNOWN,
) -> Iterator[Chat]:  # fmt: skip
    """Yield the good chats of files, in order; rows that are no chats are counted in `dropped`.

    `letters` are those of the language, which tell code pages of tables apart.
    """
    for row, place, source, topics in _rows_in(uris, copy, columns, letters, dropped, columns_read):
        chat = messages_of(row)
        if isinstance(chat, Refusal):
            _drop(chat, place, dropped)
        else:
            choices = choices_of(row, chat[-2].content, chat[-1].content)
            yield Chat(messages=chat, place=place, source=source, choices=choices, topics=topics)


def kept_chats(path: Path) -> list[Chat]:
    """Return the chats that finetuning has written into a file beside an adapter; none without the file."""
    if not path.is_file():
        return []
    return [
        Chat(
            messages=tuple(Message(role=one["role"], content=one["content"]) for one in row["messages"]),
            place=f"{path.name}:{number}",
            source=row.get("source", ""),
            choices=tuple(row.get("choices", ())),
            topics=tuple(row.get("topics", {}).items()),
        )
        for number, row in enumerate(json_lines(path), start=1)
    ]


def read_pairs(
    uris: Sequence[str], dropped: DroppedChats, copy: storage.Copy = storage.local_copy,
    columns: Names = NO_NAMES, letters: Letters = UNKNOWN,
) -> Iterator[Pair]:  # fmt: skip
    """Yield the good pairs of answers of files, in order; the rest is as in `read_chats`."""

    def read(row: Mapping[str, object]) -> set[str]:
        return {*columns_read(row, answers=()), *SIDES}

    for row, place, source, _ in _rows_in(uris, copy, columns, letters, dropped, read):
        pair = pair_of(row)
        if isinstance(pair, Refusal):
            _drop(pair, place, dropped)
        else:
            chosen, rejected = (Chat(messages=side, place=place, source=source) for side in pair)
            yield Pair(chosen=chosen, rejected=rejected)


def refuse_unknown_mix(mix: Iterable[str], sources: Iterable[str]) -> None:
    """Refuse weights of `finetune.mix` for names that no chat has."""
    known = sorted(set(sources))
    if unknown := sorted(set(mix) - set(known)):
        raise RecipeError(
            f"finetune.mix: no chats of {', '.join(unknown)}; the sources are {', '.join(known) or 'none'}; "
            "correct it, or clear it with finetune.mix={}"
        )


def _rows_in(
    uris: Sequence[str], copy: storage.Copy, columns: Names, letters: Letters, dropped: DroppedChats,
    read: Callable[[Mapping[str, object]], set[str]],
) -> Iterator[tuple[dict[str, object], str, str, tuple[tuple[str, str], ...]]]:  # fmt: skip
    """Yield each row, its place, the name of its data set and its topics; count what is not read."""
    for uri in check_chat_files(uris):
        source, name = data_set_of(uri), Path(uri).name
        with copy(uri) as path:
            first: int | None = None

            # Looked at twice, and counted once.
            def named(path: Path = path, uri: str = uri) -> Iterator[dict[str, object]]:
                return (
                    with_names(row, columns) for _, row in rows_of(path, uri, letters, bad=lambda *_: None)
                )

            def drop(number: Place, why: str, name: str = name) -> None:
                _drop(Refusal("bad_row", why), f"{name}:{number}", dropped)

            for number, given in rows_of(path, uri, letters, drop):
                row = with_names(given, columns)
                if first is None and names_place(row):
                    first = first_place(named())
                    log.info("%s: answers are places among the choices, counted from %d", uri, first)
                of_recipe, used = named_in(given, columns), read(row)
                # A path of keys such as `document.text` reads its first key.
                known = {
                    column if column in given else column.partition(".")[0] for column in of_recipe.values()
                }
                unread = {*unread_columns(given, {*used - {*of_recipe}, *known}), *unread_of_turns(row, used)}
                dropped.add_columns(name, {*given, *of_recipe.values()}, unread)
                topics = tuple(
                    (column, value.strip())
                    for column, value in given.items()
                    if column in unread and isinstance(value, str) and 0 < len(value.strip()) <= MAX_TOPIC
                )
                yield with_chosen(row, first or 0), f"{name}:{number}", source, topics
        dropped.say_unread(name)


def _drop(refused: Refusal, place: str, dropped: DroppedChats) -> None:
    dropped.add(refused.reason, f"{place} ({refused.value!r})" if refused.value else place)


def data_set_of(uri: str) -> str:
    """Name of the data set that a file belongs to: the file's, or its directory's where that tells nothing."""
    path = PurePosixPath(uri)
    names = [path.name.partition(".")[0], *(parent.name for parent in path.parents)]
    return next((name for name in names if name and not NO_NAME.fullmatch(name)), names[0])


def check_chat_files(uris: Sequence[str]) -> list[str]:
    """Return the files that hold chats to train on; refuse those of another kind, before any is read.

    Of a dataset with parts only `train` is read, unless the recipe names files of another part alone.
    """
    files = [uri for uri in uris if not is_no_data(PurePosixPath(uri).name)] or list(uris)
    for uri in files:
        if not uri.lower().endswith(SUFFIXES):
            raise DataError(
                f"{uri}: chats are read from {', '.join(SUFFIXES)} only; convert the file, another spreadsheet to .xlsx"
            )
    roots = {root for uri in files if (root := _part_of(uri, TRAIN))}
    chosen = [uri for uri in files if _part_of(uri, OTHER) not in roots]
    if len(chosen) < len(files):
        log.info("%d files of other parts beside train are not trained on", len(files) - len(chosen))
    return chosen


def _part_of(uri: str, name: re.Pattern[str]) -> str:
    """Return the directory of the dataset that has a file as a part of this name; empty if it is none."""
    path = PurePosixPath(uri)
    for folder in (path, path.parent):
        if name.match(folder.name.lower()):
            return str(folder.parent)
    return ""


def refuse_no_chats(
    uris: Sequence[str], num_chats: int, dropped: DroppedChats, kind: Literal["chats", "pairs"] = "chats",
    columns: Names = NO_NAMES,
) -> None:  # fmt: skip
    """Refuse files without a chat, or a pair of answers, to train on."""
    missing = [f"{role}: {column}" for role, column in columns.items() if column not in dropped.columns]
    if missing and dropped.columns:
        raise DataError(
            f"finetune.columns: {', '.join(missing)}: no row has such a column; "
            f"the columns are {', '.join(sorted(dropped.columns)[:MAX_NAMED_COLUMNS])}"
        )
    if num_chats:
        return
    if not dropped.total:
        remedy = DROP_REMEDIES["no_chat" if kind == "chats" else "no_pair"]
        raise DataError(f"{kind}: {', '.join(uris)} hold no rows; {remedy}")
    raise DataError(f"{kind}: none of {dropped.total:,} rows can be trained on: {dropped}")


def refuse_no_questions(uris: Sequence[str], num: int, dropped: DroppedChats) -> None:
    """Refuse files of `evaluate.questions` without a question that has an answer."""
    if not num:
        why = f": {dropped}" if dropped.total else "; name another file"
        raise DataError(f"evaluate.questions: {', '.join(uris)}: hold no question with an answer{why}")


def rows_of(
    path: Path, name: str, letters: Letters = UNKNOWN, bad: Callable[[Place, str], None] | None = None
) -> Iterator[tuple[Place, dict[str, object]]]:
    """Yield the rows of one file, numbered from 1 or by line; the end of `name`, its URI, tells its kind.

    `bad` is told of each row of a table that cannot be read.
    """
    suffix = next(end for end in SUFFIXES if name.lower().endswith(end))
    try:
        if suffix in TEXT_TABLES:
            yield from _good_rows(separated_rows(path, name, letters), name, bad)
            return
        if suffix in TABLES:
            rows = table_rows(path, name, at_a_time=ROWS_AT_A_TIME)
        elif suffix == ".json" and not holds_lines(path, suffix):
            rows = _json_values(path, name)
        else:
            rows = json_rows(path, name)
        for number, row in rows:
            if not isinstance(row, dict):
                raise DataError(
                    f"{name}:{number}: a {type(row).__name__}, not an object; {DROP_REMEDIES['no_chat']}"
                )
            yield number, row
    except DAMAGED as error:
        raise DataError(f"{name}: is damaged ({error}); repair the file") from None


def _good_rows(
    rows: Iterable[tuple[Place, dict[str, object] | Fault]],
    name: str,
    bad: Callable[[Place, str], None] | None,
) -> Iterator[tuple[Place, dict[str, object]]]:
    for number, row in rows:
        if not isinstance(row, Fault):
            yield number, row
        elif bad is None:
            raise DataError(f"{name}:{number}: {row.why}; {DROP_REMEDIES['bad_row']}")
        else:
            bad(number, row.why)


def _json_values(path: Path, name: str) -> Iterator[tuple[int, object]]:
    number = 0
    try:
        for number, row in json_values(path, ".json"):
            yield number, row
    except ValueError as error:
        raise DataError(f"{name}: is not JSON behind item {number} ({error}); correct it") from None
