"""What normalization removes, of every language with a Universal Declaration of Human Rights: nothing that it needs.

`scripts/udhr_words.py` makes the table of words. The text is free to reproduce (United Nations).
"""

import functools
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from anadil.text.language import language_codes, load_language
from anadil.text.language_pack import LanguagePack, to_language
from anadil.text.letters import script_of
from anadil.text.unicode_repair import is_sound

ROWS = [
    line.split("\t") for line in Path(__file__).with_name("udhr_words.tsv").read_text("utf-8").splitlines()
]
JOINERS = {"\u200b", "\u200c", "\u200d", "\u202f"}


@functools.cache
def normalizer(code: str, script: str) -> Callable[[str], str]:
    if code in language_codes():
        return load_language(code).normalize
    return to_language(LanguagePack(code=code, name=code, script=script)).normalize


def test_no_language_loses_a_character_that_its_text_has() -> None:
    lost = {}
    for name, code, text in ROWS:
        # Japanese is brought to NFKC.
        form: Literal["NFC", "NFKC"] = "NFKC" if code == "ja" else "NFC"
        normal = normalizer(code, script_of(filter(str.isalpha, text)))(text)
        if normal != unicodedata.normalize(form, text):
            lost[name] = sorted(set(text.split()) - set(normal.split()))

    assert lost == {}
    assert len({code for _, code, _ in ROWS}) > 370


def test_the_table_holds_scripts_that_need_what_nobody_sees() -> None:
    found = {name for name, _, text in ROWS if JOINERS & set(text)}

    assert {"ben", "jav_java", "kan", "khk_mong", "mal", "mar", "pes_1", "pnb", "sin"} <= found


NEEDED = {
    "fa": "می‌روم خانه‌ها ۲۰‌ساله PDF‌ها «کتاب»‌ها ه‍.ش",
    "ur": "آزادی‌ها",
    "ckb": "ده‌رگا",
    "ml": "അവൻ അവന്‍ എന്ന് ക്‌ക",
    "bn": "র‌্যাব র‍্যাব উত্‍সব",
    "kn": "ರಾಜ್‌ಕುಮಾರ್ ರ‍್ಯ",
    "si": "ශ්‍රී ලංකාව",
    "ne": "गर्‍यो",
    "km": "ភាសា\u200bខ្មែរ",
    "my": "မြန်မာ\u200bစာ",
    "th": "ภาษา\u200bไทย",
    "lo": "ພາສາ\u200bລາວ",
    "mn-Mong": "ᠮᠣᠩᠭᠣᠯ\u202fᠤᠨ ᠨᠡᠷ᠎ᠡ ᠴᠠᠢ᠋ᠰᠠ",
    "phg": "ꡏ\ufe00",
    "hy": "և եւ ﬓ",
    "lt": "i̇́ i̇̃",
    "emoji": "👩‍🚀 🏳‍🌈",
}


@pytest.mark.parametrize("code", NEEDED)
def test_what_a_script_needs_between_its_letters_stays(code: str) -> None:
    text = NEEDED[code]
    pack = LanguagePack(code=code, name=code, script=script_of(filter(str.isalpha, text)))

    assert to_language(pack).normalize(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Auf\u200clage a\u200bb c\u200dd", "Auflage ab cd"),
        ("日本\u200b語 한국\u200b어", "日本語 한국어"),
        ("می\u200c\u200cروم می\u200c روم \u200cها", "می\u200cروم می روم ها"),
        ("العربية\u200b هنا", "العربية هنا"),
        ("Ваша\u200b жизнь\u200c", "Ваша жизнь"),
        ("שלום\u200f עולם\u061c", "שלום עולם"),
        ("10\u202f000 «\u202foui\u202f»", "10 000 « oui »"),
        ("❤\ufe0f a\ufe01", "❤ a"),
    ],
)
def test_elsewhere_characters_that_nobody_sees_go(raw: str, expected: str) -> None:
    assert normalizer("xx", "Zyyy")(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("oﬃce ﬁn ﬂight ﬀ ﬄ ﬆ", "office fin flight ff ffl st"),
        ("\ufe8d\ufedf\ufeb4\ufefc\ufee1 ﷺ ﷲ", "السلام ﷺ ﷲ"),
        ("don\x92t \x93say\x94 it\x85", "don’t “say” it…"),
        ("one\x85two", "one\ntwo"),
        ("na\ue123me \uf002Search", "na\ufffdme Search"),
    ],
)
def test_characters_of_old_programs_become_those_that_they_stand_for(raw: str, expected: str) -> None:
    assert normalizer("xx", "Zyyy")(raw) == expected


@pytest.mark.parametrize("code", ["tr", "az", "en", "ku", "tk", "uz", "crh", "kk-Latn", "id"])
def test_a_second_dot_that_lower_case_left_goes_in_all_languages_but_lithuanian(code: str) -> None:
    assert normalizer(code, "Latn")("i̇stanbul ı̇l Dİ") == "istanbul il Dİ"
    assert normalizer("lt", "Latn")("i̇stanbul") == "i̇stanbul"


def test_text_with_needed_joiners_is_sound() -> None:
    assert is_sound(NEEDED["fa"])
    assert is_sound(NEEDED["ml"])
    assert not is_sound("می\u200c روم")
