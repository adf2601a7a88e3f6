"""Languages as the stages see them: a pack of data, and a few small pure functions if it needs them.

A language is named by its id, for which a pack is shipped or identifiers know enough, or by the path
of a pack (`languages/README.md` describes its keys; `anadil language learn` writes one).
"""

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from anadil.text.filter_rules import Limits, Share
from anadil.text.letters import UNKNOWN, Letters

PACKS = Path(__file__).parent / "languages"
"""Shipped packs, the functions that some need, and the table of codes."""
PACK_SUFFIXES = (".yaml", ".yml", ".json")
WRITTEN_IN = {"Hang": ("Kore",), "Hani": ("Hans", "Hant"), "Aran": ("Arab",)}
"""Scripts that public data sets name -> those of rows that they stand for."""
CLOSED = {"extra": "forbid", "allow_inf_nan": False}
"""pydantic's configuration of a table of a pack: a key that is not known is a mistake."""
LEARN = "anadil language learn {0} SAMPLE... --out {0}.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A language by its own text: how likely its n-grams of letters are, and how unlikely a text may be.

    `anadil.language.identify_sample` makes it, `anadil.text.profile_checks` reads it.
    """

    __pydantic_config__ = CLOSED
    orders: tuple[int, ...]
    """Letters of an n-gram."""
    own: str
    """Log-probabilities of hashed n-grams, packed."""
    others: tuple[str, ...] = ()
    """The same of each text that it is not: its nearest siblings, and noise."""
    min_chars: tuple[int, ...]
    """Letters from which each of the next limits holds, ascending."""
    min_likelihoods: tuple[float, ...]
    """Least mean log-probability of a text of the language."""
    min_margins: tuple[float, ...] = ()
    """Least distance to the likeliest of the others."""
    associations: tuple[str, ...] = ()
    """Log-probabilities of letters, pairs and triples, each packed."""
    min_associations: tuple[float, ...] = ()
    """Least mean of what pairs and triples are rarer than chance by."""
    least_rarity: float = 0.0
    """Nats rarer from which one counts, by what lies beyond."""
    word_order: str = ""
    """Which classes of words stand together, packed."""
    min_word_order: tuple[float, ...] = ()
    """Least mean of what neighbouring words are more frequent than chance by."""
    endings: str = ""
    """Which hashed endings of words are the language's, packed."""
    max_new_endings: tuple[float, ...] = ()
    """Most of a text's words that end otherwise."""
    max_inner_signs: tuple[float, ...] = ()
    """Most figures and unusual signs within words, for each letter."""
    max_inner_capitals: Share = 1.0
    """Most capitals behind small letters, for each letter."""
    min_distinct_words: Share = 0.0
    """Least share of distinct words in a window of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A fastText identifier of the user's: GlotLID, OpenLID, or one of their own. Never downloaded."""

    __pydantic_config__ = CLOSED
    path: str
    label: str
    """Its name for the language, such as `__label__kaz_Cyrl`."""
    sha256: str
    """Digest of the file, so that another one is not taken for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Everything that the stages need to know about a language."""

    code: str
    """BCP 47: ISO 639-1 where there is such a code, else ISO 639-3; also one that the user made up."""
    name: str
    """English name, for reports."""
    script: str
    """ISO 15924."""
    words: Callable[[str], list[str]]
    """The words of a text: the unit of fertility and of the word filters."""
    word_unit: str = ""
    """Word in a language without spaces, such as `a letter or a number`; empty with spaces."""
    shingle_units: Callable[[str], list[str]]
    """Units of near-duplicate shingles: words or characters, case folded."""
    fold: Callable[[str], str]
    """One case for all: for comparing texts, never for writing them."""
    normalize: Callable[[str], str]
    """One form for equal text; idempotent."""
    is_script: Callable[[str], bool]
    """True for a letter of the language's script."""
    guard: Callable[[str], bool]
    """True for text that surely is of this language, whatever an identifier says of short text."""
    is_certain: Callable[[str], bool]
    """The same with twice the evidence: no identifier needs to be asked."""
    labels: frozenset[str]
    """CLD2's labels for the language; empty if it does not know it."""
    second_label: str
    """py3langid's label; empty likewise."""
    lookalikes: frozenset[str]
    """Codes (of CLD2) under which its text may go by mistake; `guard` or the profile decides then."""
    long_lookalikes: frozenset[str] = frozenset()
    """The same of text from 400 characters on, sure or not; empty: as of shorter text."""
    usual_label: str = ""
    """CLD2's code for most of its text, where it takes some for a sibling's; empty: none."""
    min_usual_pieces: float = 0.0
    """Least share of such a text's pieces that have the usual code, of those that have it or the sibling's."""
    sibling: str = ""
    """CLD2's code of the language that it takes the sample for, where nothing else tells that one apart; empty: none."""
    profile: Profile | None = None
    model: LanguageModel | None = None
    letters: Letters = UNKNOWN
    """All that it writes beyond ASCII, as far as they are known."""
    own_letters: frozenset[str]
    """Letters that its neighbours do not write."""
    min_own_letters: float
    """Least share of letters that are its own; less is text in another spelling, such as ASCII."""
    stop_words: frozenset[str]
    """Frequent words, case folded."""
    stray_letters: frozenset[str]
    """Letters that stand alone in damaged PDF text."""
    sentence_ends: str
    """Characters that end a sentence."""
    min_long_block: int
    """Characters from which a block of a web page counts as running text."""
    limits: Limits = field(hash=False)
    prompts: tuple[str, ...]
    """Beginnings that models continue, side by side in the report."""
    questions: tuple[str, ...]
    """Questions that the finetuned model answers in the report."""
    sample_words: tuple[str, ...] = ()
    """Words that the report always cuts up, beside the most frequent long ones."""
    suffixes: frozenset[str] = frozenset()
    """Endings that words are glued together with, case folded; empty where no pack names them."""
    alphabet: str = field(default="", compare=False)
    """Letters of ordinary text, most frequent first; for people."""

    @property
    def word_note(self) -> str:
        """A sentence for those who read figures of words; empty where spaces part them."""
        if not self.word_unit:
            return ""
        return (
            f"{self.name} is written without spaces: a word here is {self.word_unit}. Compare tokens per word within "
            "this language, not with other languages."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLanguage:
    """A row of `codes.tsv`, made by `scripts/language_codes.py` of CLDR's likely subtags."""

    code: str
    iso639_3: str
    script: str
    """In which it is usually written."""
    name: str
    cld2: str
    """Label of CLD2; empty where it does not know the language."""
    second: str
    """Label of py3langid; empty likewise."""
    also: str = ""
    """Other ids, separated by spaces: given up, bibliographic, or of the individual language that corpora name, such as `azj`."""


class UnknownLanguageError(ValueError):
    """No pack, no row, or nothing that could tell the language from another."""


@functools.cache
def known_languages() -> dict[str, KnownLanguage]:
    """Every language that has a row, by its id."""
    lines = (PACKS / "codes.tsv").read_text(encoding="utf-8").splitlines()[1:]
    names = ("code", "iso639_3", "script", "name", "cld2", "second", "also")
    rows = (dict(zip(names, line.split("\t"), strict=True)) for line in lines)
    return {row["code"]: KnownLanguage(**row) for row in rows}


def language_codes() -> list[str]:
    """Ids of the shipped packs."""
    return sorted(path.stem for path in PACKS.glob("*.yaml"))


def is_pack_path(language: str) -> bool:
    """True if a recipe names a language by the path of a pack."""
    return language.endswith(PACK_SUFFIXES) or "/" in language


@functools.cache
def _by_other_id() -> dict[str, KnownLanguage]:
    """Rows by their ids of three letters, and by those that other lists have for the language."""
    rows = [row for code, row in known_languages().items() if "-" not in code]
    # Reversed, so that the first of several rows with one id wins.
    return {row.iso639_3: row for row in reversed(rows)} | {
        other: row for row in rows for other in row.also.split()
    }


def find_language(code: str) -> KnownLanguage | None:
    """The row of an id, in any common spelling: `kk`, `kaz`, `kk-Cyrl`, `kaz_Cyrl`, `azj_Latn`, `__label__kaz_Cyrl`.

    A script other than the usual one takes its identifiers away: they have not seen it.
    """
    first, _, script = code.removeprefix("__label__").replace("_", "-").partition("-")
    rows, script = known_languages(), script.title()
    row = rows.get(first.lower()) or _by_other_id().get(first.lower())
    if row is None or not script or row.script in {script, *WRITTEN_IN.get(script, ())}:
        return row
    if len(script) != 4 or not script.isalpha():
        return None
    return rows.get(f"{row.code}-{script}") or KnownLanguage(
        code=f"{row.code}-{script}", iso639_3=row.iso639_3, script=script,
        name=row.name, cld2="", second="",
    )  # fmt: skip


@functools.cache
def is_alone_in_script(code: str, script: str) -> bool:
    """True if the list has one language with this usual script, and it is this one."""
    return [row.code for row in known_languages().values() if row.script == script] == [code]


def load_language(language: str) -> Language:
    """The language of an id, such as `az` or `kaz_Cyrl`, or of a pack's path.

    Raises:
        UnknownLanguageError: There is no such language, or no identifier knows it: says what to do.
    """
    # Here, because packs are made of the classes above.
    from anadil.text.language_pack import read_pack, without_pack

    if is_pack_path(language):
        path = Path(language).expanduser()
        try:
            status = path.stat()
        except OSError as error:
            raise UnknownLanguageError(
                f"the language pack {language} cannot be read: {error.strerror}"
            ) from None
        return read_pack(path, (status.st_mtime_ns, status.st_size))
    path = PACKS / f"{language}.yaml"
    if language in language_codes():
        # A shipped pack never changes while the program runs.
        return read_pack(path, (0, 0))
    row = find_language(language)
    if row is None:
        raise UnknownLanguageError(_unknown(language))
    if row.code in language_codes():
        return read_pack(PACKS / f"{row.code}.yaml", (0, 0))
    if not row.cld2:
        usual = known_languages().get(row.code.partition("-")[0], row)
        instead = f"; it is usually written in {usual.script}, whose id is {usual.code}" if usual.cld2 else ""
        raise UnknownLanguageError(
            f"{row.name} in {row.script} is a language that CLD2 cannot tell from others{instead}; make a pack of text "
            f"in it, `{LEARN.format(row.code)}`, and name its path"
        )
    return without_pack(row)


def _unknown(language: str) -> str:
    rows = known_languages()
    names = {row.name.lower(): row.code for row in rows.values()}
    ids = [*rows, *_by_other_id()]
    near = next(iter(difflib.get_close_matches(language.lower(), names, n=1, cutoff=0.8)), "")
    near = names.get(near, "") or next(iter(difflib.get_close_matches(language, ids, n=1, cutoff=0.5)), "")
    guess = f"; did you mean {near!r} ({nearest.name})?" if near and (nearest := find_language(near)) else "."
    return (
        f"no language has this id{guess} Packs are shipped for {', '.join(language_codes())}; one in no list is "
        f"learnt, `{LEARN.format('NAME')}`, and named by the pack's path"
    )
