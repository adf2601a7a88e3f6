"""One raw record -> the document, and why it is dropped; what decides stands in `Settings`."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from anadil.clean import bomb, extract, pii
from anadil.clean.characters import Characters
from anadil.clean.clean_stats import Row, StepTimer
from anadil.clean.fasttext_model import QualityModel
from anadil.clean.judge import RULES, Floats, Judge, limits_of
from anadil.clean.language_id import identify_language
from anadil.clean.line_language import keep_own_lines
from anadil.clean.lists import Lists, load_lists
from anadil.clean.minhash import MinHash
from anadil.clean.readers import RawRecord
from anadil.clean.url_lists import host_of
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document
from anadil.text.filter_limits import FilterLimits
from anadil.text.language import Language, load_language

DOCUMENT_ID_CHARS = 32
BLOCKED, CONTAMINATED, PAGE_LIMITS, LANGUAGE = "blocked", "contaminated", "page_limits", "language"
JUDGED = tuple(rule.name for rule in RULES)
RULE_NAMES = (BLOCKED, PAGE_LIMITS, *JUDGED, CONTAMINATED)
"""Of everything that drops a document by itself, in order."""


@lru_cache(maxsize=1)
def _characters(language: Language) -> Characters:
    """Tables of a language, made once in a process: they take .3 s, and a process works on many shards."""
    return Characters(language)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides about a document; a process makes it once, from the recipe alone."""

    recipe: Recipe
    lists_folder: Path | None = None
    """Of `compile_lists`; None: documents are compared with no lists."""
    timer: StepTimer = field(default_factory=StepTimer)

    @cached_property
    def lists(self) -> Lists:
        """What documents are compared with."""
        return load_lists(self.lists_folder, self.language)

    @cached_property
    def quality_model(self) -> QualityModel | None:
        """Scores documents; None where the recipe names none."""
        path = self.lists.quality_model
        return QualityModel(str(path), self.recipe.clean.quality_label) if path else None

    @cached_property
    def extraction(self) -> extract.Extraction:
        """How web pages become text."""
        clean = self.recipe.clean
        return extract.Extraction(mode=clean.extract, tables=clean.tables, code=clean.code)

    @cached_property
    def personal_data(self) -> tuple[pii.Pattern, ...]:
        """What is replaced by placeholders."""
        return pii.patterns_of(self.language.code) if self.recipe.clean.pii else ()

    @cached_property
    def language(self) -> Language:
        """That of the corpus."""
        return load_language(self.recipe.language)

    @cached_property
    def limits(self) -> FilterLimits:
        """Those in force: the language's own, or the recipe's."""
        return limits_of(self.language, self.recipe.clean.rules)

    @cached_property
    def characters(self) -> Characters:
        """The language's tables of characters."""
        return _characters(self.language)

    @cached_property
    def judge(self) -> Judge:
        """Measures texts and compares them with the limits."""
        clean = self.recipe.clean
        return Judge(self.language, clean.rules, clean.modes, self.lists.ng_words, self.characters)

    @property
    def reported(self) -> frozenset[str]:
        """Rules that are counted and drop nothing."""
        return frozenset(
            name for name, is_enforced in zip(JUDGED, self.judge.is_enforced, strict=True) if not is_enforced
        )

    @cached_property
    def minhash(self) -> MinHash:
        """Makes the keys by which near duplicates are found."""
        clean = self.recipe.clean
        return MinHash(
            self.language,
            bands=clean.minhash_bands,
            rows=clean.minhash_rows,
            shingle=clean.minhash_shingle,
            characters=self.characters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of a record."""

    document: Document
    """Its text is normalized; of a page that was dropped before that, it is the page."""
    reason: str | None = None
    """Name of the rule that drops it; None: it is kept, unless it is a duplicate."""
    failed: tuple[str, ...] = ()
    """Rules that it breaks, in order; those behind one that ends the work on a page are not asked."""
    is_judged: bool = False
    """Whether all rules were asked."""
    statistics: Floats | None = None
    """In the order of `STATISTICS`; None where nothing was measured."""
    sample: Row = field(default_factory=dict)
    """What a sample says beside the document: `value` and `limit`."""
    personal_data: Counter[str] = field(default_factory=Counter)
    """Placeholders in its text, by kind."""
    foreign_lines: int = 0
    """Lines in another language that were taken out of its text."""
    is_recoded: bool = False
    """It was not UTF-8."""
    is_normalized: bool = False
    """Normalization has changed it."""
    is_retried: bool = False
    """The identifier refused it at first."""

    def sample_row(self) -> Row:
        """A row of `rejected/`."""
        return {**self.document.as_row(), **self.sample}


def judge_record(raw: RawRecord, settings: Settings) -> Judged:
    """Everything that is done to a record by itself; nothing of other records decides it."""
    language, timer = settings.language, settings.timer
    if settings.lists.urls and raw.url and settings.lists.urls.is_blocked(raw.url):
        return _unread(_document(raw, raw.text, language), BLOCKED, value=host_of(raw.url))
    text, is_recoded = raw.text, False
    if raw.html is not None:
        page, is_recoded, reason = read_page(raw, settings)
        if reason:
            return replace(_unread(_document(raw, page, language), reason), is_recoded=is_recoded)
        with timer.timed("extract"):
            text = extract.main_text(page, language, settings.extraction)
    with timer.timed("normalize"):
        normalized = language.normalize(text)
    judged = _judged(_document(raw, normalized, language), settings)
    return replace(judged, is_recoded=is_recoded, is_normalized=normalized != text)


def _judged(document: Document, settings: Settings) -> Judged:
    """What the rules and lists say of a normalized text; of what stays, personal data is replaced."""
    language, timer, text = settings.language, settings.timer, document.text
    with timer.timed("identify"):
        found = identify_language(text, language)
    removed, foreign = 0, 0.0
    if settings.recipe.clean.line_language and found.is_language:
        with timer.timed("lines"):
            lines = keep_own_lines(text, language)
        removed, foreign = lines.removed, lines.foreign_share
        if removed:
            text = lines.text
            document = replace(document, text=text, id=id_of(text))
    quality = None
    if settings.quality_model:
        with timer.timed("quality"):
            quality = [settings.quality_model.score(text)]
    with timer.timed("filter"):
        judgement = settings.judge.judge([text], [found], [foreign], quality)[0]
    failed: tuple[str, ...] = judgement.failed
    reason: str | None = judgement.reason
    sample: Row = {"value": judgement.value, "limit": judgement.limit} if reason else {}
    if settings.lists.items:
        with timer.timed("decontaminate"):
            items = settings.lists.items.matches(text)
        if items:
            failed = (*failed, CONTAMINATED)
            sample = sample if reason else {"value": len(items), "limit": 0, "items": items}
            reason = reason or CONTAMINATED
    counts: Counter[str] = Counter()
    if settings.personal_data:
        with timer.timed("personal_data"):
            replaced, counts = pii.replace_personal_data(text, settings.personal_data)
        document = replace(document, text=replaced, id=id_of(replaced)) if counts else document
    return Judged(
        document=document, reason=reason, failed=failed, is_judged=True, sample=sample, personal_data=counts,
        statistics=judgement.statistics, is_retried=found.retried, foreign_lines=removed,
    )  # fmt: skip


def _unread(document: Document, reason: str, **sample: object) -> Judged:
    """A record that is dropped before its text is known."""
    return Judged(document=document, reason=reason, failed=(reason,), sample=sample)


def read_page(raw: RawRecord, settings: Settings) -> tuple[str, bool, str | None]:
    """A page's decoded HTML, whether it was not UTF-8, and why it is dropped unread, if it is."""
    assert raw.html is not None
    if raw.too_large or len(raw.html) > bomb.MAX_HTML_BYTES:
        return "", False, PAGE_LIMITS
    with settings.timer.timed("prefilter"):
        page, is_utf8 = extract.decode_page(raw.html, raw.charset)
        if not extract.may_be_in_language(page, settings.language):
            return page, not is_utf8, LANGUAGE
        return page, not is_utf8, PAGE_LIMITS if bomb.is_bomb(page) else None


def _document(raw: RawRecord, text: str, language: Language) -> Document:
    # A page that was left unread is known by its place.
    identity = text or raw.place or raw.source
    return Document(id=id_of(identity), text=text, source=raw.source, url=raw.url, lang=language.code)


def id_of(text: str) -> str:
    """The id of a document: the hash of its text, in hexadecimal digits."""
    # Dropped HTML may hold lone surrogates.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DOCUMENT_ID_CHARS]
