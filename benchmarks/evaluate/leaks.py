"""Which leaks of held-out text into the training part are found, and which documents are blamed without one.

python benchmarks/evaluate/leaks.py --text FILE.jsonl... [--language az] [--heldout 60] [--min-words 50] [--scale 100]

Of all documents, in an order of their own, every n-th is held out and the others are the training part. First they are
compared as they are: whatever is found is a false alarm, or text that the collection really repeats; the table names
the longest seen stretches. Then copies of the held-out documents, disguised in one of eleven ways, join the training part.
A document that is blamed without a leak counts for no recall. `--scale` repeats the training part with other words, and
prints time and memory.
"""

import argparse
import hashlib
import json
import os
import random
import re
import resource
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from anadil.evaluate.heldout import Contamination, find_contamination
from anadil.text.corpus import Document
from anadil.text.language import load_language
from anadil.text.language_data import Language

PLAIN = str.maketrans("əƏıİöÖüÜğĞşŞçÇ", "eEiIoOuUgGsScC")
OTHER_SIGNS = str.maketrans(
    {",": ";", ".": " !", ":": " -", ";": ",", '"': "\u201d", "'": "\u2019", "(": "[", ")": "]"}
)
SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=。)\s*|\n\n+")


def halves(text: str) -> tuple[str, str]:
    """Both halves of the words, or of the letters where no spaces are written."""
    words = re.split(r"(\s+)", text)
    if len(words) < 40:
        return text[: len(text) // 2], text[len(text) // 2 :]
    return "".join(words[: len(words) // 2]), "".join(words[len(words) // 2 :])


def four_fifths(text: str) -> str:
    """A fifth is missing, in the middle."""
    return text[: len(text) * 2 // 5] + text[len(text) * 3 // 5 :]


def edited(text: str) -> str:
    """Another word in the place of every twentieth."""
    words = text.split(" ")
    return " ".join("başqaca" if place % 20 == 10 else word for place, word in enumerate(words))


def reordered(text: str) -> str:
    """Its sentences in another order."""
    sentences = SENTENCE.split(text)
    random.Random(len(text)).shuffle(sentences)  # noqa: S311  no secret
    return " ".join(sentences)


def spaced(text: str) -> str:
    """Other white space, and characters in the words that nobody sees."""
    words = text.split()
    hidden = [
        word[:2] + "\u200b\u00ad"[len(word) % 2] + word[2:] if len(word) > 4 else word for word in words
    ]
    return "\u00a0\n".join(hidden)


def without_signs(text: str) -> str:
    """Some signs are others, and the rest is gone."""
    return re.sub(r"[-–—«»]", " ", text.translate(OTHER_SIGNS))


LEAKS: dict[str, Callable[[str], str]] = {
    "whole": lambda text: text,
    "embedded": lambda text: text,
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "80 % copy": four_fifths,
    "half a document": lambda text: halves(text)[0],
    "an edit in every 20th word": edited,
    "without diacritics": lambda text: text.translate(PLAIN),
    "capitals": str.upper,
    "changed punctuation": without_signs,
    "reordered sentences": reordered,
    "white space and zero width": spaced,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--language", default="az")
    parser.add_argument("--heldout", type=int, default=60)
    parser.add_argument("--min-words", type=int, default=50)
    parser.add_argument("--scale", type=int, default=0)
    options = parser.parse_args()
    language = load_language(options.language)
    heldout, train = split(options.text, language, options.heldout, options.min_words)
    print(
        f"{len(heldout)} held-out documents, {len(train)} in the training part, load {os.getloadavg()[0]:.1f}\n"
    )
    clean, _ = find_contamination(heldout, train, language)
    show_false_alarms(clean, heldout)
    blamed = set(clean.contaminated)
    print("\n| leak | found | of | exact |\n|---|---:|---:|---:|")
    for name in LEAKS:
        contamination, _ = find_contamination(heldout, [*train, *planted(name, heldout, train)], language)
        others = [document.id for document in heldout if document.id not in blamed]
        count = len(set(contamination.contaminated) & set(others))
        print(f"| {name} | {count} | {len(others)} | {len(contamination.exact)} |", flush=True)
    if options.scale:
        show_scale(heldout, train, language, options.scale)


def split(
    files: Sequence[Path], language: Language, count: int, min_words: int
) -> tuple[list[Document], list[Document]]:
    """Held-out and training documents: normalized, each text once, in an order that their text decides."""
    texts: dict[str, str] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            text = language.normalize(json.loads(line)["text"])
            if len(language.words(text)) >= min_words:
                texts.setdefault(text, file.stem)
    made = [
        Document(
            id=hashlib.sha256(text.encode()).hexdigest()[:12],
            text=text,
            source=name,
            url="",
            lang=language.code,
        )
        for text, name in texts.items()
    ]
    made.sort(key=lambda document: document.id)
    step = max(2, len(made) // count)
    heldout = made[::step][:count]
    chosen = {document.id for document in heldout}
    return heldout, [document for document in made if document.id not in chosen]


def planted(leak: str, heldout: Sequence[Document], train: Sequence[Document]) -> Iterator[Document]:
    """A disguised copy of each held-out document."""
    for place, document in enumerate(heldout):
        text = LEAKS[leak](document.text)
        if leak == "embedded":
            text = f"{train[place].text}\n{text}\n{train[place + 1].text}"
        yield replace(document, id=f"leak-{document.id}", text=text)


def show_false_alarms(clean: Contamination, heldout: Sequence[Document]) -> None:
    """By source: what is blamed without a leak, and what one stretch alone would blame."""
    sources = {document.id: document.source for document in heldout}
    print("| source | held out | overlapping | a stretch | contaminated |\n|---|---:|---:|---:|---:|")
    for source in sorted(set(sources.values())):
        counts = (
            sum(sources[name] == source for name in names)
            for names in (sources, clean.overlapping, [one.id for one in clean.seen], clean.contaminated)
        )
        print(f"| {source[:50]} | {' | '.join(map(str, counts))} |")
    longest = sorted(clean.seen, key=lambda one: -one.stretch_share)
    figures = (f"{one.share:.2f}/{one.stretch}/{one.stretch_share:.2f}" for one in longest)
    print("share, longest stretch, share in stretches:", ", ".join(figures))


def show_scale(
    heldout: Sequence[Document], train: Sequence[Document], language: Language, times: int
) -> None:
    """Time and memory of a corpus `times` the size."""

    def many() -> Iterator[Document]:
        for turn in range(times):
            for document in train:
                # Other words, so that each copy's n-grams are its own.
                yield replace(
                    document, text=document.text.replace(" ", f"{turn} ") if turn else document.text
                )

    num_bytes = times * sum(len(document.text.encode()) for document in train)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    find_contamination(heldout, many(), language)
    seconds = time.process_time() - start
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"\n{times} times the training part, {num_bytes / 1e6:,.0f} MB: {seconds:,.0f} CPU s, "
        f"{num_bytes / 1e6 / seconds:.1f} MB per CPU second, peak memory {more:+.0f} MiB"
    )


if __name__ == "__main__":
    main()
