"""One code point for each letter of a language: others that look like it become its own.

Keyboards, fonts and code pages of neighbours give a letter other code points, and each word with it becomes two words.
The table of letters says which one is the language's; names and decompositions of Unicode say which look like it.
"""

import re
import unicodedata
from collections.abc import Callable

from anadil.text.letters import Letters, replace_words

Respell = Callable[[str], str]
MARKS = {"\u0327": "\u0326", "\u0326": "\u0327", "\u030c": "\u0306", "\u0306": "\u030c"}
"""Mark of an own letter -> the one that stands in its place: cedilla and comma below, caron and breve."""
ALIKE = {
    "đ": "ðɖ", "Đ": "ÐƉ", "ə": "ǝ", "Ə": "Ǝ", "ǝ": "ə", "Ǝ": "Ə", "ő": "õ", "Ő": "Õ", "ű": "û", "Ű": "Û",
    "ң": "ҥӊ", "қ": "ҡӄҟќ", "ғ": "ӷѓ", "ҳ": "ӽњ", "ҷ": "ӌљ", "ک": "كڪ", "ڪ": "ك", "ك": "کڪ", "ی": "يى", "ي": "ی", "ه": "ەہھ",
    "ہ": "هە", "ۃ": "ة", "ة": "ۃ",
}  # fmt: skip
"""Letter -> those of the same shape in most positions, and what Latin-1, or fonts for the code page 1251, have in its place.
Source: Unicode, ArabicShaping.txt, joining groups, and confusables.txt."""
FONTS = (("ӣӯ", "їў"), ("үө", "їє"))
"""Letters, and neighbours' letters that fonts for the code page 1251 draw alike; beside the own letters, names are written so."""
HEHS, AE = "هہھ", "ە"
YEH, EITHER = "ی", "يى"
DOTLESS = frozenset((
    "على", "إلى", "الى", "حتى", "لدى", "متى", "سوى", "مدى", "بلى", "أخرى", "إحدى", "كبرى",
    "أولى", "عيسى", "موسى", "مصطفى", "يحيى", "معنى", "مستوى", "مستشفى",
))  # fmt: skip
"""Frequent words of Arabic that end in the second of these; Persian keyboards have one letter for both."""
OTHER_HEHS = re.compile("[هہ](?:\u200c|(?<=[^\\W\\d_].)(?![^\\W\\d_]|\u0640))")
"""The vowel of Sorani, Uyghur and Kazakh, which joins with no letter behind it, as older keyboards write it."""
FIRST_ASPIRATE = re.compile("(?<![^\\W\\d_])ھ(?=[^\\W\\d_])")
"""In Urdu it stands behind the consonant that it aspirates; older keyboards have it for the other heh."""
INNER_HEH = re.compile("[هہھ](?=[^\\W\\d_])")
APOSTROPHES = "'`´ʹʻʼʽʾʿˈ‘’‛′\uff07"
TURNED, APOSTROPHE, PALOCHKA = "ʻ", "ʼ", "ӏ"
INNER = re.compile(f"(?<=[^\\W\\d_])[{APOSTROPHES}](?=[^\\W\\d_])")
INITIAL, FINAL = (
    re.compile(f"(?<![\\w{APOSTROPHES}])[{APOSTROPHES}](?=[^\\W\\d_])"),
    re.compile(f"(?<=[^\\W\\d_])[{APOSTROPHES}](?!\\w)"),
)
BEHIND_O_G = re.compile(f"(?<=[oOgG])[{APOSTROPHES}](?=\\w)")
FINAL_O_G = re.compile(f"(?<=[oOgG])[{APOSTROPHES}](?!\\w)")
_CYRILLIC = "[\u0430-\u045f\u0410-\u042f\u04cf\u04c0]"
PALOCHKAS = re.compile(
    f"(?<={_CYRILLIC})(?:[1|!](?={_CYRILLIC})|[IlІіӀ](?![A-Za-z]))|(?<!\\w)[IІ](?={_CYRILLIC})"
)
"""Signs that stand for the palochka of the languages of the Caucasus."""


def spelling_repair(letters: Letters) -> Respell:
    """Repair of letters in the code points of other languages, for a language with these letters; idempotent."""
    alphabet = letters.own
    table = _variants(alphabet)
    repairs = [
        _font_repair(drawn, others)
        for drawn, others in FONTS
        if alphabet.issuperset(drawn) and alphabet.isdisjoint(others)
    ]
    if single := {variant: letter for variant, letter in table.items() if len(variant) == 1}:
        repairs.append(_respell_words(single, alphabet))
    if double := {variant: letter for variant, letter in table.items() if len(variant) > 1}:
        repairs.append(lambda text: _replaced(text, double))
    if AE in alphabet:
        consonant = next((heh for heh in reversed(HEHS) if heh in alphabet), "")
        repairs.append(lambda text: _respell_heh(text, consonant))
    if alphabet >= {"ہ", "ھ"}:
        repairs.append(lambda text: FIRST_ASPIRATE.sub("ہ", text) if "ھ" in text else text)
    if alphabet & {TURNED, APOSTROPHE}:
        repairs.append(lambda text: _respell_apostrophes(text, alphabet))
    if PALOCHKA in alphabet:
        repairs.append(lambda text: PALOCHKAS.sub(_palochka, text))

    def respell(text: str) -> str:
        if text.isascii() and not alphabet & {TURNED, APOSTROPHE}:
            return text
        for repair in repairs:
            text = repair(text)
        return text

    return respell


