"""Lists of hosts and addresses whose pages are dropped, in the layout of UT1: a directory for each category.

Source: Université Toulouse Capitole, "Blacklists UT1": `domains` has a host a line, whose subdomains count too;
`urls` an address without its scheme, and all below it counts.
"""

import itertools
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash

from anadil.artifacts.text_lists import list_lines
from anadil.core.errors import DataError

log = logging.getLogger(__name__)

SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
MAX_HOST_CHARS = 253
"""Source: RFC 1035, section 2.3.4."""
MAX_PATH_PARTS = 8
"""Parts of a path that are compared; the longest of UT1's addresses has seven."""


KEY = "clean.url_lists"
NAMES = ("domains", "urls")
"""Files of a category of UT1."""
NOWHERE = ("0.0.0.0", "127.0.0.1", "::", "::1")  # noqa: S104  no address to listen at
OF_FILTERS = re.compile(r"^(?:\|\||\*?\.)|\^$")
"""Signs with which filters of browsers say that subdomains count too, as they do here: `||a.example^`, `*.a.example`."""
OF_DNSMASQ = re.compile(r"(?:address|server|local)=/(.+)/[^/]*")
"""Source: dnsmasq's manual: hosts between slashes, and the address that it answers for them."""
COMMENT = re.compile(r"(?:^|\s)(?:#|!\s).*")
ENTRY = re.compile(r"[\w-]+(?:\.[\w-]+)*(?:/\S*)?")
"""A host, and perhaps a path."""


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
    return np.unique(np.fromiter((_hash(text) for text in texts if text), dtype=np.uint64))
