"""Letters of another alphabet inside a word."""

import pytest

from anadil.text.language_pack import LanguagePack, to_language

RIGHT = [
    ("kk", "Cyrl", "Aлмaты қaлaсы мeн бiз", "Алматы қаласы мен біз"),
    ("ru", "Cyrl", "Пpивeт, Mосква", "Привет, Москва"),
    ("uk", "Cyrl", "мicто Київ", "місто Київ"),
    ("cv", "Cyrl", "чăваш чĕлхи ҫулçă", "чӑваш чӗлхи ҫулҫӑ"),
    ("os", "Cyrl", "Ирон æвзаг", "Ирон ӕвзаг"),
    ("mk", "Cyrl", "jазик ѕвезда", "јазик ѕвезда"),
    ("az", "Latn", "Вakı, Аzərbaycanın pаytaxtı", "Bakı, Azərbaycanın paytaxtı"),
    ("en", "Latn", "Windоws and Mоscow", "Windows and Moscow"),
    ("ru", "Cyrl", "система Windоws", "система Windows"),
    ("el", "Grek", "Aθήνα, µία Eλλάδα", "Αθήνα, μία Ελλάδα"),
    ("kab", "Latn", "tεmyuγin", "tɛmyuɣin"),
    ("ee", "Latn", "ɖεwo", "ɖɛwo"),
]
KEPT = [
    ("kk", "Cyrl", "Facebookта iPhoneның PDF-ке ATMде"),
    ("kk", "Cyrl", "бyл Yлкен"),  # y may be у or ү
    ("ru", "Cyrl", "IT-компания ХХ век MHz"),
    ("en", "Latn", "kΩ ΔT hν μm, Привет"),
    ("el", "Grek", "Δx kΩ"),
    ("ru", "Cyrl", "oбъяснiть"),  # Russian has no і
    ("ja", "Jpan", "TシャツとCДROM"),
]


@pytest.mark.parametrize(("code", "script", "raw", "expected"), RIGHT)
def test_a_word_gets_the_letters_of_one_script(code: str, script: str, raw: str, expected: str) -> None:
    normalize = to_language(LanguagePack(code=code, name=code, script=script)).normalize

    assert normalize(raw) == expected
    assert normalize(expected) == expected


@pytest.mark.parametrize(("code", "script", "text"), KEPT)
def test_names_with_an_ending_and_what_may_be_several_letters_stay(code: str, script: str, text: str) -> None:
    assert to_language(LanguagePack(code=code, name=code, script=script)).normalize(text) == text
