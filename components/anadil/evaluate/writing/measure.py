"""Language, script, loops, ends and words of the texts that candidates write, judged by rules and no model.

A text in another script of a language with two is neither right nor wrong: it has a column of its own. Words count as unseen
if no training text has them, case and diacritics aside. An unseen word with a seen ending may be a new form of a known word.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from anadil.core.errors import PreflightError
from anadil.evaluate.generate import DECODING_MODES, is_of_use, language_of
from anadil.evaluate.heldout import WordReader
from anadil.evaluate.measures import Asked, CheckValue, Evaluator, Tables
from anadil.evaluate.models import CandidateModel
from anadil.text.language_data import Language
from anadil.text.letters import NAMES, WITHOUT_SPACES, WORD, letters_of, name_of, script_of
from anadil.text.metrics import clustered_share, share_figures
from anadil.text.ngram_overlap import Hashes, SeenNgrams, word_hashes

SCRIPTS = {
    "az": "Arab Cyrl Latn", "bs": "Cyrl Latn", "ha": "Arab Latn", "hi": "Deva Latn", "iu": "Cans Latn", "jv": "Java Latn",
    "kk": "Arab Cyrl", "ks": "Arab Deva", "ku": "Arab Cyrl Latn", "ky": "Arab Cyrl Latn", "mn": "Cyrl Mong", "ms": "Arab Latn",
    "pa": "Arab Guru", "sd": "Arab Deva", "sr": "Cyrl Latn", "tg": "Arab Cyrl Latn", "tk": "Arab Cyrl Latn",
    "ug": "Arab Cyrl Latn", "uz": "Arab Cyrl Latn", "wo": "Arab Latn",
}  # fmt: skip
"""Scripts that people write a language in today. Source: CLDR 48, supplemental/languageData.json."""
USUAL = {"Cyrl": "ru", "Latn": "en", "Arab": "ar", "Deva": "hi"}
"""Script -> the language that models know in it best. A text with its letters alone is in that language. Chosen by us:
of Azerbaijani sentences in Cyrillic, CLD2 takes 21 % for another Turkic language, and of Russian ones 10 % for nothing."""
ALPHABETS = frozenset(
    name for script, names in NAMES.items() if script not in {*WITHOUT_SPACES, "Kore", "Hang"} for name in names
) - {"CJK", "HIRAGANA", "KATAKANA"}  # fmt: skip
"""Scripts that no word mixes. Japanese writes Latin letters within words."""
MIN_SCRIPT_LETTERS = 5  # Letters of a text whose script says something. A language takes 20
MIN_MIXED_LETTERS = 3  # Letters of a word of two scripts. A shorter one is a unit or a symbol, such as kΩ
NUM_HELDOUT, HELDOUT_WORDS, HELDOUT_CHARS = 200, 40, 100
"""Documents that show what real text gets, and first words of each, or letters where no spaces part words: about as long as a
continuation of 64 tokens."""
Kind = Literal["own_language", "other_language", "second_script", "other_script"]
KINDS: tuple[Kind, ...] = get_args(Kind)
REAL: Mapping[str, Any] = {"kind": "text", "ended": True, "loop": False}
"""Held-out text as an entry of `generations`."""
HELDOUT = ("heldout", "")
Words = tuple[Hashes, Hashes]
"""Words of a text, each once, and the ending of each."""


@dataclass(slots=True, kw_only=True)
class Writing(Evaluator):
    """Texts of all candidates, whose words the training part is asked for when all have written."""

    language: Language
    heldout: Sequence[str]
    words: dict[tuple[str, str], list[Words]] = field(default_factory=dict)
    """Candidate and mode -> words of each text. Empty for a language without spaces."""
    seen: tuple[SeenNgrams, SeenNgrams] | None = None
    """Words and endings of training text. None before it was read, and for a language without spaces."""

    def measure(self, loaded: CandidateModel, table: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the figures of each mode, and only of answers where the model was taught to answer."""
        candidate = loaded.candidate
        tables: dict[str, Any] = {}
        for mode in DECODING_MODES:
            texts = [
                each
                for each in table["generations"]
                if each["mode"] == mode and is_of_use(each["kind"], answers=candidate.answers)
            ]
            if texts:
                tables[mode] = figures_of(texts, self.language)
                self._add_words((candidate.name, mode), texts)
        return tables

    def reader(self) -> WordReader:
        """Return the function that takes the words and endings of each training text."""
        self._add_words(HELDOUT, [{**REAL, "text": each} for each in self.heldout])
        empty = np.empty(0, np.uint64)
        listed = [(empty, empty), *(each for texts in self.words.values() for each in texts)]
        words, endings = (SeenNgrams(np.concatenate(each)) for each in zip(*listed, strict=True))

        def mark(seen_words: Hashes, seen_endings: Hashes) -> None:
            self.seen = words, endings
            words.mark(seen_words)
            endings.mark(seen_endings)

        return mark

    def compare(self, tables: Tables) -> None:
        """Add the shares of words that no training text has."""
        for (name, mode), listed in self.words.items():
            if name in tables:
                tables[name]["writing"][mode] |= _unseen(listed, self.seen)

    def facts(self) -> dict[str, Any]:
        """Entry of `scores.json` over all candidates: the same figures of held-out text, for comparison."""
        texts = [{**REAL, "text": each, "language": _language(each, self.language)} for each in self.heldout]
        figures = figures_of(texts, self.language) | _unseen(self.words.get(HELDOUT, []), self.seen)
        # Real text was never stopped.
        heldout = {name: each for name, each in figures.items() if name not in ("loops", "ended")}
        return {"heldout": heldout, "second_scripts": _second_scripts(self.language)}

    def _add_words(self, key: tuple[str, str], texts: Sequence[Mapping[str, Any]]) -> None:
        if not self.language.word_unit:
            self.words[key] = [written_words(each, self.language) for each in texts]


