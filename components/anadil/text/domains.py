"""Domains of documents: one figure of a mixed text says little about each kind in it."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from anadil.text.corpus import Document

MAX_DOMAINS = 12  # Most that are told apart; a crawl has thousands of hosts, and nobody reads a table of them
OTHER = "other"
PACKED = (".gz", ".zst", ".jsonl", ".ndjson", ".txt", ".html", ".warc", ".wet", ".parquet")
"""Ends of file names that say nothing about the text."""
SECOND_LEVELS = (
    "ac", "biz", "co", "com", "edu", "gob", "gov", "go", "info", "mil", "name", "ne", "net", "or", "org", "pp",
)  # fmt: skip
SOURCE = re.compile(r"(?P<file>.*?):\d+(?: (?P<origin>.*))?", re.DOTALL)
"""As `clean` writes sources: the file, the place in it, and what the record itself names as its source."""


def site_of(host: str) -> str:
    """Domain that somebody has registered, of a host below it: `xeber.az` of `www.sport.xeber.az`.

    Source: Public Suffix List, whose general second levels below a country's are these; it has thousands of others.
    """
    labels = host.split(".")
    if labels[-1].isdecimal() or ":" in host:  # an address of a machine
        return host
    is_general = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in SECOND_LEVELS
    return ".".join(labels[-3 if is_general else -2 :])


def domains_of(documents: Sequence[Document], sizes: Sequence[int]) -> tuple[str, ...]:
    """A domain for each document: its file, its source in a file of several sources, its host in a crawl's file.

    The largest have a domain of their own, and the rest share one.
    """
    parts = [_parts(document) for document in documents]
    origins: dict[str, set[str]] = defaultdict(set)
    hosts: dict[str, set[str]] = defaultdict(set)
    for file, origin, host in parts:
        origins[file].add(origin)
        hosts[file].add(host)
    names = []
    for file, origin, host in parts:
        if origin and 1 < len(origins[file]) <= MAX_DOMAINS:
            names.append(origin)
        else:
            names.append(host if host and len(hosts[file]) > 1 else name_of_file(file))
    return _largest(names, sizes)


def sources_of(documents: Sequence[Document], sizes: Sequence[int]) -> tuple[str, ...]:
    """The file of each document; the largest are told apart, and the rest share one name."""
    return _largest([name_of_file(_parts(document)[0]) for document in documents], sizes)


def _largest(names: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
    """The names, those of the smallest replaced by `OTHER` where there are too many."""
    total: Counter[str] = Counter()
    for name, size in zip(names, sizes, strict=True):
        total[name] += size
    ranked = sorted(total, key=lambda name: (-total[name], name))
    # One place is for the rest.
    largest = frozenset(ranked if len(ranked) <= MAX_DOMAINS else ranked[: MAX_DOMAINS - 1])
    return tuple(name if name in largest else OTHER for name in names)


def _parts(document: Document) -> tuple[str, str, str]:
    """File, source that the record names, and host; empty where there is none."""
    match = SOURCE.fullmatch(document.source)
    file, origin = (match["file"], match["origin"] or "") if match else (document.source, "")
    return file, origin, host_of(document.url)


def host_of(url: str) -> str:
    """Return the host of an address, empty where there is none."""
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.")
    except ValueError:  # as in http://[
        return ""


def name_of_file(file: str) -> str:
    """The file's name without its packing: `/data/news.2024.jsonl.zst` is `news.2024`."""
    path = PurePosixPath(file)
    while path.suffix in PACKED:
        path = path.with_suffix("")
    return path.name or file or OTHER
