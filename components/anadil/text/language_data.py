"""Languages as the stages see them: data, and a few small pure functions where a language needs them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from anadil.text.filter_rules import Limits, Share
from anadil.text.letters import UNKNOWN, Letters

NO_LANGUAGE = "none"
"""Word for text in no language, such as code."""
CLOSED = {"extra": "forbid", "allow_inf_nan": False}
"""pydantic's configuration of a table of a pack: a key that is not known is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A language by its own text: how likely its n-grams of letters are, and how unlikely a text may be.

    `anadil.language.identify_sample` makes it, `anadil.text.profile_checks` reads it.
    """

    __pydantic_config__ = CLOSED
    orders: tuple[int, ...]
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
    script: str
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
    reorder: Callable[[str], str] = str
    """The part of `normalize` that turns lines round which are spelt backwards."""
    respell: Callable[[str], str] = str
    """The part of `normalize` that gives letters in the code points of others the language's own."""
    is_script: Callable[[str], bool]
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
    is_none: bool = False
    """Text in no language: nothing identifies it, and its white space and signs stay as they are."""
    sides: "tuple[Language, ...]" = ()
    """Languages of the two sides of parallel text; empty for every other text."""

    @property
    def word_note(self) -> str:
        """A note for readers of figures of words; empty where spaces part them."""
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
    name: str
    cld2: str
    """Label of CLD2; empty where it does not know the language."""
    second: str
    """Label of py3langid; empty likewise."""
    also: str = ""
    """Other ids, separated by spaces: given up, bibliographic, or of the individual language that corpora name, such as `azj`."""


class UnknownLanguageError(ValueError):
    """No pack, no row, or nothing that could tell the language from another."""
