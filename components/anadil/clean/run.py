"""raw -> corpus: read, extract, normalize, identify, filter, deduplicate, split, write.

Nothing depends on the order of the inputs: files are read by name, documents sorted by the
hash of their text, and of equal ones the same is kept. So equal inputs give equal bytes.
"""

import hashlib
import heapq
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from anadil.clean import bomb, extract, filters, readers
from anadil.clean.dedup import MinHash, exact_key, near_duplicates
from anadil.clean.guard import skip_failed_document
from anadil.clean.holdout import split_heldout
from anadil.clean.language_id import identify_language
from anadil.clean.line_language import keep_own_lines
from anadil.core.errors import DataError
from anadil.core.progress import progress
from anadil.runtime.job import Figures, Job
from anadil.text.corpus import Document, write_documents
from anadil.text.language import FilterLimits, Language, load_language

log = logging.getLogger(__name__)

DOCUMENT_ID_CHARS = 32
SAMPLES = 20
"""Dropped documents kept for each reason, to look at."""
SAMPLE_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides about a document."""

    language: Language
    limits: FilterLimits
    extraction: extract.Extraction
    line_language: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What `stats.json` holds; its times differ from run to run, so it is no part of the digest."""

    language: str
    documents_in: int
    """Records read; bad ones not counted."""
    kept: int
    records: dict[str, int]
    """Documents in `train` and `heldout`."""
    dropped: dict[str, int]
    """By reason."""
    limits: FilterLimits
    """In force: the language's own, or the recipe's."""
    bad: int
    """Records that could not be read, and documents that no step could work on."""
    bad_records: dict[str, object]
    """How many, and the first ones with place and reason."""
    responses_skipped: int
    """WARC responses that are no web page or no success."""
    recoded: int
    """Files and pages that were not UTF-8."""
    normalized: int
    """Documents that normalization changed."""
    identifier_retries: int
    foreign_lines: int
    """Lines in another language that were taken out of kept documents and of those dropped later."""
    bytes_in: int
    """Of text and HTML."""
    bytes_out: int
    words_out: int
    seconds: dict[str, float]
    """By step."""
    documents_per_s: dict[str, float]
    """By step: all documents over the step's seconds."""


class CleanStats:
    """Counts of everything that happened to the documents, and samples of the dropped ones."""

    def __init__(self) -> None:
        self.documents_in = 0
        self.dropped: Counter[str] = Counter()
        self.repaired = 0
        self.retried = 0
        self.foreign_lines = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._samples: defaultdict[str, list[tuple[int, str, Document]]] = defaultdict(list)

    def drop(self, reason: str, document: Document) -> None:
        """Count a dropped document; those with the smallest ids are kept as samples."""
        self.dropped[reason] += 1
        cut = replace(document, text=document.text[:SAMPLE_CHARS])
        # A heap gives its smallest, so that the largest id must come first: its negative does.
        entry = (-int(document.id, 16), document.source, cut)
        samples = self._samples[reason]
        if len(samples) < SAMPLES:
            heapq.heappush(samples, entry)
        else:
            heapq.heappushpop(samples, entry)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of the block to a step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] += time.perf_counter() - started

    def write_samples(self, folder: Path) -> None:
        """Write `<reason>.jsonl` for each reason, smallest ids first."""
        folder.mkdir()
        for reason, samples in sorted(self._samples.items()):
            with (folder / f"{reason}.jsonl").open("w", encoding="utf-8") as file:
                for _, _, document in sorted(samples, key=lambda entry: (entry[2].id, entry[1])):
                    line = {"reason": reason, **asdict(document)}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def summary(self) -> str:
        """Reasons and counts, most frequent first."""
        ordered = sorted(self.dropped.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} {count:,}" for reason, count in ordered) or "none"


