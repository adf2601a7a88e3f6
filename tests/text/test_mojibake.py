"""UTF-8 that was read in a code page, in part of a text."""

import pytest

from anadil.text.language_pack import normalize
from anadil.text.mojibake import undo_mojibake
from tests.kit.texts import ANOTHER, AZERBAIJANI, RUSSIAN, TURKISH


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp1251"])
def test_a_misread_paragraph_is_read_again_beside_sound_ones(encoding: str) -> None:
    misread = "".join(bytes([byte]).decode(encoding, "ignore") or chr(byte) for byte in ANOTHER.encode())

    text = f"{AZERBAIJANI}\n{misread}\n\n{TURKISH}"

    assert normalize(text) == f"{AZERBAIJANI}\n{ANOTHER}\n\n{TURKISH}"


POLISH = "Wczoraj chłopiec położył się spać, śniąc o źrebięciu i żółtych gęsiach."
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy, řekl strýček Jiří."


@pytest.mark.parametrize("text", [POLISH, CZECH])
def test_a_misread_paragraph_of_central_europe_is_read_again(text: str) -> None:
    misread = "".join(bytes([byte]).decode("cp1250", "ignore") or chr(byte) for byte in text.encode())

    assert normalize(f"{text}\n{misread}") == f"{text}\n{text}"
    assert normalize(text.upper()) == text.upper()


def test_a_misread_sentence_is_read_again_in_a_sound_line() -> None:
    first, *_ = ANOTHER.split(". ")

    misread = first.encode().decode("latin-1")

    assert (
        normalize(f"Şəhərdə: «{misread}» – dedi, sonra getdi.") == f"Şəhərdə: «{first}» – dedi, sonra getdi."
    )


def test_a_letter_that_lost_a_byte_is_marked_as_lost() -> None:
    misread = "平等の権利を持つ".encode().decode("latin-1").replace("\xad", "")

    assert normalize(f"{AZERBAIJANI}\n{misread}") == f"{AZERBAIJANI}\n平\ufffdの権利を持つ"


def test_two_letters_in_control_characters_are_certain() -> None:
    assert undo_mojibake("Düz mətn, sonra Ä\x9f və É\x99 gəlir") == "Düz mətn, sonra ğ və ə gəlir"


def test_a_misread_paragraph_in_russian_is_read_again() -> None:
    misread = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in RUSSIAN.encode())

    assert normalize(f"{RUSSIAN}\n{misread}") == f"{RUSSIAN}\n{RUSSIAN}"


@pytest.mark.parametrize(
    "text",
    [
        "«BÜTÜN TÜRKÜ» «KÖRPÜ» «GÜZGÜ» mahnıları\n«SÜRÜ» isə az",
        "Её мёд, моё «Её», №1. Ещё «своё»… Ели её, «ё»",
        "Київ: «Ії» та «Ті», «Ві»; Її, Її",
        "PRÉCISÉ : « CAFÉ » et l’été à Évian",
        "CAFÉ\u00bb, DÉJÀ\u00bb",
        "kafeÉ\u00bb dedi; iPadÄ» və MMC-nÜ”; A±b, Å³; École± və 3Ã²",
        "СССР± и мСР» тоже; 5Р№ и Я№1",
    ],
)
def test_no_line_of_sound_text_is_read_again(text: str) -> None:
    assert undo_mojibake(text) == text


@pytest.mark.parametrize("codec", ["cp1252", "cp1250", "cp1251", "latin-1"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Im Winter schneit es dort häufig, und Züge fahren später.", "häufig"),
        ("Axşam kitabı oxudum, sonra həyətə çıxdım.", "kitabı"),
        ("Dün şirin bir çocuk gördüm, ağaçların altındaydı.", "altındaydı"),
        ("Mañana comió piña el niño.", "piña"),
        ("Wczoraj chłopiec poszedł spać.", "poszedł"),
    ],
)
def test_one_misread_word_is_read_again_in_a_sound_line(text: str, word: str, codec: str) -> None:
    misread = "".join(bytes([byte]).decode(codec, "ignore") or chr(byte) for byte in word.encode())

    assert undo_mojibake(text.replace(word, misread)) == text


def test_a_misread_apostrophe_is_one_again() -> None:
    assert undo_mojibake("Qəzet itâ€™s deyir, sonra 20Â°C") == "Qəzet it’s deyir, sonra 20°C"


@pytest.mark.parametrize(
    ("text", "codec"),
    [(RUSSIAN, "cp866"), (RUSSIAN, "koi8-r"), (TURKISH, "cp857"), (AZERBAIJANI, "cp857"), (AZERBAIJANI, "mac-roman"), (TURKISH, "cp850")],
)  # fmt: skip
def test_a_paragraph_misread_in_an_old_code_page_is_read_again_beside_sound_ones(
    text: str, codec: str
) -> None:
    misread = "".join(bytes([byte]).decode(codec, "ignore") or chr(byte) for byte in text.encode())

    assert normalize(f"{text}\n{misread}\n{text}") == f"{text}\n{text}\n{text}"


def test_a_drawn_table_stays() -> None:
    table = "┌────────┐\n│ Şəhər │\n├────────┤\n└────────┘"

    assert undo_mojibake(f"{AZERBAIJANI}\n{table}\n√2 ≈ 1,41") == f"{AZERBAIJANI}\n{table}\n√2 ≈ 1,41"
