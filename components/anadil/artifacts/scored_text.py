"""Text that models are scored on and never trained on, read as it is, and its part for tuning."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from anadil.artifacts import storage
from anadil.artifacts.text_files import TEXT_SUFFIXES, text_of, text_rows, text_suffix
from anadil.core.errors import DataError
from anadil.core.format import MIB, human_bytes
from anadil.text.corpus import Document, read_corpora
from anadil.text.domains import name_of_file

MAX_DOCUMENTS, MAX_BYTES = 100_000, 256 * MIB
"""Most held-out text. Our choice: fifty times what `clean` keeps by default. All of it is held in memory and scored by
each candidate, and an interval on bits per byte gains nothing from more."""
NO_SOURCES: Mapping[str, Path] = MappingProxyType({})
RETAINED_KEY = "evaluate.retained"
"""Recipe key of the files of languages that the base knows."""
RETAINED_TEXT = f"{storage.BUILT_IN}en/retained.jsonl"
"""Short documents that come with the program, so that the figure can be compared over runs; no stage trains on them."""
ONE_IN = 4
"""One document in so many is for tuning. Chosen by us: scores keep most of the text, since their intervals need it."""


def read_retained(
    files: Sequence[str] = (), text_field: str = "text", sources: Mapping[str, Path] = NO_SOURCES
) -> tuple[Document, ...]:
    """Read text of languages that the base knows. Every model is scored on it, to tell what it lost of them.

    `sources` are corpora by the names of their sources, of which the held-out parts are read. A source that is called as
    a language of the files, such as `en`, has a figure of its own, `en_source`.

    Returns:
        Documents whose `lang` is what the record names, or else the name of its file or its source.
    """
    of_files = tuple(
        refuse_too_large(retained_documents(files or (RETAINED_TEXT,), text_field), RETAINED_KEY)
    )
    languages = {document.lang for document in of_files}
    of_sources = (
        replace(document, lang=f"{name}_source" if name in languages else name)
        for name, corpus in sources.items()
        for document in read_corpora([corpus], "heldout")
        if document.text
    )
    return (*of_files, *of_sources)


def retained_documents(
    files: Sequence[str], text_field: str, copy: storage.Copy = storage.local_copy
) -> Iterator[Document]:
    """Yield the documents with text of files of known languages. A file without any is refused."""
    for uri in files:
        built_in = uri.startswith(storage.BUILT_IN)
        name = uri.removeprefix(storage.BUILT_IN).partition("/")[0] if built_in else name_of_file(uri)
        is_empty = True
        for document in documents_of((uri,), text_field, name, copy):
            if document.text:
                is_empty = False
                yield document
        if is_empty:
            raise DataError(f"{RETAINED_KEY}: {uri} holds no text; name another file")


def documents_of(
    files: Sequence[str], text_field: str, language: str, copy: storage.Copy = storage.local_copy
) -> Iterator[Document]:
    """Yield the documents of files, in order."""
    check_heldout_files(files)
    for uri in files:
        field = "text" if uri.startswith(storage.BUILT_IN) else text_field
        with copy(uri) as path:
            for place, row in text_rows(path, uri, field):
                text = text_of(row, field, place)
                assert isinstance(row, dict)
                yield Document(
                    id=str(row.get("id") or hashlib.sha256(text.encode()).hexdigest()[:16]),
                    text=text,
                    source=place,
                    url=str(row.get("url") or ""),
                    lang=str(row.get("lang") or language),
                )


def refuse_too_large(documents: Iterable[Document], key: str = "evaluate.heldout") -> Iterator[Document]:
    """Yield the documents, as long as they are few enough to be held in memory and scored."""
    num_bytes = 0
    for number, document in enumerate(documents, start=1):
        num_bytes += len(document.text.encode())
        if number > MAX_DOCUMENTS or num_bytes > MAX_BYTES:
            raise DataError(
                f"{document.source}: text of {key} exceeds {MAX_DOCUMENTS:,} documents or "
                f"{human_bytes(MAX_BYTES)}; give it a sample"
            )
        yield document


def check_heldout_files(files: Sequence[str]) -> None:
    """Refuse files of another kind, before any is read."""
    for uri in files:
        if not text_suffix(uri):
            raise DataError(
                f"{uri}: held-out text is read from {', '.join(TEXT_SUFFIXES)} only; convert the file (anadil clean takes "
                "the text out of .html and .warc, into the .jsonl.zst of a corpus)"
            )


def tuning_part(documents: Iterable[Document]) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Return the documents for tuning and those for scores, each in order.

    Each text, by `Document.lang`, is split for itself. Where one of its parts would be empty, all of it is for scores:
    a text that no score tells of is worse than one that nothing is tuned by.
    """
    digests = ((document, hashlib.sha256(document.text.encode()).hexdigest()) for document in documents)
    sides = [(document, int(digest[:8], 16) % ONE_IN == 0) for document, digest in digests]
    parts = Counter((document.lang, side) for document, side in sides)
    is_split = {lang: bool(parts[lang, False]) for lang, _ in parts}
    tuning = tuple(document for document, side in sides if side and is_split[document.lang])
    scored = tuple(document for document, side in sides if not side or not is_split[document.lang])
    return tuning, scored


def tuning_texts(files: Sequence[str], text_field: str, num: int) -> dict[str, list[str]]:
    """Return the first texts for tuning of each retained text of files, by names that no source has."""
    texts: dict[str, list[str]] = defaultdict(list)
    for document in tuning_part(read_retained(files, text_field))[0]:
        texts[f"retained.{document.lang}"].append(document.text)
    return {name: each[:num] for name, each in texts.items()}