def prepare(asked: Asked) -> Writing:
    """Return the held-out beginnings that texts of candidates stand beside."""
    texts = (each.text for each in asked.heldout[:NUM_HELDOUT])
    if asked.language.word_unit:
        beginnings = (text[:HELDOUT_CHARS] for text in texts)
    else:
        beginnings = (" ".join(text.split()[:HELDOUT_WORDS]) for text in texts)
    return Writing(language=asked.language, heldout=[*filter(None, beginnings)])


def check_value(table: Mapping[str, Any]) -> CheckValue | None:
    """Return the share of greedy texts in another script, be it a script of the language or not."""
    figures = table.get("writing", {}).get("greedy", {}).get("foreign_script")
    return CheckValue(**figures) if figures else None


def kind_of_text(text: str, code: str | None, language: Language) -> Kind | None:
    """Return the kind of a text by its script and its identified language, or None where that is unknown."""
    letters = [*filter(str.isalpha, text)]
    if len(letters) >= MIN_SCRIPT_LETTERS and 2 * sum(map(language.is_script, letters)) < len(letters):
        return "second_script" if _is_second_script(letters, language) else "other_script"
    return None if code is None else "own_language" if code == language.code else "other_language"


def has_mixed_word(text: str, language: Language) -> bool:
    """True if a word has letters of two scripts and is no foreign name with an ending of the language."""
    for word in WORD.findall(text):
        scripts = {name_of(letter) for letter in word} & ALPHABETS
        if len(scripts) > 1 and len(word) >= MIN_MIXED_LETTERS and not _is_name_with_ending(word, language):
            return True
    return False


def faults_of(text: Mapping[str, Any], language: Language) -> set[str]:
    """Return the faults of an entry of `generations`. A continuation may go on at the limit."""
    kind = kind_of_text(text["text"], text["language"], language)
    faults: set[str] = {kind} if kind and kind != "own_language" else set()
    if has_mixed_word(text["text"], language):
        faults.add("mixed_script")
    if text["loop"]:
        faults.add("loops")
    if not any(map(str.isalnum, text["text"])):
        faults.add("empty")
    if text["kind"] == "answer" and not text["ended"]:
        faults.add("cut")
    return faults


def figures_of(texts: Sequence[Mapping[str, Any]], language: Language) -> dict[str, Any]:
    """Return shares of entries of `generations` with their intervals."""
    kinds = [kind_of_text(each["text"], each["language"], language) for each in texts]
    faults = [faults_of(each, language) for each in texts]
    marks = {name: [kind == name for kind in kinds if kind] for name in KINDS} | {
        "foreign_script": [kind.endswith("script") for kind in kinds if kind],
        "mixed_script": ["mixed_script" in each for each in faults],
        "loops": ["loops" in each for each in faults],
        "ended": [bool(each["ended"]) for each in texts],
        # Nobody identified the language of a text without a kind, so that it may have a fault that nobody sees.
        "sound": [not each for kind, each in zip(kinds, faults, strict=True) if kind or each],
    }
    words = [len(language.words(each["text"])) for each in texts]
    return {"texts": len(texts), "words": statistics.median(words) if words else 0} | {
        name: share_figures(each) for name, each in marks.items()
    }


def written_words(text: Mapping[str, Any], language: Language) -> Words:
    """Return the words of a text without its cut ends, numbers and single letters."""
    words, whole = language.words(text["text"]), str(text["text"])
    # A continuation may begin within a word of its prompt.
    if text.get("kind") == "continuation" and whole[:1].isalnum():
        words = words[1:]
    if not text["ended"]:
        words = words[:-1]
    listed = (each for each in words if each.isalpha() and len(each) > 1)
    hashes, endings = word_hashes(" ".join(listed), language)
    unique, places = np.unique(hashes, return_index=True)
    return unique, endings[places]


def _unseen(listed: Iterable[Words], seen: tuple[SeenNgrams, SeenNgrams] | None) -> dict[str, Any]:
    if seen is None:
        return {}
    seen_words, seen_endings = seen
    unseen = [
        (~seen_words.seen_of(words), ~seen_endings.seen_of(endings))
        for words, endings in listed
        if len(words)
    ]
    figures = {}
    for name, marks in (
        ("unseen_words", [words for words, _ in unseen]),
        ("unseen_endings", [words & endings for words, endings in unseen]),
    ):
        value, interval = clustered_share([int(each.sum()) for each in marks], [len(each) for each in marks])
        figures[name] = {"value": value, "num": sum(map(len, marks)), "interval": interval}
    return figures


def _is_name_with_ending(word: str, language: Language) -> bool:
    is_own = [language.is_script(letter) for letter in word]
    num_foreign = is_own.index(True) if True in is_own else 0
    # Latin letters in a Cyrillic word are names more often than mistakes, Cyrillic ones in a Latin word are not.
    return language.script != "Latn" and num_foreign > 1 and all(is_own[num_foreign:])


def _is_second_script(letters: Sequence[str], language: Language) -> bool:
    script = script_of(letters)
    usual = letters_of(USUAL.get(script, "")).own
    return script in _second_scripts(language) and not all(
        each.isascii() or each in usual for each in letters
    )


def _second_scripts(language: Language) -> list[str]:
    scripts = SCRIPTS.get(language.code.partition("-")[0], "").split()
    return [each for each in scripts if each != language.script]


def _language(text: str, language: Language) -> str | None:
    try:
        return language_of(text, language)
    except PreflightError:
        return None  # Said before: the user's identifier is missing.
