"""Read the outside lists that a run compares its documents with: once, then shared by all processes.

They are compiled into arrays of hashes in a folder, which each process maps into memory.
"""

import itertools
import json
import logging
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from anadil.artifacts import storage
from anadil.artifacts.chat_files import check_chat_files, rows_of
from anadil.artifacts.line_reader import DAMAGED, MAX_LINE_BYTES, TooLong
from anadil.artifacts.text_files import LINE_SUFFIXES, TEXT_TABLES, json_rows, table_rows
from anadil.artifacts.text_lists import list_lines
from anadil.clean.filters.user_filters import UserFilter, load_filter, read_filters
from anadil.clean.kernels.minhash import distinct
from anadil.clean.kernels.ng_words import read_ng_words
from anadil.clean.read.charset import decode_text
from anadil.core.errors import DataError
from anadil.core.json_text import parse_json, read_json
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_place
from anadil.text.fasttext_model import QualityModel, load_fasttext
from anadil.text.language import load_language
from anadil.text.language_data import Language
from anadil.text.ngram_overlap import Hashes, ngram_hashes, unit_hashes

log = logging.getLogger(__name__)

RUN_WORDS = 8
RUN_CHARS = 40
SHORT_WORDS, SHORT_CHARS = range(4, RUN_WORDS + 1), (15, 20, 30, RUN_CHARS)
"""Lengths of a question with its answer: the last is a run's, a shorter one is looked for as a whole."""
MIN_ALONE = 25
"""Letters of one that proves a document by itself; shorter ones, such as `How are you? Fine, thanks.`, two together. Our choice."""
MAX_APART = 6
"""Texts of a record from a question to its answer at most: roles and choices may stand between."""
LABEL = re.compile(
    r"[\n.!?…»”。？！؟।|](?:[\s>*_•|–—-]*(?:\d{1,3}[.)])?[\s*_]*(?:<\|[^|<>\n]{1,30}\|>|#{1,6} [^\n]{1,30}(?=\n)|[^\W\d_]\)|[^\W\d_]{1,20}"
    r"(?: [^\W\d_]{1,20})?[ №#]{0,2}\d{0,3}[.)]?(?:[*_]{0,3} ?[:：][*_]{0,3}(?=\s|(?<=[：*_]))| [—–-](?= ))))+"
)
"""Beginning of a question or an answer: `Sual 1:`, `**Answer:**`, `A)`, a heading; signs before that are no words."""
ROLES = frozenset(("user", "assistant", "system", "human", "gpt", "tool"))
MIN_MERGED = 1 << 22
"""Runs that wait for others before they are merged."""
PIECE_CHARS, OVERLAP_CHARS = 1 << 19, 1_000
"""Characters of an item whose runs are computed at a time, which takes some 120 bytes each."""
MAX_NAMED = 10
"""Items that are named of one document."""
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
MAX_HOST_CHARS = 253
"""Source: RFC 1035, section 2.3.4."""
MAX_PATH_PARTS = 8
"""Parts of a path that are compared; the longest of UT1's addresses has seven."""
KEY = "clean.url_lists"
NAMES = ("domains", "urls")
NOWHERE = ("0.0.0.0", "127.0.0.1", "::", "::1")  # noqa: S104  no address to listen at
OF_FILTERS = re.compile(r"^(?:\|\||\*?\.)|\^$")
"""Signs with which filters of browsers say that subdomains count too, as they do here: `||a.example^`, `*.a.example`."""
OF_DNSMASQ = re.compile(r"(?:address|server|local)=/(.+)/[^/]*")
"""Source: dnsmasq's manual: hosts between slashes, and the address that it answers for them."""
COMMENT = re.compile(r"(?:^|\s)(?:#|!\s).*")
ENTRY = re.compile(r"[\w-]+(?:\.[\w-]+)*(?:/\S*)?")
"""A host, and perhaps a path."""
URLS, ITEMS, WORDS, MODEL, FILTERS = "urls", "items", "words.json", "quality.bin", "filters.json"
URL_KEY, WORD_KEY, MODEL_KEY = "clean.url_lists", "clean.ng_words", "clean.quality_model"
TEXT_KEY = "evaluate.heldout"
TASK_KEY, ITEMS_KEY = "evaluate.tasks", "evaluate.task_items"
CHAT_KEYS = ("finetune.inputs", "finetune.preference.inputs", "evaluate.questions")
READ_SUFFIXES = (*LINE_SUFFIXES, ".json", ".parquet", ".arrow", ".txt", *TEXT_TABLES)
SIDE_FILE = "correct or remove it, or set clean.decontaminate to false"


