"""Texts of a corpus: of one document by its id, and those that hold some words.

Parts of a corpus are sorted by id and packed as a whole, so that a text is reached by reading its file up to it: 256 MB of
text at most, some .5 s. The file is known by the first ids of ten others: a corpus may have a thousand, in a store.
"""

import functools
import json
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import zstandard

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError, IntegrityError
from anadil.text.corpus import CorpusPart, packed_lines

PARTS: tuple[CorpusPart, ...] = get_args(CorpusPart)
ID_START, ID_CHARS = len('{"id": "'), 32
FIRST_BYTES = 160_000
"""Read of a file for its first id: more than the first block of zstd, 128 KiB at most, and its frame's head."""
HITS = 20
"""Documents of a page of hits."""
BUDGET_S = 0.8
"""Seconds of a search: its page is to be there within one, and says how far it looked."""
MIN_WORD = 2
"""Characters of a search at least."""
AROUND = 160
"""Characters of a text that are shown on each side of a hit."""
SAMPLE_BYTES = 1 << 24
"""Most bytes of a file of samples that is read, unpacked: a few documents of each rule."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A document that holds the words."""

    document: Json
    before: str
    words: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """A page of hits."""

    hits: tuple[Hit, ...]
    num_looked_at: int
    """Documents that were looked at for this page."""
    next: str = ""
    """Place at which the next page goes on; empty: the corpus has no further documents."""


def kept_document(corpus: str, number: str) -> tuple[CorpusPart, Json] | None:
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


def rejected_sample(corpus: str, reason: str, source: str) -> Json | None:
    """Return the sample of a dropped document, with its text; None where it is not among the samples."""
    uri = join(corpus, "rejected", f"{reason}.jsonl.zst")
    # A reason is a word of the rows; as part of a path it must be no more than that.
    if not reason.isidentifier() or not storage.store(uri).exists(uri):
        return None
    try:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(storage.store(uri).read(uri))
        samples = [json.loads(line) for line in content[:SAMPLE_BYTES].decode().split("\n") if line]
    except (zstandard.ZstdError, ValueError) as error:
        raise IntegrityError(f"{uri}: damaged samples ({error}); make the corpus again") from None
    return next((sample for sample in samples if sample.get("source") == source), None)


def search_texts(
    corpus: str, words: str, start: str = "", *, size: int = HITS, budget_s: float = BUDGET_S
) -> Hits:
    """Return kept documents whose text holds some words, from a place on.

    Letters are compared as they are typed, and with a capital or all capitals; nothing is stemmed.

    Args:
        corpus: Directory or URI.
        words: The words, in a row.
        start: `next` of the page before.
        size: Most documents of the page.
        budget_s: Seconds after which the page ends.
    """
    if len(words := " ".join(words.split())) < MIN_WORD:
        raise DataError(f"search: {words!r} is too short; write {MIN_WORD} characters or more")
    needles = _needles(words)
    files, first = [uri for part in PARTS for uri in _files(corpus, part)], _place(start)
    until, hits, looked_at = time.monotonic() + budget_s, list[Hit](), 0
    for file in range(first[0], len(files)):
        skipped = first[1] if file == first[0] else 0
        for number, line in enumerate(_lines(files[file])):
            if number < skipped:
                continue
            if len(hits) >= size or (looked_at % 256 == 255 and time.monotonic() > until):
                return Hits(hits=tuple(hits), num_looked_at=looked_at, next=f"{file}-{number}")
            looked_at += 1
            # The line is looked at as it lies: parsing costs ten times as much.
            if any(needle in line for needle in needles) and (
                hit := _hit(_document(line, files[file]), words)
            ):
                hits.append(hit)
    return Hits(hits=tuple(hits), num_looked_at=looked_at)


def _needles(words: str) -> list[bytes]:
    return [json.dumps(form, ensure_ascii=False)[1:-1].encode(errors="replace") for form in _forms(words)]


def _forms(words: str) -> list[str]:
    """Return ways to write some words in: small letters, with a capital, in capitals."""
    # Turkic text writes i as a capital with its dot, and I as a small letter without one.
    small = (words, words.lower(), words.replace("\u0130", "i").replace("I", "\u0131").lower())
    forms = dict.fromkeys(small)
    for each in small:
        dotted = each.replace("i", "\u0130")
        forms |= dict.fromkeys(
            (each.upper(), dotted.upper(), each[:1].upper() + each[1:], dotted[:1] + each[1:])
        )
    return list(forms)


def _hit(document: Json, words: str) -> Hit | None:
    """Return where a text holds the words; None where only the address or the source does."""
    text = str(document.get("text") or "")
    places = [(place, form) for form in _forms(words) if (place := text.find(form)) >= 0]
    if not places:
        return None
    place, form = min(places)
    end = place + len(form)
    return Hit(
        document=document, words=text[place:end], before=text[max(0, place - AROUND) : place],
        after=text[end : end + AROUND],
    )  # fmt: skip


def _place(text: str) -> tuple[int, int]:
    file, _, line = text.partition("-")
    if not text:
        return 0, 0
    if not (file.isdecimal() and line.isdecimal() and len(text) < 20):
        raise DataError(f"{text[:40]}: not a place to go on from; search again")
    return int(file), int(line)


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


def _document(line: bytes, uri: str) -> Json:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{uri}: a line is no document ({error}); make the corpus again") from None
