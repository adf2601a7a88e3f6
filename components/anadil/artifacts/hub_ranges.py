"""Pieces of a file of a data set on the Hugging Face hub.

The hub sends a reader on to the store of large files by a signed address. That is used for the following pieces too,
until it runs out: the hub limits how often it can be asked.
"""

import re
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from anadil.artifacts.hub_http import is_of_hub, request
from anadil.artifacts.ranged import check_place
from anadil.core.errors import IntegrityError

TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")


class HubRanges:
    """Pieces of one file; see `Ranges`."""

    def __init__(self, uri: str, url: str, version: str) -> None:
        """Ask nothing yet; `version` is the id of the content and its size, joined by `-`."""
        self._uri = uri
        self._url = url
        self._tag, _, size = version.rpartition("-")
        self.size = int(size)
        self._signed = ""
        """Address in the store of large files."""
        self._tags: dict[str, str] = {}
        """Tag of the content by host, which stays the same."""

    def fetch(self, start: int, num_bytes: int) -> bytes:
        """Return a piece; see `Ranges.fetch`."""
        url, self._signed = self._signed or self._url, ""
        headers = {"Range": f"bytes={start}-{start + num_bytes - 1}"}
        return request(self._uri, url, partial(self._read, start, num_bytes), headers=headers)

    def _read(self, start: int, num_bytes: int, response: Any) -> bytes:
        place = response.headers.get("Content-Range", "")
        total = TOTAL.fullmatch(place)
        # The hub's own name for the content: SHA-256 of a large file.
        links = [each.headers.get("X-Linked-Etag", "") for each in (*response.history, response)]
        content_id = next((_plain(each) for each in links if each), self._tag)
        tag = _plain(response.headers.get("ETag", ""))
        first_tag = self._tags.setdefault(urlsplit(str(response.url)).netloc, tag)
        if content_id != self._tag or first_tag != tag or (total and int(total[1]) != self.size):
            raise IntegrityError(
                f"{self._uri}: is not the file that the commit names ({content_id}, {place}; it names {self._tag}, {self.size} "
                "bytes); check the mirror (HF_ENDPOINT), and run again"
            )
        whole = response.headers.get("Content-Length") == str(num_bytes)
        check_place(self._uri, place, start, is_complete=whole)
        data: bytes = response.read()
        if not is_of_hub(response.url):
            self._signed = str(response.url)
        return data


def _plain(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')
