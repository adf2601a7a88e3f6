"""One document: its text, what each step of `clean` did with it, and the label that a person gives it.

Parts of a corpus are sorted by id and packed as a whole, so that a text is reached by reading its file up to it: 256 MB of
text at most, some .5 s. The file is known by the first ids of ten others: a corpus may have a thousand, in a store.
Steps are done again in a process of its own: they take libraries of half a gigabyte, and a page that kills the extractor
kills no server.
"""

import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, get_args

import zstandard

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError, IntegrityError, RetryableError
from anadil.core.files import file_lock, write_atomic
from anadil.core.json_text import json_lines
from anadil.core.processes import last_line, run_child
from anadil.text.corpus import CorpusPart, packed_lines

PARTS: tuple[CorpusPart, ...] = get_args(CorpusPart)
ID_START, ID_CHARS = len('{"id": "'), 32
FIRST_BYTES = 160_000
"""Read of a file for its first id: more than the first block of zstd, 128 KiB at most, and its frame's head."""
SAMPLE_BYTES = 1 << 24
"""Most bytes of a file of samples that is read, unpacked: a few documents of each rule."""
TIMEOUT_S = 120
"""Seconds for one document: a record at the end of a large file is reached by reading all before it."""
MAX_TEXT = 200_000
"""Most characters of a text that is shown."""
BEGINNING = 240
"""Characters of a text in a list."""
BUDGET_S = 3.0
"""Seconds that a list takes for its texts. A part of 256 MB takes some .5 s."""
REMOTE_PARTS = 4
"""Parts of a store that a list reads for its texts."""
MAX_REMOVED = 200
"""Most pieces that a step removed which are listed."""
SECTIONS = ("language", "seed", "clean")
"""Keys of a recipe that decide what clean does with a record."""
STEPS = {
    "read": "as it came",
    "extract": "text of the page, or of the escapes in it",
    "normalize": "after normalization",
    "line_language": "without lines in another language",
    "written": "as it is kept, with placeholders for personal data",
}
Label = Literal["good", "bad"]
LABELS: tuple[Label, ...] = get_args(Label)
FOLDER = "labels"
LABEL_KEYS = ("id", "source", "url", "reason", "text")
"""Keys of a line: those of the document, and why it was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A text after one step of clean."""

    name: str
    meaning: str
    text: str
    num_chars: int
    removed: tuple[str, ...]
    """Lines of the text before that the text has no more, in order."""
    num_removed: int
    """Lines that are no more there, those that are not listed among them."""


def kept_document(corpus: str, number: str) -> tuple[CorpusPart, dict[str, Any]] | None:
    """Return a document of the corpus by its id, and the part that it is in; None where no file holds it."""
    key = number.encode()
    files: dict[str, CorpusPart] = {uri: part for part in PARTS for uri in _files(corpus, part)}
    for uri in _candidates(list(files.items()), number):
        for line in _lines(uri):
            known = line[ID_START : ID_START + ID_CHARS]
            if known == key:
                return files[uri], _document(line, uri)
            if known > key:
                break
    return None


