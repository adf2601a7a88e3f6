"""Extract the document of a raw record, and decide whether it stays, by the `Settings` of a run."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any

from anadil.clean.extract import bomb, extract
from anadil.clean.extract.escapes import Unescaped, undo_escapes
from anadil.clean.extract.text_formats import INLINE_TAGS, PAGE, is_page, without_format, without_tags
from anadil.clean.filters import pii
from anadil.clean.filters.clean_stats import Row, StepTimer
from anadil.clean.filters.judge import RULE_NAMES as JUDGED
from anadil.clean.filters.judge import Floats, Judge, Judgement, limits_of, limits_of_rules
from anadil.clean.filters.line_language import LinesOfLanguage, keep_own_lines, may_be_mixed
from anadil.clean.filters.lists import Lists, host_of, load_lists
from anadil.clean.filters.pairs import judge_pair
from anadil.clean.filters.user_filters import ask_filters, statistics_of
from anadil.clean.kernels.minhash import MinHash
from anadil.clean.read.readers import MAX_RECORD_BYTES, RawRecord
from anadil.recipe.filter_rules import NO_RULES
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_written
from anadil.text.corpus import Document
from anadil.text.fasttext_model import QualityModel
from anadil.text.filter_rules import MODES, Limits
from anadil.text.language import load_language
from anadil.text.language_data import Language
from anadil.text.language_id import IdentifiedLanguage, identify_language
from anadil.text.language_pack import writable

DOCUMENT_ID_CHARS = 32
BLOCKED, CONTAMINATED, PAGE_LIMITS, LANGUAGE = "blocked", "contaminated", "page_limits", "language"
RULE_NAMES = (BLOCKED, PAGE_LIMITS, *JUDGED, CONTAMINATED)
"""Everything that drops a document by itself, in order."""
NO_LINES = LinesOfLanguage(text="", removed=0, foreign_share=0.0)
NO_COUNTS: Counter[str] = Counter()
PLACE = re.compile(r".*?:\d+(?= )", re.DOTALL)
"""File and place at the beginning of a document's source, where the record names a source too."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides about a document; a process makes it once, from the recipe alone."""

    recipe: Recipe
    lists_folder: Path | None = None
    """Folder of `compile_lists`; None: documents are compared with no lists."""
    timer: StepTimer = field(default_factory=StepTimer)

    @cached_property
    def lists(self) -> Lists:
        """Lists that documents are compared with."""
        return load_lists(self.lists_folder, self.language)

    @cached_property
    def quality_model(self) -> QualityModel | None:
        """Model that scores documents; None where the recipe names none."""
        path = self.lists.quality_model
        return QualityModel(str(path), self.recipe.clean.quality_label) if path else None

    @cached_property
    def extraction(self) -> extract.Extraction:
        """How web pages become text."""
        clean = self.recipe.clean
        return extract.Extraction(mode=clean.extract, tables=clean.tables, code=clean.code)

    @cached_property
    def personal_data(self) -> tuple[pii.Pattern, ...]:
        """Patterns that placeholders replace."""
        if not self.recipe.clean.pii:
            return ()
        codes = [side.code for side in self.language.sides] or [self.language.code]
        return tuple(dict.fromkeys(pattern for code in codes for pattern in pii.patterns_of(code)))

    @cached_property
    def language(self) -> Language:
        """Language of the corpus; it normalizes nothing where texts stay as they are."""
        language = load_language(self.recipe.language)
        if self.recipe.clean.quality:  # The threshold follows from the scores of all.
            language = replace(language, limits={**language.limits, "min_quality": None})
        return (
            replace(language, normalize=writable, reorder=str, respell=str)
            if self.recipe.clean.as_is
            else language
        )

    @cached_property
    def keeps_signs(self) -> bool:
        """True where texts mean their escapes and tags: text in no language, such as code, and what a base wrote.

        The turns of its chats begin and end with tokens that look like tags.
        """
        is_none = self.language.is_none and not self.language.sides
        return is_none or self.recipe.clean.as_is or is_written(self.recipe)

    @property
    def drops_shared(self) -> bool:
        """True where sentences go that many documents of a host share."""
        return self.recipe.clean.max_shared < 1 and not self.keeps_signs and not self.language.sides

    @cached_property
    def limits(self) -> Limits:
        """Limits in force: the language's own, or the recipe's."""
        return limits_of(self.language, self.recipe.clean.rules)

    @cached_property
    def judge(self) -> Judge:
        """Judge of texts by the limits in force."""
        clean = self.recipe.clean
        return Judge(self.language, clean.rules, clean.modes, self.lists.ng_words)

    @property
    def has_rules(self) -> bool:
        """False where the recipe lets no rule judge."""
        return self.recipe.clean.rules != NO_RULES

    @property
    def limits_of_rules(self) -> Floats:
        """Limits in force in the order of `RULES`."""
        # The driver of the run needs no judge, which takes .4 CPU seconds.
        return limits_of_rules(self.language, self.recipe.clean.rules)

    @property
    def reported(self) -> frozenset[str]:
        """Rules that are counted and drop nothing."""
        modes = self.recipe.clean.modes
        return frozenset(name for name, mode in MODES.items() if modes.get(name, mode) == "report")

    @cached_property
    def minhash(self) -> MinHash:
        """Makes the keys by which near duplicates are found."""
        clean = self.recipe.clean
        return MinHash(
            self.language, bands=clean.minhash_bands, rows=clean.minhash_rows, shingle=clean.minhash_shingle
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractedDocument:
    """A record as text, with all that is found in it by itself; the rules are asked for many at a time."""

    document: Document
    """As it is written: normalized, without lines in another language, with placeholders for personal data."""
    licence: str = ""
    bytes_in: int = 0
    """Bytes of the page or text as it came."""
    encoded: bytes = b""
    """Its text in UTF-8; empty if dropped before text extraction."""
    text: str = ""
    """Text that the rules judge: without placeholders."""
    identified: IdentifiedLanguage | None = None
    """None: it is dropped before text extraction."""
    reason: str | None = None
    sample: Row = field(default_factory=dict)
    """For such a record: the host that is blocked, or the limit that the page exceeds."""
    quality: float | None = None
    items: list[str] = field(default_factory=list)
    """Items of the compared files that it holds."""
    foreign_lines: int = 0
    """Lines and sentences in another language that were taken out of its text."""
    foreign_share: float = 0.0
    personal_data: Counter[str] = field(default_factory=Counter)
    prose: Counter[str] = field(default_factory=Counter)
    """Characters of prose of a page, by cause: see `extract.Extracted`."""
    marks: tuple[str, ...] = ()
    """`recoded`: it was not UTF-8. `normalized`. `unescaped`: line feeds, letters or tags that a program had written out were
    undone. `escaped`: it may hold more of them. `turned`: lines of it were spelt backwards, in the order of a page. `respelled`:
    letters of it had the code points of other languages."""
    formats: Counter[str] = field(default_factory=Counter)
    """Formats that its field of text was written in: see `text_formats`."""
    sides: Counter[str] = field(default_factory=Counter)
    """Languages of the sides of a pair: see `pairs.JudgedPair`."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its text in UTF-8."""
        return len(self.encoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Verdict on a record."""

    extracted: ExtractedDocument
    reason: str | None
    """Name of the rule that drops it; None: it is kept, unless it is a duplicate."""
    failed: tuple[str, ...]
    """Rules that it breaks, in order. Rules behind the end of the work on a page are not asked."""
    statistics: Floats | None = None
    """In the order of `STATISTICS`; None: the rules were not asked."""
    sample: Row = field(default_factory=dict)
    """Values of a sample beside the document: `value` and `limit`."""
    error: str = ""
    """Filter that failed, and its error. The record counts as bad."""
    is_filtered: bool = False
    """Filters of the user's were asked."""


def judge_record(raw: RawRecord, settings: Settings) -> FilterResult:
    """Do everything that is done to a record by itself; nothing of other records decides it."""
    return judge_prepared([prepare_record(raw, settings)], settings)[0]


def prepare_record(raw: RawRecord, settings: Settings) -> ExtractedDocument:
    """Extract a record as text, and what is found in it: everything that may fail on a record, or take long."""
    timer = settings.timer
    if settings.lists.urls and raw.url and settings.lists.urls.is_blocked(raw.url):
        return _unread(raw, raw.text, settings, reason=BLOCKED, sample={"value": host_of(raw.url)})
    timer.start()
    if settings.language.sides:
        return _prepared_pair(raw, settings)
    marks, prose = dict[str, bool](), NO_COUNTS
    raw, formats = opened(raw, settings)
    timer.lap("formats")
    if raw.html is not None:
        page, marks["recoded"], reason, excess = read_page(raw, settings)
        timer.lap("prefilter")
        if reason:
            return _unread(
                raw, page, settings, reason=reason, sample=excess, marks=names_of(marks), formats=formats
            )
        extracted = extract.extract_page(page, settings.language, settings.extraction)
        text, prose = extracted.text, extracted.counts
        timer.lap("extract")
    else:
        text, marks["unescaped"], marks["escaped"] = plain_text(raw.text, settings)
    normalized = settings.language.normalize(text)
    timer.lap("normalize")
    if normalized != text:
        ordered = settings.language.reorder(text)
        respelled = settings.language.respell(ordered) != ordered
        marks |= {"normalized": True, "turned": ordered != text, "respelled": respelled}
    return searched(raw, normalized, settings, prose=prose, marks=names_of(marks), formats=formats)


def _prepared_pair(raw: RawRecord, settings: Settings) -> ExtractedDocument:
    """Write a pair as text in its first direction, by which it is compared; the files of the corpus get both."""
    formats, sides = NO_COUNTS, raw.sides
    if not settings.keeps_signs:
        undone = [without_format(without_tags(side)) for side in raw.sides]
        sides = tuple(each.text for each in undone)
        if sides != raw.sides:
            formats = sum((each.formats for each in undone), Counter()) or Counter({INLINE_TAGS: 1})
    pair = judge_pair(sides, settings.language.sides)
    settings.timer.lap("pairs")
    facts = {"marks": names_of(pair.marks), "sides": pair.languages, "formats": formats}
    if pair.reason:
        return _unread(raw, pair.text, settings, reason=pair.reason, sample={"value": pair.value}, **facts)
    return searched(raw, pair.text, settings, **facts)


def opened(raw: RawRecord, settings: Settings) -> tuple[RawRecord, Counter[str]]:
    """Return a record with its field of text as prose, or as the page that it holds, and the format that it was in."""
    if raw.html is not None or raw.sides or settings.keeps_signs:
        return raw, NO_COUNTS
    # A page may be escaped as a whole, by who put it into XML.
    source = unescape(raw.text) if raw.text.startswith("&lt;") else raw.text
    if is_page(source):
        return replace(raw, html=source.encode(errors="replace"), charset="utf-8"), Counter({PAGE: 1})
    text, formats = without_format(raw.text)
    return (replace(raw, text=text), formats) if formats else (raw, NO_COUNTS)


def plain_text(text: str, settings: Settings) -> Unescaped:
    """Undo what a program has written out, where a text does not mean it."""
    if settings.keeps_signs:
        return Unescaped(text, is_changed=False, is_doubtful=False)
    return undo_escapes(text)


def _unread(raw: RawRecord, text: str, settings: Settings, **facts: Any) -> ExtractedDocument:
    """A record that is dropped before its text is looked at; HTML may hold lone surrogates."""
    if settings.personal_data:
        text = pii.replace_personal_data(text, settings.personal_data)[0]
    return _known(raw, text, text.encode(errors="replace") or _place(raw), settings, **facts)


def _known(
    raw: RawRecord, written: str, identity: bytes, settings: Settings, **facts: Any
) -> ExtractedDocument:
    """Name a document by the hash of its text, or of its place."""
    key, source, url, licence = document_id(identity), raw.source, raw.url, raw.licence
    if patterns := settings.personal_data:
        url, counts = pii.replace_in_address(url, patterns)
        # The name of the file stays: by it the text is found again. Behind it stands the source that the record names.
        match = PLACE.match(source)
        place, space, origin = (match[0], " ", source[match.end() + 1 :]) if match else (source, "", "")
        (origin, more), (licence, _) = (
            pii.replace_personal_data(each, patterns) for each in (origin, licence)
        )
        source = f"{place}{space}{origin}"
        facts["personal_data"] = facts.get("personal_data", NO_COUNTS) + counts + more
    document = Document(id=key, text=written, source=source, url=url, lang=settings.language.code)
    return ExtractedDocument(document=document, licence=licence, bytes_in=raw.num_bytes, **facts)


def _place(raw: RawRecord) -> bytes:
    """By what a page that has no text, or was left unread, is known."""
    return (raw.place or raw.source).encode(errors="replace")


def searched(raw: RawRecord, text: str, settings: Settings, **facts: Any) -> ExtractedDocument:
    """Look through a normalized text with the identifier and the lists."""
    language, timer = settings.language, settings.timer
    identified = identify_language(text, language)
    timer.lap("identify")
    lines = NO_LINES
    if settings.recipe.clean.line_language and identified.is_language:
        lines = keep_own_lines(text, language, by_sentence=may_be_mixed(text, identified, language))
        timer.lap("lines")
    text = lines.text if lines.removed else text
    quality = None
    if settings.quality_model:
        quality = settings.quality_model.score(text)
        timer.lap("quality")
    items: list[str] = []
    if settings.lists.items:
        items = settings.lists.items.matches(text)
        timer.lap("decontaminate")
    written, counts = text, NO_COUNTS
    if settings.personal_data:
        written, counts = pii.replace_personal_data(text, settings.personal_data)
        timer.lap("personal_data")
    encoded = written.encode(errors="replace")
    # A page without text is known by its place; one whose lines all went is not without text.
    identity = encoded if lines.removed else encoded or _place(raw)
    # One call, because each `replace` of this dataclass costs a short text 3 % of its time.
    return _known(
        raw, written, identity, settings, encoded=encoded, text=text, identified=identified, quality=quality,
        items=items, foreign_lines=lines.removed, foreign_share=lines.foreign_share, personal_data=counts, **facts,
    )  # fmt: skip


def judge_prepared(batch: Sequence[ExtractedDocument], settings: Settings) -> list[FilterResult]:
    """Judge records by all rules; a batch of a hundred costs each the least."""
    identified = [each.identified for each in batch if each.identified is not None]
    texts = [each for each in batch if each.identified is not None]
    settings.timer.start()
    judgements = iter(
        settings.judge.judge(
            [each.text for each in texts],
            identified,
            [each.foreign_share for each in texts],
            [each.quality for each in texts if each.quality is not None] or None,
        )
        if texts
        else ()
    )
    settings.timer.lap("filter")
    results = []
    for each in batch:
        if each.reason is not None:
            # A fault of a pair is no rule, and has no column among the verdicts on documents.
            failed = (each.reason,) if each.reason in RULE_NAMES else ()
            result = FilterResult(extracted=each, reason=each.reason, failed=failed, sample=each.sample)
        else:
            result = _with_verdict(each, next(judgements))
        results.append(result)
    return [_filtered(each, settings) for each in results] if settings.lists.filters else results


def _filtered(result: FilterResult, settings: Settings) -> FilterResult:
    """Ask the filters of the user's about a document that no rule drops."""
    if result.reason is not None or result.statistics is None:
        return result
    settings.timer.start()
    statistics = statistics_of(result.statistics)
    answer = ask_filters(settings.lists.filters, result.extracted.text, statistics)
    settings.timer.lap("filters")
    sample = {"filter": answer.filter} if answer.filter else {}
    return replace(result, reason=answer.reason, sample=sample, error=answer.error, is_filtered=True)


def _with_verdict(extracted: ExtractedDocument, judgement: Judgement) -> FilterResult:
    failed: tuple[str, ...] = judgement.failed
    reason: str | None = judgement.reason
    sample: Row = {"value": judgement.value, "limit": judgement.limit} if reason else {}
    if extracted.items:
        failed = (*failed, CONTAMINATED)
        sample = sample if reason else {"value": len(extracted.items), "limit": 0, "items": extracted.items}
        reason = reason or CONTAMINATED
    return FilterResult(
        extracted=extracted, reason=reason, failed=failed, statistics=judgement.statistics, sample=sample
    )


def read_page(raw: RawRecord, settings: Settings) -> tuple[str, bool, str | None, Row]:
    """Decode a page: its HTML, True if it was not UTF-8, the reason if it is dropped unread, and the limit it exceeds."""
    assert raw.html is not None
    html, letters = raw.html, settings.language.letters
    is_recoded = False
    if len(html) > bomb.MAX_HTML_BYTES and b"\0" in html[:1_000]:
        # Half of UTF-16 is zeros, and no tag is found in it.
        text, is_utf8 = extract.decode_page(html, raw.charset, letters)
        html, is_recoded = text.encode(errors="replace"), not is_utf8
    html = bomb.without_data(html)
    if raw.too_large or len(html) > bomb.MAX_HTML_BYTES:
        num_bytes = MAX_RECORD_BYTES if raw.too_large else len(html)
        return "", False, PAGE_LIMITS, bomb.Excess("bytes", num_bytes, bomb.MAX_HTML_BYTES)._asdict()
    page, is_utf8 = extract.decode_page(html, raw.charset, letters)
    is_recoded = is_recoded or not is_utf8
    # The prefilter is the rule `language`, asked early.
    if settings.has_rules and not extract.may_be_in_language(page, settings.language):
        return page, is_recoded, LANGUAGE, {}
    excess = bomb.excess(page)
    return page, is_recoded, PAGE_LIMITS if excess else None, excess._asdict() if excess else {}


def names_of(marks: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the marks that are set."""
    return tuple(name for name, is_set in marks.items() if is_set)


def document_id(encoded: bytes) -> str:
    """Return the id of a document: the hash of its text in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(encoded).hexdigest()[:DOCUMENT_ID_CHARS]