def _variants(alphabet: frozenset[str]) -> dict[str, str]:
    """Letters that look like those of a language, and are none of it -> its letter."""
    table: dict[str, str] = {}
    for letter in sorted(alphabet, reverse=True):  # Sindhi's first kaf is the later one
        base, *marks = list(unicodedata.normalize("NFD", letter))
        others = list(ALIKE.get(letter, ALIKE.get(letter.lower(), "").upper()))
        for at, mark in enumerate(marks):
            other = "".join([base, *marks[:at], MARKS.get(mark, mark), *marks[at + 1 :]])
            others.append(unicodedata.normalize("NFC", other))
        table |= {other: letter for other in others if other not in alphabet and other not in table}
    for letter in [*HEHS, *(YEH if alphabet >= set(EITHER) else "")] if AE in alphabet else ():
        table.pop(letter, None)
    for letter in "ۀۂ":  # with a hamza on a heh that is another's
        base, mark = list(unicodedata.normalize("NFD", letter))
        if base in table and letter not in alphabet:
            table[letter] = unicodedata.normalize("NFC", table[base] + mark)
    # Digraphs of one code point, which Croatian took from Yugoslav code pages: ǆ, ǉ, ǌ.
    if alphabet.issuperset("žđ"):
        table |= {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in range(0x1C4, 0x1CD)}
    return table


def _respell_words(table: dict[str, str], alphabet: frozenset[str]) -> Respell:
    sign, to_own = re.compile(f"[{''.join(table)}]"), str.maketrans(table)
    is_either = alphabet >= set(EITHER)

    def respelled(word: str) -> str:
        # A word with other letters that the language lacks is another language's.
        if any(each > "\x7f" and each not in alphabet and each not in table for each in word):
            return word
        plain = word.translate(to_own)
        if (
            is_either
            and word.endswith(YEH)
            and (dotless := plain[:-1] + EITHER[1]).removeprefix("و").removeprefix("ال") in DOTLESS
        ):
            return dotless
        return plain

    def respell(text: str) -> str:
        return replace_words(sign, respelled, text) if any(map(text.__contains__, table)) else text

    return respell


def _font_repair(drawn: str, others: str) -> Respell:
    to_own = str.maketrans(others + others.upper(), drawn + drawn.upper())

    def respell(text: str) -> str:
        is_in_font = all(map(text.__contains__, others)) and not any(map(text.__contains__, drawn))
        return text.translate(to_own) if is_in_font else text

    return respell


def _replaced(text: str, table: dict[str, str]) -> str:
    if not any(map(text.__contains__, {variant[-1] for variant in table})):
        return text
    for variant, letter in table.items():
        text = text.replace(variant, letter)
    return text


def _respell_heh(text: str, consonant: str) -> str:
    if not any(map(text.__contains__, HEHS)):
        return text
    text = OTHER_HEHS.sub(AE, text)
    return INNER_HEH.sub(consonant, text) if consonant else text


def _respell_apostrophes(text: str, alphabet: frozenset[str]) -> str:
    """Write the letters of a language that look like quotation marks; a mark at one end of a word may be a quotation's."""
    if not any(map(text.__contains__, APOSTROPHES)):
        return text
    return "\n".join(
        map(_of_two if {TURNED, APOSTROPHE} <= alphabet else _of_one(alphabet), text.split("\n"))
    )


def _of_two(line: str) -> str:
    line = BEHIND_O_G.sub(TURNED, line)
    if not INITIAL.search(line):
        line = FINAL_O_G.sub(TURNED, line)
    return INNER.sub(
        lambda match: (
            match[0] if match[0] == TURNED and match.string[match.start() - 1] in "oOgG" else APOSTROPHE
        ),
        line,
    )


def _of_one(alphabet: frozenset[str]) -> Respell:
    letter = TURNED if TURNED in alphabet else APOSTROPHE

    def respell(line: str) -> str:
        line = INNER.sub(letter, line)
        return line if FINAL.search(line) else INITIAL.sub(letter, line)

    return respell


def _palochka(match: re.Match[str]) -> str:
    around = (
        match.string[max(0, match.start() - 1) : match.start()] + match.string[match.end() : match.end() + 1]
    )
    is_capital = around.isupper() or not match.start() or not match.string[match.start() - 1].isalpha()
    return PALOCHKA.upper() if is_capital else PALOCHKA
