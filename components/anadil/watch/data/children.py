"""Work that a process of its own does: libraries of half a gigabyte, and documents that may crash one.

The pages stay below 200 MB of memory, and a page that kills the extractor kills no server.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from anadil.core.errors import DataError, RetryableError

TIMEOUT_S = 120
"""Seconds for one document: a record at the end of a large file is reached by reading all before it."""
MAX_TEXT = 200_000
"""Most characters of a text that is shown."""
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
Json = dict[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDocument:
    """Everything that clean does with one record, done again."""

    steps: tuple[Step, ...]
    facts: Json
    """Output of `anadil clean explain`, without texts."""


def explain_document(source: str, recipe: Mapping[str, Any]) -> ExplainedDocument:
    """Read a record from the inputs again, and return its text after each step.

    Args:
        source: File and place, as the rows have it.
        recipe: The resolved recipe of the corpus.
    """
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder, "recipe.json")
        # The recipe of a source has its files twice, and what is not of clean may name other sources.
        known = {key: recipe[key] for key in SECTIONS if key in recipe}
        path.write_text(json.dumps(known), encoding="utf-8")
        facts = _answer(["clean", "explain", "--recipe", str(path), "--texts", "-o", "json", "--", source])
    texts: dict[str, str] = facts.pop("texts", {})
    is_page = facts["read"]["kind"] == "web page"
    return ExplainedDocument(steps=tuple(_steps(texts, is_page=is_page)), facts=facts)


def cut_text(tokenizer: str, text: str) -> list[Json]:
    """Return how every candidate of a tokenizer artifact cuts a text: `name`, `tokens`, `pieces` and more."""
    return list(
        _answer(["tokenizer", "inspect", "-o", "json", "--tokenizer", tokenizer, "--", "-"], text)[
            "tokenizers"
        ]
    )


def _answer(arguments: Sequence[str], stdin: str = "") -> Json:
    """Run a command of anadil, and return what it prints."""
    # The same interpreter and environment, so that it finds the same data and the same version.
    command = [sys.executable, "-m", "anadil", *arguments]
    try:
        done = subprocess.run(
            command, input=stdin.encode(errors="replace"), capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RetryableError(
            f"{' '.join(arguments[:2])}: took longer than {TIMEOUT_S} s; run the same command in a terminal"
        ) from None
    # The last line is the error; those before it are the log.
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise DataError(said or f"{' '.join(arguments[:2])}: ended with {done.returncode}")
    return dict(json.loads(done.stdout))


class _Words(HTMLParser):
    """Reads what the eye sees of a page, each piece on a line."""

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


def words_of_page(page: str) -> str:
    """Return the text of a page with all menus and footers, to tell what extraction removes."""
    parser = _Words()
    parser.feed(page)
    parser.close()
    return "\n".join(parser.pieces)


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
        before = words_of_page(text) if is_page and name == "read" else text
    return steps


def removed_lines(before: str, after: str) -> list[str]:
    """Return the lines of a text that another has no more, in order; blank ones are none."""
    # A set and not a difference of sequences, which takes minutes for a long text.
    left = {line.strip() for line in after.split("\n")}
    return [line.strip() for line in before.split("\n") if line.strip() and line.strip() not in left]