def run(job: Job) -> Figures:
    """Fill the corpus artifact.

    Raises:
        DataError: Files of unknown kind, too many unreadable records, or nothing is left.
    """
    started = time.perf_counter()
    recipe = job.recipe.clean
    language = load_language(job.recipe.language)
    settings = Settings(
        language=language,
        limits=filters.limits_of(language, recipe.rules),
        extraction=extract.Extraction(mode=recipe.extract, tables=recipe.tables, code=recipe.code),
        line_language=recipe.line_language,
    )
    readers.check_suffixes(job.files)
    read_stats, clean_stats = readers.ReadStats(), CleanStats()
    best: dict[int, Document] = {}
    for key, document in _accepted(job, settings, read_stats, clean_stats):
        _keep_best(best, key, document, clean_stats)
    read_stats.check_bad_share(recipe.max_bad_records)
    documents = sorted(best.values(), key=lambda document: document.id)
    documents = _without_near_duplicates(documents, job, language, clean_stats)
    _refuse_empty(documents, settings, clean_stats)
    train, heldout = split_heldout(
        documents, fraction=recipe.heldout_fraction, max_documents=recipe.heldout_max_documents
    )
    with clean_stats.timed("write"):
        job.records["train"] = write_documents(job.out, "train", train, job.contents)
        job.records["heldout"] = write_documents(job.out, "heldout", heldout, job.contents)
        clean_stats.write_samples(job.out / "rejected")
    stats = _stats(documents, settings, read_stats, clean_stats, job.records)
    text = json.dumps(_named(stats), ensure_ascii=False, indent=2)
    (job.out / "stats.json").write_text(text + "\n", encoding="utf-8")
    samples = sorted(f"rejected/{file.name}" for file in (job.out / "rejected").iterdir())
    job.varying.extend(["stats.json", *samples])
    seconds = time.perf_counter() - started
    log.info("%s documents in; dropped: %s", f"{clean_stats.documents_in:,}", clean_stats.summary())
    job.tracker.metrics({f"dropped/{reason}": count for reason, count in clean_stats.dropped.items()})
    job.tracker.metrics({f"seconds/{step}": value for step, value in clean_stats.seconds.items()})
    return {
        "documents_in": clean_stats.documents_in,
        "kept": len(documents),
        "heldout": len(heldout),
        "words": stats.words_out,
        "dropped": clean_stats.dropped.total(),
        "docs_per_s": round(clean_stats.documents_in / seconds, 1),
    }


def _accepted(
    job: Job, settings: Settings, read_stats: readers.ReadStats, clean_stats: CleanStats
) -> Iterator[tuple[int, Document]]:
    """Documents that pass every filter, from all files, each with the key of its exact duplicates."""
    with progress("clean") as bar:
        for name, uri in sorted(zip(names(job.files), job.files, strict=True)):
            raws = readers.read_records(uri, name, job.recipe.clean.text_field, read_stats)
            while True:
                with clean_stats.timed("read"):
                    raw = next(raws, None)
                if raw is None:
                    break
                found = None
                with skip_failed_document(read_stats, raw.source):
                    found = _judged(raw, settings, read_stats, clean_stats)
                    clean_stats.documents_in += 1
                if found is not None:
                    yield found
                bar.advance(note=name)


def _judged(
    raw: readers.RawRecord, settings: Settings, read_stats: readers.ReadStats, clean_stats: CleanStats
) -> tuple[int, Document] | None:
    """The document of a record with its key, or None if it was dropped."""
    language = settings.language
    text = raw.text
    if raw.html is not None:
        page, reason = _page(raw, language, read_stats, clean_stats)
        if reason:
            clean_stats.drop(reason, _document(raw, page, language))
            return None
        with clean_stats.timed("extract"):
            text = extract.main_text(page, language, settings.extraction)
    with clean_stats.timed("normalize"):
        normalized = language.normalize(text)
    clean_stats.repaired += normalized != text
    document = _document(raw, normalized, language)
    with clean_stats.timed("identify"):
        found = identify_language(normalized, language)
    clean_stats.retried += found.retried
    if settings.line_language and found.is_language:
        with clean_stats.timed("lines"):
            lines = keep_own_lines(normalized, language)
        if lines.is_mixed:
            clean_stats.drop("mixed", document)
            return None
        clean_stats.foreign_lines += lines.removed
        normalized = lines.text
        document = _document(raw, normalized, language)
    with clean_stats.timed("filter"):
        reason = filters.drop_reason(normalized, found, language, settings.limits)
    if reason:
        clean_stats.drop(reason, document)
        return None
    with clean_stats.timed("exact_duplicates"):
        return exact_key(normalized, language), document


def _page(
    raw: readers.RawRecord, language: Language, read_stats: readers.ReadStats, clean_stats: CleanStats
) -> tuple[str, str | None]:
    """A page's decoded HTML, and why it is dropped unread, if it is."""
    assert raw.html is not None
    if raw.too_large or len(raw.html) > bomb.MAX_HTML_BYTES:
        return "", "page_limits"
    with clean_stats.timed("prefilter"):
        page, is_utf8 = extract.decode_page(raw.html, raw.charset)
        read_stats.recoded += not is_utf8
        if not extract.may_be_in_language(page, language):
            return page, "language"
        return page, "page_limits" if bomb.is_bomb(page) else None