class Decontamination:
    """Finds items of the files in documents; each different run of the items costs 12 bytes."""

    def __init__(self, items: Iterable[tuple[str, str]], language: Language) -> None:
        """Hash the runs of the items, by name and text; case, signs, accents and white space are no difference.

        Texts of one name with fewer than eight words and 40 characters are looked for as a question and its answer that
        follow each other. What is shorter even so could be in any document; `num_short` counts these names.
        """
        self._language = language
        self._names: list[str] = []
        self._hashes, self._owners = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int32)
        """The lowest bit of an owner is 1 where the run proves a document only together with another."""
        self._short_lengths: set[int] = set()
        self.num_items = self.num_short = 0
        pending: list[tuple[Hashes, int]] = []
        num_pending = 0
        for name, texts in itertools.groupby(items, itemgetter(0)):
            owner = 2 * len(self._names)
            of_item = [
                (runs, owner + is_weak) for runs, is_weak in self._runs_of_item([text for _, text in texts])
            ]
            self.num_items += 1
            if not of_item:
                self.num_short += 1
                continue
            pending += of_item
            self._names.append(name)
            num_pending += sum(len(runs) for runs, _ in of_item)
            if num_pending > max(MIN_MERGED, len(self._hashes)):
                self._merge(pending)
                num_pending = 0
        self._merge(pending)

    def _runs_of_item(self, texts: Sequence[str]) -> list[tuple[Hashes, bool]]:
        """Return the runs of texts of one name, and of short ones that may be a question and its answer, True: weak ones."""
        of_texts = [
            distinct(np.concatenate([distinct(self._runs(piece)) for piece in _pieces(text)]))
            for text in texts
        ]
        short = [
            text for text, runs in zip(texts, of_texts, strict=True) if not len(runs) and text not in ROLES
        ]
        of_item = [(runs, False) for runs in of_texts if len(runs)]
        for at, question in enumerate(short):
            for answer in short[at + 1 : at + 1 + MAX_APART]:
                joined = f"{question} {answer}"
                for each in dict.fromkeys((joined, LABEL.sub(" ", f"\n{question}\n{answer}"))):
                    runs, is_weak = self._short_run(each)
                    of_item += [(runs, is_weak)] if len(runs) else []
        return of_item

    def _short_run(self, text: str) -> tuple[Hashes, bool]:
        """Return the runs of a short question with the answer, True: weak ones."""
        characters, words = self._units(text)
        units, lengths = (characters, SHORT_CHARS) if words is None else (words, SHORT_WORDS)
        length = max((each for each in lengths if each <= len(units)), default=0)
        if not length:
            return units[:0], True
        self._short_lengths.add(length)
        whole = units if length == lengths[-1] else units[-length:]
        return distinct(ngram_hashes(whole, length)), len(characters) < MIN_ALONE

    def _merge(self, pending: list[tuple[Hashes, int]]) -> None:
        """Add the runs of items, so that memory follows from how many different ones there are."""
        hashes = np.concatenate([self._hashes, *(runs for runs, _ in pending)])
        owners = [np.full(len(runs), owner, dtype=np.int32) for runs, owner in pending]
        # Equal runs count for the first item: sorting is stable.
        self._hashes, first = np.unique(hashes, return_index=True)
        self._owners = np.concatenate([self._owners, *owners])[first]
        pending.clear()

    def save(self, folder: Path) -> None:
        """Write the hashes and names, so that processes share what one has read."""
        np.save(folder / "runs.npy", self._hashes)
        np.save(folder / "owners.npy", self._owners)
        about = {"names": self._names, "short_lengths": sorted(self._short_lengths)}
        (folder / "names.json").write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, language: Language) -> Self:
        """Load the files of `save`, mapped into memory."""
        loaded = cls((), language)
        loaded._hashes = np.load(folder / "runs.npy", mmap_mode="r")
        loaded._owners = np.load(folder / "owners.npy", mmap_mode="r")
        about = json.loads((folder / "names.json").read_text(encoding="utf-8"))
        loaded._names, loaded._short_lengths = about["names"], set(about["short_lengths"])
        return loaded

    def matches(self, text: str) -> list[str]:
        """Return the names of the items of which a normalized text holds a run, the first ten; empty for a clean text."""
        if not len(self._hashes):
            return []
        runs = self._runs(text)
        if self._short_lengths:
            for each in dict.fromkeys((text, LABEL.sub(" ", f"\n{text}"))):
                characters, words = self._units(each)
                units = characters if words is None else words
                runs = np.concatenate(
                    [runs, *(ngram_hashes(units, length) for length in self._short_lengths)]
                )
        places = np.searchsorted(self._hashes, runs)
        places[places == len(self._hashes)] = 0
        owners = np.unique(self._owners[places[self._hashes[places] == runs]])
        if (owners & 1).all() and len(owners) == 1:
            return []
        return [self._names[each] for each in np.unique(owners >> 1)[:MAX_NAMED]]

    def _runs(self, text: str) -> Hashes:
        characters, words = self._units(text)
        runs = ngram_hashes(characters, RUN_CHARS)
        return runs if words is None else np.concatenate((runs, ngram_hashes(words, RUN_WORDS)))

    def _units(self, text: str) -> tuple[Hashes, Hashes | None]:
        """Return the hashes of the characters and words of a text."""
        characters = unit_hashes(text, self._language, by_character=True)
        # Where a language writes no spaces, its units are characters, and eight of them are in any text.
        if self._language.shingle_units("ab") == ["a", "b"]:
            return characters, None
        return characters, unit_hashes(text, self._language, by_character=False)


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text into pieces, each with the beginning of the next one: no run is lost at a border."""
    for start in range(0, max(1, len(text)), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS + OVERLAP_CHARS]


def texts_of(row: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, whatever its layout: prompts, answers, messages, choices."""
    if isinstance(row, str):
        packed = None
        # Some files hold their messages as the text of a list or table.
        if row.lstrip().startswith(("[", "{")):
            with suppress(ValueError):
                packed = parse_json(row)
        yield from (row,) if packed is None else texts_of(packed)
    elif isinstance(row, dict | list):
        for value in row.values() if isinstance(row, dict) else row:
            yield from texts_of(value)


