"""Read the outside lists that a run compares its documents with: once, then shared by all processes.

They are compiled into arrays of hashes in a folder, which each process maps into memory.
"""

import itertools
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from anadil.artifacts import storage
from anadil.artifacts.chat_files import check_chat_files, rows_of
from anadil.artifacts.line_reader import DAMAGED, MAX_LINE_BYTES, TooLong
from anadil.artifacts.text_files import LINE_SUFFIXES, TEXT_TABLES, json_rows, table_rows
from anadil.clean.filters.decontaminate import Decontamination, texts_of
from anadil.clean.filters.url_lists import UrlLists, read_url_lists
from anadil.clean.kernels.ng_words import read_ng_words
from anadil.clean.read.charset import decode_text
from anadil.core.errors import DataError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_place
from anadil.text.fasttext_model import QualityModel, load_fasttext
from anadil.text.language import load_language
from anadil.text.language_data import Language

log = logging.getLogger(__name__)

URLS, ITEMS, WORDS, MODEL = "urls", "items", "words.json", "quality.bin"
"""Folders and files of the compiled lists."""
URL_KEY, WORD_KEY, MODEL_KEY = "clean.url_lists", "clean.ng_words", "clean.quality_model"
TEXT_KEY = "evaluate.heldout"
TASK_KEY = "evaluate.tasks"
CHAT_KEYS = ("finetune.inputs", "finetune.preference.inputs", "evaluate.questions")
READ_SUFFIXES = (*LINE_SUFFIXES, ".json", ".parquet", ".arrow", ".txt", *TEXT_TABLES)
SIDE_FILE = "correct or remove it, or set clean.decontaminate to false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Lists that documents are compared with; None where the recipe names nothing."""

    urls: UrlLists | None = None
    items: Decontamination | None = None
    ng_words: tuple[str, ...] = ()
    quality_model: Path | None = None
    """A fastText model."""


def compile_lists(recipe: Recipe, side_files: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Read the lists of a recipe, by recipe key, into an empty folder, for `load_lists`."""
    if uris := side_files.get(URL_KEY):
        with ExitStack() as copies:
            paths = [copies.enter_context(storage.local_copy(uri)) for uri in uris]
            lists = read_url_lists(paths, recipe.clean.url_allow)
        (folder / URLS).mkdir()
        lists.save(folder / URLS)
    if uris := side_files.get(WORD_KEY):
        (folder / WORDS).write_text(json.dumps(read_ng_words(uris)), encoding="utf-8")
    if uris := side_files.get(MODEL_KEY):
        with storage.local_copy(one_model(uris)) as path:
            # Fails before any document is read, unless it is a model that knows the label.
            QualityModel(str(path), recipe.clean.quality_label)
            load_fasttext.cache_clear()  # the workers load their own
            shutil.copyfile(path, folder / MODEL)
    chats = [uri for key in CHAT_KEYS for uri in side_files.get(key, ())]
    tasks = _task_files(recipe, side_files.get(TASK_KEY, ()))
    if uris := [*side_files.get(TEXT_KEY, ()), *check_chat_files(chats), *tasks]:
        items = Decontamination(read_items(uris), load_language(recipe.language))
        (folder / ITEMS).mkdir()
        items.save(folder / ITEMS)


def _task_files(recipe: Recipe, uris: Sequence[str]) -> list[str]:
    """Return the data among the files of `evaluate.tasks`; warn of tasks that have theirs elsewhere."""
    kind = next(each for each in STAGES["clean"].side_files if each.key == TASK_KEY)
    names = [name for name in recipe.evaluate.tasks if not is_place(name, kind)]
    names += [uri for uri in uris if uri.startswith(storage.BUILT_IN)]
    unread = [uri for uri in uris if not uri.lower().endswith((*READ_SUFFIXES, ".yaml"))]
    if recipe.clean.decontaminate and (names or unread):
        log.warning(
            "clean.decontaminate: not compared with %s: the text of tasks is read of files that evaluate.tasks names, which "
            "end in one of %s",
            ", ".join([*names, *unread]), " ".join(READ_SUFFIXES),
        )  # fmt: skip
    return [uri for uri in uris if uri.lower().endswith(READ_SUFFIXES)]


def one_model(uris: Sequence[str]) -> str:
    """Return the only file that a recipe names as its model."""
    if len(uris) > 1:
        raise DataError(f"{MODEL_KEY}: names {len(uris)} files ({', '.join(uris[:3])}); name one")
    return uris[0]


def load_lists(folder: Path | None, language: Language) -> Lists:
    """Load the lists that were compiled into a folder; None: there are no lists."""
    if folder is None:
        return Lists()
    words, model = folder / WORDS, folder / MODEL
    return Lists(
        quality_model=model if model.exists() else None,
        ng_words=tuple(json.loads(words.read_text(encoding="utf-8"))) if words.exists() else (),
        urls=UrlLists.load(folder / URLS) if (folder / URLS).is_dir() else None,
        items=Decontamination.load(folder / ITEMS, language) if (folder / ITEMS).is_dir() else None,
    )


def read_items(uris: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of everything in files of any layout: JSON, tables, text."""
    for uri in uris:
        name = uri.rsplit("/", 1)[-1]
        with storage.local_copy(uri) as path:
            for place, text in _texts(path, uri):
                yield f"{name}{place}", text


def _texts(path: Path, uri: str) -> Iterator[tuple[str, str]]:
    lower = uri.lower()
    try:
        if lower.endswith((*LINE_SUFFIXES, ".parquet")):
            read = json_rows if lower.endswith(LINE_SUFFIXES) else table_rows
            rows = read(path, uri, remedy=SIDE_FILE)
            yield from ((f":{number}", text) for number, row in rows for text in texts_of(row))
        elif lower.endswith((".json", ".arrow", *TEXT_TABLES)):
            if lower.endswith(TEXT_TABLES):  # names of columns, or the first row of a table that has none
                yield from (
                    (":1", name) for _, row in itertools.islice(rows_of(path, uri), 1) for name in row
                )
            yield from ((f":{number}", text) for number, row in rows_of(path, uri) for text in texts_of(row))
        elif lower.endswith(".txt"):
            if (size := path.stat().st_size) > MAX_LINE_BYTES:
                raise DataError(f"{uri}: {TooLong(size, 'text')}; cut it, or give it as .jsonl; {SIDE_FILE}")
            yield ":1", decode_text(path.read_bytes())[0]
        else:
            raise DataError(
                f"{uri}: cannot be compared with; its name must end in one of {' '.join(READ_SUFFIXES)}; {SIDE_FILE}"
            )
    except (*DAMAGED, pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{uri}: damaged ({error}); {SIDE_FILE}") from None
