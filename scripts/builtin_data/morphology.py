"""Azerbaijani noun, verb and number forms for the built-in data."""

from __future__ import annotations

from dataclasses import dataclass

VOWELS = "aıoueəiöü"
BACK = "aıou"
HIGH = {"a": "ı", "ı": "ı", "o": "u", "u": "u", "e": "i", "ə": "i", "i": "i", "ö": "ü", "ü": "ü"}
NO_SOFTENING = {"noutbuk"}
SOFT_VERBS = {"et", "get"}

ONES = ["", "bir", "iki", "üç", "dörd", "beş", "altı", "yeddi", "səkkiz", "doqquz"]
TENS = ["", "on", "iyirmi", "otuz", "qırx", "əlli", "altmış", "yetmiş", "səksən", "doxsan"]


def letters(word: str) -> str:
    """Return the lower-case letters of a word (suffixes ignore quotes)."""
    lowered = word.replace("İ", "i").replace("I", "ı").lower()
    return "".join(c for c in lowered if c.isalpha() or c == " ")


def last_vowel(word: str) -> str:
    """Return the vowel that decides the harmony of the next suffix."""
    for char in reversed(letters(word)):
        if char in VOWELS:
            return char
    raise ValueError(f"no vowel in {word!r}")


def low(word: str) -> str:
    """Two-way vowel: a after back vowels, schwa after front ones."""
    return "a" if last_vowel(word) in BACK else "ə"


def high(word: str) -> str:
    """Four-way vowel."""
    return HIGH[last_vowel(word)]


def ends_in_vowel(word: str) -> bool:
    """Tell whether the last letter is a vowel."""
    return letters(word)[-1] in VOWELS


def soften(word: str) -> str:
    """Change final k to y and q to soft g in words of several syllables."""
    last = word.rsplit(" ", maxsplit=1)[-1]
    syllables = sum(c in VOWELS for c in letters(last))
    if syllables < 2 or last in NO_SOFTENING or word[-1] not in "kq" or word[-2] not in VOWELS:
        return word
    return word[:-1] + ("y" if word[-1] == "k" else "ğ")


@dataclass
class Noun:
    """A noun form being built: text so far, and whether it ends in a possessive."""

    text: str
    before_vowel: str = ""
    pending: bool = False  # an izafet head whose possessive is not yet written
    owned: bool = False

    def add(self, plain: str, after_vowel: str) -> None:
        """Add a suffix that begins with a vowel, or its form after a vowel."""
        if ends_in_vowel(self.text):
            self.text += after_vowel
        else:
            self.text = (self.before_vowel or soften(self.text)) + plain
        self.before_vowel = ""

    def own(self) -> None:
        """Add the possessive of the third person."""
        vowel = high(self.text)
        self.add(vowel, "s" + vowel)
        self.pending, self.owned = False, True

    def apply(self, op: str) -> None:
        """Apply one operation of the frame language."""
        if op == "pl":
            self.text += "l" + low(self.text) + "r"
            self.before_vowel = ""
            return
        if op in ("poss", "p3"):
            if not self.owned:
                self.own()
            return
        if op in ("p1pl", "poss2"):
            self.pending = False
            vowel = high(self.text)
            tail = ("m" if op == "p1pl" else "n") + vowel + "z"
            self.add(vowel + tail, tail)
            return
        if op == "too":
            self.text += " d" + low(self.text)
            return
        if self.pending:
            self.own()
        two, four = low(self.text), high(self.text)
        if op == "gen":
            self.add(four + "n", "n" + four + "n")
        elif op == "dat":
            self.add(two, ("n" if self.owned else "y") + two)
        elif op == "acc":
            self.add(four, "n" + four)
        elif op in ("loc", "abl"):
            tail = "d" + two + ("n" if op == "abl" else "")
            self.text += ("n" if self.owned else "") + tail
        elif op == "ins":
            self.text += " ilə"
        elif op != "cap":
            raise ValueError(f"unknown operation {op!r}")


def inflect(entry: str, ops: list[str]) -> str:
    """Inflect a lexicon entry; a trailing tilde marks an izafet head."""
    stem, _, short = entry.partition("/")
    pending = stem.endswith("~")
    noun = Noun(stem.rstrip("~"), before_vowel=short, pending=pending)
    for op in ops:
        noun.apply(op)
    if noun.pending:
        noun.own()
    return noun.text


PERSONS = {
    "past": {"sg1": "m", "pl1": "k", "pl2": "n{h}z", "pl3": "l{l}r"},
    "other": {"sg1": "{l}m", "pl1": "{h}k", "pl2": "s{h}n{h}z", "pl3": "l{l}r"},
}


def voiced(stem: str) -> str:
    """Change final t to d before a vowel where the verb does so."""
    last = stem.rsplit(" ", maxsplit=1)[-1]
    several = sum(c in VOWELS for c in last) > 1
    if stem.endswith("t") and (last in SOFT_VERBS or several):
        return stem[:-1] + "d"
    return stem


def conjugate(stem: str, ops: list[str]) -> str:
    """Conjugate a verb: neg, then pres, past, perf or fut, then the person."""
    tense = next(op for op in ops if op in ("pres", "past", "perf", "fut"))
    person = next((op for op in ops if op in PERSONS["past"]), "")
    if "neg" in ops:
        stem += "m" if tense == "pres" else "m" + low(stem)
    vowel_end = ends_in_vowel(stem)
    four, two = high(stem), low(stem)
    if tense == "past":
        form = stem + "d" + four
    elif tense == "pres":
        form = (stem + "y" if vowel_end else voiced(stem)) + four + "r"
    elif tense == "fut":
        form = (stem + "y" if vowel_end else voiced(stem)) + two + "c" + two
        form += "q" if two == "a" else "k"
    elif person in ("", "pl3"):
        form = (stem + "y" if vowel_end else voiced(stem)) + four + "b"
    else:
        form = stem + "m" + four + "ş"
    if not person:
        return form
    ending = PERSONS["past" if tense == "past" else "other"][person]
    if ending[0] == "{":
        form = soften(form)
    ending = ending.format(h=high(form), l=low(form))
    if ending.endswith("k") and low(form) == "a":
        ending = ending[:-1] + "q"
    return form + ending


def number(value: int) -> str:
    """Write a number below 10000 in words."""
    parts: list[str] = []
    if value >= 1000:
        parts += [ONES[value // 1000] if value >= 2000 else "", "min"]
        value %= 1000
    if value >= 100:
        parts += [ONES[value // 100] if value >= 200 else "", "yüz"]
        value %= 100
    parts += [TENS[value // 10], ONES[value % 10]]
    return " ".join(p for p in parts if p)


def capital(text: str) -> str:
    """Upper-case the first letter, with dotted capital I."""
    for i, char in enumerate(text):
        if char.isalpha():
            return text[:i] + ("İ" if char == "i" else char.upper()) + text[i + 1 :]
    return text