class UrlLists:
    """Blocked addresses; a host costs eight bytes, so that all of UT1's five million fit into 40 MB."""

    def __init__(self, blocked: Iterable[str], allowed: Iterable[str] = ()) -> None:
        self._blocked = _hashes(blocked)
        self._allowed = _hashes(allowed)

    def save(self, folder: Path) -> None:
        """Write the hashes, so that processes share what one has read."""
        np.save(folder / "blocked.npy", self._blocked)
        np.save(folder / "allowed.npy", self._allowed)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the files of `save`, mapped into memory."""
        lists = cls(())
        lists._blocked = np.load(folder / "blocked.npy", mmap_mode="r")
        lists._allowed = np.load(folder / "allowed.npy", mmap_mode="r")
        return lists

    def is_blocked(self, url: str) -> bool:
        """Return whether the host, a domain above it, or the path or one above it, is in the lists.

        Of several the longest decides, so that an allowed subdomain of a blocked host is allowed. A text without a host
        is not blocked.
        """
        for each in _candidates(url):
            key = np.uint64(_hash(each))
            for hashes, is_blocked in ((self._allowed, False), (self._blocked, True)):
                index = int(np.searchsorted(hashes, key))
                if index < len(hashes) and hashes[index] == key:
                    return is_blocked
        return False


def read_url_lists(folders: Sequence[Path], allowed: Sequence[str] = ()) -> UrlLists:
    """Read the lists of some categories.

    Args:
        folders: Each a directory with `domains` or `urls` or both, or a file of hosts and addresses, plain, packed or
            an archive, as UT1 hands them out.
        allowed: Hosts and addresses that are allowed whatever the lists say.
    """
    return UrlLists(itertools.chain.from_iterable(map(_entries, folders)), map(_plain, allowed))


def host_of(url: str) -> str:
    """Return the host of an address in lower case, without `www.`; at most as long as a host may be."""
    return _plain(url).partition("/")[0][:MAX_HOST_CHARS]


def _entries(folder: Path) -> Iterator[str]:
    files = [each for each in (folder, *(folder / name for name in NAMES)) if each.is_file()]
    if not files:
        raise DataError(
            f"clean.url_lists: {folder} is not a file, and holds neither `domains` nor `urls`; "
            "name a category of UT1, such as lists/ut1/gambling, or a file with a host a line"
        )
    is_empty = True
    for entry in itertools.chain.from_iterable(map(_lines, files)):
        is_empty = False
        yield entry
    if is_empty:
        raise DataError(
            f"{KEY}: {folder} holds no entry and would block nothing; give a host or an address a line, or take it out"
        )


def _lines(file: Path) -> Iterator[str]:
    """Yield the entries of a file; refuse one that is no list of hosts and addresses."""
    number, others, example = 0, 0, ""
    for line in list_lines(file, KEY, NAMES):
        text = COMMENT.sub("", line.decode(errors="replace")).strip()
        for entry in _hosts(text):
            number += 1
            plain = _plain(OF_FILTERS.sub("", entry))
            if ENTRY.fullmatch(plain):
                yield plain
            else:
                others, example = others + 1, example or entry
    if others > number // 2:
        raise DataError(
            f"{KEY}: {others:,} of {number:,} entries of {file.name} are neither a host nor an address, such as "
            f"{example[:80]!r}; give a host or an address a line, in UTF-8"
        )
    if others:
        message = "%s: %s: %d entries are neither host nor address, such as %r"
        log.warning(message, KEY, file.name, others, example[:80])


def _hosts(line: str) -> list[str]:
    """Return the hosts of a line: of a file of hosts, which gives them an address of nowhere, of dnsmasq, or the line itself."""
    words = line.split()
    if len(words) > 1 and words[0] in NOWHERE:
        return words[1:]
    if match := OF_DNSMASQ.fullmatch(line):
        return match[1].split("/")
    return [" ".join(words).rstrip(",").strip("\"'")] if words else []


def _plain(url: str) -> str:
    """Drop scheme, `www.`, user, port, query and a slash or dot at the end; the host in lower case and its own letters."""
    rest = SCHEME.sub("", url.strip())
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    host = host.rpartition("@")[2].partition(":")[0].rstrip(".").lower().removeprefix("www.")
    if "xn--" in host or not host.isascii():
        host = unicodedata.normalize("NFC", ".".join(map(_label, host.split("."))))
    return f"{host}{slash}{path}".rstrip("/")


def _label(label: str) -> str:
    """Decode a part of a host. Source: RFC 3492, Punycode."""
    try:
        return label[4:].encode().decode("punycode") if label.startswith("xn--") else label
    except UnicodeError:
        return label


def _candidates(url: str) -> Iterator[str]:
    """Yield the address and all that contain it, longest first."""
    host, *parts = _plain(url).split("/")
    for end in range(min(len(parts), MAX_PATH_PARTS), 0, -1):
        yield "/".join([host, *parts[:end]])
    labels = host.split(".")
    for start in range(len(labels)):
        yield ".".join(labels[start:])


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(errors="replace"))


def _hashes(texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    return distinct(np.fromiter((_hash(text) for text in texts if text), dtype=np.uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Lists that documents are compared with; None where the recipe names nothing."""

    urls: UrlLists | None = None
    items: Decontamination | None = None
    ng_words: tuple[str, ...] = ()
    quality_model: Path | None = None
    filters: tuple[UserFilter, ...] = ()


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
    if values := recipe.clean.filters:
        filters = read_filters(values)
        for each in filters:
            load_filter(*each)  # fails before any document is read
        (folder / FILTERS).write_text(json.dumps(filters), encoding="utf-8")
    chats = [uri for key in CHAT_KEYS for uri in side_files.get(key, ())]
    tasks = _task_files(recipe, side_files.get(TASK_KEY, ()))
    if uris := [
        *side_files.get(TEXT_KEY, ()),
        *check_chat_files(chats),
        *tasks,
        *side_files.get(ITEMS_KEY, ()),
    ]:
        items = Decontamination(read_items(uris), load_language(recipe.language))
        if items.num_short:
            log.warning(
                "clean.decontaminate: %s of %s items are too short to be looked for, even a question with its answer: fewer than "
                "%d words",
                f"{items.num_short:,}", f"{items.num_items:,}", SHORT_WORDS[0],
            )  # fmt: skip
        (folder / ITEMS).mkdir()
        items.save(folder / ITEMS)


def _task_files(recipe: Recipe, uris: Sequence[str]) -> list[str]:
    """Return the data among the files of `evaluate.tasks`; warn of tasks that have theirs elsewhere."""
    kind = next(each for each in STAGES["clean"].side_files if each.key == TASK_KEY)
    items = recipe.evaluate.task_items
    names = [name for name in recipe.evaluate.listed_tasks if not is_place(name, kind) and not items]
    unread = [uri for uri in uris if not uri.lower().endswith((*READ_SUFFIXES, ".yaml"))]
    if recipe.clean.decontaminate and (names or unread):
        log.warning(
            "clean.decontaminate: not compared with %s: the text of tasks is read of files that evaluate.tasks names, which "
            "end in one of %s, and of evaluate.task_items, which `anadil tasks fetch RECIPE --items FILE` writes",
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
    words, model, filters = folder / WORDS, folder / MODEL, folder / FILTERS
    return Lists(
        filters=tuple(load_filter(*each) for each in read_json(filters)) if filters.exists() else (),
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
