"""One raw record -> the document, and why it is dropped; what decides stands in `Settings`."""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property

from anadil.clean import bomb, extract, filters
from anadil.clean.clean_stats import Row, StepTimer
from anadil.clean.dedup import MinHash
from anadil.clean.language_id import identify_language
from anadil.clean.readers import RawRecord
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document
from anadil.text.language import FilterLimits, Language, load_language

DOCUMENT_ID_CHARS = 32


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides about a document; a process makes it once, from the recipe alone."""

    recipe: Recipe
    timer: StepTimer = field(default_factory=StepTimer)

    @cached_property
    def language(self) -> Language:
        """That of the corpus."""
        return load_language(self.recipe.language)

    @cached_property
    def limits(self) -> FilterLimits:
        """Those in force: the language's own, or the recipe's."""
        return filters.limits_of(self.language, self.recipe.clean.rules)

    @cached_property
    def minhash(self) -> MinHash:
        """Makes the keys by which near duplicates are found."""
        clean = self.recipe.clean
        return MinHash(
            self.language, bands=clean.minhash_bands, rows=clean.minhash_rows, shingle=clean.minhash_shingle
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of a record."""

    document: Document
    """Its text is normalized; of a page that was dropped before that, it is the page."""
    reason: str | None = None
    """Name of the rule that drops it; None: it is kept, unless it is a duplicate."""
    facts: Row = field(default_factory=dict)
    """Of its row in the accounts: statistics, verdicts of rules. JSON values."""
    sample: Row = field(default_factory=dict)
    """What a sample says beside the document: `value` and `limit`."""
    is_recoded: bool = False
    """It was not UTF-8."""
    is_normalized: bool = False
    """Normalization has changed it."""
    is_retried: bool = False
    """The identifier refused it at first."""

    def sample_row(self) -> Row:
        """A row of `rejected/`."""
        return {**asdict(self.document), **self.sample}


def judge_record(raw: RawRecord, settings: Settings) -> Judged:
    """Everything that is done to a record by itself; nothing of other records decides it."""
    language, timer = settings.language, settings.timer
    text, is_recoded = raw.text, False
    if raw.html is not None:
        page, is_recoded, reason = _page(raw, settings)
        if reason:
            return Judged(document=_document(raw, page, language), reason=reason, is_recoded=is_recoded)
        with timer.timed("extract"):
            text = extract.main_text(page, language)
    with timer.timed("normalize"):
        normalized = language.normalize(text)
    with timer.timed("identify"):
        found = identify_language(normalized, language)
    with timer.timed("filter"):
        reason = filters.drop_reason(normalized, found, language, settings.limits)
    return Judged(
        document=_document(raw, normalized, language), reason=reason, is_recoded=is_recoded,
        is_normalized=normalized != text, is_retried=found.retried,
    )  # fmt: skip


def _page(raw: RawRecord, settings: Settings) -> tuple[str, bool, str | None]:
    """A page's decoded HTML, whether it was not UTF-8, and why it is dropped unread, if it is."""
    assert raw.html is not None
    if raw.too_large or len(raw.html) > bomb.MAX_HTML_BYTES:
        return "", False, "page_limits"
    with settings.timer.timed("prefilter"):
        page, is_utf8 = extract.decode_page(raw.html, raw.charset)
        if not extract.may_be_in_language(page, settings.language):
            return page, not is_utf8, "language"
        return page, not is_utf8, "page_limits" if bomb.is_bomb(page) else None


def _document(raw: RawRecord, text: str, language: Language) -> Document:
    # Dropped HTML may hold lone surrogates; a page that was left unread is known by its place.
    identity = (text or raw.place or raw.source).encode(errors="replace")
    return Document(
        id=hashlib.sha256(identity).hexdigest()[:DOCUMENT_ID_CHARS], text=text, source=raw.source, url=raw.url,
        lang=language.code,
    )  # fmt: skip