def _document(raw: readers.RawRecord, text: str, language: Language) -> Document:
    # Dropped HTML may hold lone surrogates; a page that was left unread is known by its place.
    identity = (text or raw.source).encode(errors="replace")
    return Document(
        id=hashlib.sha256(identity).hexdigest()[:DOCUMENT_ID_CHARS], text=text, source=raw.source, url=raw.url,
        lang=language.code,
    )  # fmt: skip


def _keep_best(best: dict[int, Document], key: int, document: Document, clean_stats: CleanStats) -> None:
    """Of documents with equal text keep the longest, then the one with the smallest id and source."""
    other = best.get(key)
    if other is None:
        best[key] = document
        return
    first, second = sorted((document, other), key=lambda d: (-len(d.text), d.id, d.source, d.url))
    best[key] = first
    clean_stats.drop("duplicate", second)


def _without_near_duplicates(
    documents: Sequence[Document], job: Job, language: Language, clean_stats: CleanStats
) -> list[Document]:
    recipe = job.recipe.clean
    minhash = MinHash(
        language, bands=recipe.minhash_bands, rows=recipe.minhash_rows, shingle=recipe.minhash_shingle
    )
    band_keys = np.zeros((len(documents), minhash.bands), dtype=np.uint64)
    with clean_stats.timed("near_duplicates"), progress("near duplicates", len(documents)) as bar:
        for index, document in enumerate(documents):
            band_keys[index] = minhash.band_keys(document.text)
            bar.advance()
        dropped = near_duplicates(documents, band_keys, minhash)
    for index in sorted(dropped):
        clean_stats.drop("near_duplicate", documents[index])
    return [document for index, document in enumerate(documents) if index not in dropped]


def _refuse_empty(documents: Sequence[Document], settings: Settings, clean_stats: CleanStats) -> None:
    if not clean_stats.documents_in:
        raise DataError("clean.inputs: the files hold no documents; check the paths")
    if documents:
        return
    code, min_words = settings.language.code, settings.limits.min_words
    remedies = {
        "language": f"check language ({code})",
        "short": f"lower clean.rules.min_words ({min_words})",
    }
    most = clean_stats.dropped.most_common(1)[0][0]
    remedy = remedies.get(most, "widen clean.rules") + f", or give more text in {settings.language.name}"
    raise DataError(
        f"corpus is empty after cleaning: {clean_stats.documents_in:,} documents in, "
        f"dropped: {clean_stats.summary()}; {remedy}"
    )


def _stats(
    documents: Sequence[Document],
    settings: Settings,
    read_stats: readers.ReadStats,
    clean_stats: CleanStats,
    records: dict[str, int],
) -> Stats:
    return Stats(
        language=settings.language.code,
        documents_in=clean_stats.documents_in,
        kept=len(documents),
        records=dict(records),
        dropped=dict(sorted(clean_stats.dropped.items())),
        limits=settings.limits,
        bad=read_stats.bad,
        bad_records={"count": read_stats.bad, "first": read_stats.places},
        responses_skipped=read_stats.skipped,
        recoded=read_stats.recoded,
        normalized=clean_stats.repaired,
        identifier_retries=clean_stats.retried,
        foreign_lines=clean_stats.foreign_lines,
        bytes_in=read_stats.bytes_in,
        bytes_out=sum(len(document.text.encode()) for document in documents),
        words_out=sum(len(settings.language.words(document.text)) for document in documents),
        seconds={step: round(value, 3) for step, value in clean_stats.seconds.items()},
        documents_per_s={
            step: round(clean_stats.documents_in / value, 1)
            for step, value in clean_stats.seconds.items()
            if value
        },
    )


def _named(stats: Stats) -> dict[str, object]:
    """The statistics with the key `in`, which is no name in Python."""
    table = asdict(stats)
    return {"language": table.pop("language"), "in": table.pop("documents_in"), **table}


def names(uris: Sequence[str]) -> list[str]:
    """Short names of files: their paths below the directory that all share.

    So provenance, and with it the digest of the corpus, is the same wherever the data lies.
    """
    parts = [uri.split("/") for uri in uris]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == parts[0][shared] for path in parts) and parts:
        shared += 1
    # A file name that is not UTF-8 arrives with lone surrogates, which no JSON could be written with.
    return ["/".join(path[shared:]).encode(errors="replace").decode() for path in parts]