def beginnings(corpus: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the first characters of the text of listed rows by id: of a duplicate, of its representative.

    A dropped document has a text where it is a sample. Parts that are not read within `BUDGET_S` leave theirs out.
    """
    numbers = {row["id"]: row["id"] if row["reason"] is None else row["duplicate_of"] for row in rows}
    by_file: dict[str, set[str]] = defaultdict(set)
    for series in (each for part in PARTS for each in _series(_files(corpus, part))):
        for number in filter(None, numbers.values()):
            if place := bisect(series, number, key=_first_id):
                by_file[series[place - 1]].add(number)
    texts: dict[str, str] = {}
    until = time.monotonic() + BUDGET_S
    most = REMOTE_PARTS if "://" in corpus else len(by_file)
    for uri in sorted(by_file, key=lambda uri: -len(by_file[uri]))[:most]:
        texts |= _beginnings_in(uri, frozenset(by_file[uri])) if time.monotonic() < until else {}
    shown = {each: texts[number] for each, number in numbers.items() if number in texts}
    for reason in {row["reason"] for row in rows if row["reason"] and row["id"] not in shown}:
        shown |= {
            str(each.get("id")): str(each.get("text") or "")[:BEGINNING] for each in _samples(corpus, reason)
        }
    return shown


@functools.lru_cache(256)
def _beginnings_in(uri: str, numbers: frozenset[str]) -> dict[str, str]:
    texts, last = dict[str, str](), max(numbers)
    for line in _lines(uri):
        number = line[ID_START : ID_START + ID_CHARS].decode(errors="replace")
        if number in numbers:
            texts[number] = str(_document(line, uri)["text"])[:BEGINNING]
        if number >= last:
            break
    return texts


def _series(uris: Sequence[str]) -> list[Sequence[str]]:
    """Cut files where their ids begin again, as those of a corpus that went on from another do."""
    # A store may have thousands of files: there the search takes the first ids of a few.
    if not uris or "://" in uris[0]:
        return [uris]
    starts = [place for place in range(1, len(uris)) if _first_id(uris[place]) < _first_id(uris[place - 1])]
    return [uris[start:end] for start, end in itertools.pairwise([0, *starts, len(uris)])]


def rejected_sample(corpus: str, reason: str, source: str, number: str) -> dict[str, Any] | None:
    """Return the sample of a dropped document, with its text; None where it is not among the samples."""
    # A corpus that went on from another may have two records of one place.
    samples = _samples(corpus, reason)
    known = (sample for sample in samples if (sample.get("source"), sample.get("id")) == (source, number))
    return next(known, None)


@functools.lru_cache(64)
def _samples(corpus: str, reason: str) -> list[dict[str, Any]]:
    uri = join(corpus, "rejected", f"{reason}.jsonl.zst")
    # A reason is a word of the rows; as part of a path it must be no more than that.
    if not reason.isidentifier() or not storage.store(uri).exists(uri):
        return []
    try:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(storage.store(uri).read(uri))
        return [json.loads(line) for line in content[:SAMPLE_BYTES].decode().split("\n") if line]
    except (zstandard.ZstdError, ValueError) as error:
        raise IntegrityError(f"{uri}: damaged samples ({error}); make the corpus again") from None


def explain_document(source: str, number: str, recipe: Mapping[str, Any]) -> tuple[Step, ...]:
    """Read a record from the inputs again, and return its text after each step.

    Args:
        source: File and place, as the rows have it.
        number: Id of the document, the digest of its text: another record may stand at its place by now.
    """
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder, "recipe.json")
        # The recipe of a source has its files twice, and what is not of clean may name other sources.
        known = {key: recipe[key] for key in SECTIONS if key in recipe}
        path.write_text(json.dumps(known), encoding="utf-8")
        # The same interpreter and environment, so that it finds the same data and the same version.
        arguments = ["clean", "explain", "--recipe", str(path), "--texts", "-o", "json", "--", source]
        try:
            done = run_child([sys.executable, "-m", "anadil", *arguments], TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RetryableError(
                f"clean explain: took longer than {TIMEOUT_S} s; run the same command in a terminal"
            ) from None
    if done.returncode:
        # The last line is the error; those before it are the log.
        raise DataError(last_line(done.stderr, f"clean explain: ended with {done.returncode}"))
    facts = json.loads(done.stdout)
    if facts["id"] != number:
        raise DataError(
            f"{source}: the record there is not document {number} of the corpus, but {facts['id']}; its file has changed "
            "since, or was cleaned by another version of anadil: give the file as it was"
        )
    return tuple(_steps(facts.get("texts", {}), is_page=facts["read"]["kind"] == "web page"))


def removed_lines(before: str, after: str) -> list[str]:
    """Return the lines of a text that another has no more, in order; blank ones are none."""
    # A set and not a difference of sequences, which takes minutes for a long text.
    left = {line.strip() for line in after.split("\n")}
    return [line.strip() for line in before.split("\n") if line.strip() and line.strip() not in left]


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
    row = {key: document[key] for key in LABEL_KEYS if document.get(key) is not None}
    try:
        # Two windows of a browser, or two servers, may label at once.
        with file_lock(folder / ".lock"):
            for each in LABELS:
                known = list(_rows(folder, each))
                others = [one for one in known if one.get("id") != row["id"]]
                if each == label:
                    others.append(row)
                if others != known:
                    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in others)
                    write_atomic(folder / f"{each}.jsonl", lines.encode(errors="replace"))
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror}); check its rights") from None


def _files(corpus: str, part: CorpusPart) -> list[str]:
    folder = join(corpus, part)
    names = storage.store(folder).listed(folder)
    return [join(folder, name) for name in sorted(names) if name.startswith("part-")]


def _candidates(files: Sequence[tuple[str, CorpusPart]], number: str) -> Iterator[str]:
    """Yield files that may hold an id, the likeliest of each part first."""
    likely: list[str] = []
    for part in PARTS:
        uris = [uri for uri, each in files if each == part]
        place = bisect(uris, number, key=_first_id)
        likely += uris[max(0, place - 1) : place]
    yield from likely
    # Files of one run hold one range of ids each; a corpus that went on from another has several such series.
    yield from (uri for uri, _ in reversed(files) if uri not in likely and _first_id(uri) <= number)


@functools.lru_cache(4_096)
def _first_id(uri: str) -> str:
    """Return the id that a file begins with; one without documents has the greatest."""
    content, _ = storage.store(uri).part(uri, 0, FIRST_BYTES)
    try:
        line = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"{uri}: cannot be read ({error}); make the corpus again") from None
    return line[ID_START : ID_START + ID_CHARS].decode(errors="replace") if line else "~"


def _lines(uri: str) -> Iterator[bytes]:
    try:
        with storage.readable(uri).open("rb") as file:
            yield from packed_lines(file)
    except (zstandard.ZstdError, ValueError, OSError) as error:
        raise IntegrityError(f"{uri}: cannot be read ({error}); make the corpus again") from None


def _document(line: bytes, uri: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{uri}: a line is no document ({error}); make the corpus again") from None


def _steps(texts: Mapping[str, str], *, is_page: bool) -> list[Step]:
    steps: list[Step] = []
    before = next(iter(texts.values()), "")
    for name, text in texts.items():
        removed = removed_lines(before, text)
        steps.append(Step(
            name=name, meaning=STEPS.get(name, ""), text=text[:MAX_TEXT], num_chars=len(text),
            removed=tuple(removed[:MAX_REMOVED]), num_removed=len(removed),
        ))  # fmt: skip
        # Tags of a page are nothing that a step removed.
        before = _words_of_page(text) if is_page and name == "read" else text
    return steps


class _Words(HTMLParser):
    """Reads what the eye sees of a page, menus and footers too, to tell what extraction removes."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._unseen = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002  a hook
        self._unseen = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._unseen = "" if tag == self._unseen else self._unseen

    def handle_data(self, data: str) -> None:
        self.pieces += [] if self._unseen else [data]


def _words_of_page(page: str) -> str:
    parser = _Words()
    parser.feed(page)
    parser.close()
    return "\n".join(parser.pieces)


def _rows(folder: Path, label: Label) -> Iterator[dict[str, Any]]:
    path = folder / f"{label}.jsonl"
    try:
        yield from map(dict, json_lines(path)) if path.is_file() else ()
    except (ValueError, TypeError) as error:
        # Labels are somebody's work: what cannot be read must not be written over.
        raise DataError(f"{path}: a line is not a JSON object ({error}); correct it or take it out") from None
