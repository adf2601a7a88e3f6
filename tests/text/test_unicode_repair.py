"""UTF-8 that was read in a code page, in part of a text."""

import functools
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from anadil.text.language import language_codes, load_language
from anadil.text.language_pack import LanguagePack, normalize, to_language
from anadil.text.letters import letters_of, script_of
from anadil.text.reading_order import put_in_reading_order
from anadil.text.spelling import spelling_repair
from anadil.text.unicode_repair import is_sound, undo_mojibake
from tests.kit.texts import ANOTHER, AZERBAIJANI, RUSSIAN, TURKISH

POLISH = "Wczoraj chłopiec położył się spać, śniąc o źrebięciu i żółtych gęsiach."
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy, řekl strýček Jiří."


def misread(text: str, codec: str) -> str:
    """UTF-8 as a code page shows it; bytes without a character of their own stand as control characters."""
    return "".join(bytes([byte]).decode(codec, "ignore") or chr(byte) for byte in text.encode())


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        *((ANOTHER, codec) for codec in ("latin-1", "cp1252", "cp1251")), (POLISH, "cp1250"), (CZECH, "cp1250"),
        (RUSSIAN, "cp1252"), (RUSSIAN, "cp866"), (RUSSIAN, "koi8-r"), (TURKISH, "cp857"), (AZERBAIJANI, "cp857"),
        (AZERBAIJANI, "mac-roman"), (TURKISH, "cp850"),
    ],
)  # fmt: skip
def test_a_misread_paragraph_is_read_again_beside_sound_ones(text: str, codec: str) -> None:
    assert normalize(f"{text}\n{misread(text, codec)}\n\n{text}") == f"{text}\n{text}\n\n{text}"


@pytest.mark.parametrize("text", [POLISH, CZECH])
def test_capitals_of_central_europe_are_sound(text: str) -> None:
    assert normalize(text.upper()) == text.upper()


def test_a_misread_sentence_is_read_again_in_a_sound_line() -> None:
    first, *_ = ANOTHER.split(". ")

    said = normalize(f"Şəhərdə: «{misread(first, 'latin-1')}» – dedi, sonra getdi.")

    assert said == f"Şəhərdə: «{first}» – dedi, sonra getdi."


def test_a_letter_that_lost_a_byte_is_marked_as_lost() -> None:
    text = misread("平等の権利を持つ", "latin-1").replace("\xad", "")

    assert normalize(f"{AZERBAIJANI}\n{text}") == f"{AZERBAIJANI}\n平\ufffdの権利を持つ"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Düz mətn, sonra Ä\x9f və É\x99 gəlir", "Düz mətn, sonra ğ və ə gəlir"),
        ("Qəzet itâ€™s deyir, sonra 20Â°C", "Qəzet it’s deyir, sonra 20°C"),
    ],
)
def test_letters_in_control_characters_and_an_apostrophe_are_certain(text: str, expected: str) -> None:
    assert undo_mojibake(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "«BÜTÜN TÜRKÜ» «KÖRPÜ» «GÜZGÜ» mahnıları\n«SÜRÜ» isə az",
        "“Ü” hərfi, É™ deyil",
        "Çox gözəl üçüncü gün: ölkə, ürək, çiçək",
        "Съешь же ещё этих мягких французских булок. ЁЖИК, МЁД, ВЁРСТЫ, ПЁТР, ГЁТЕ",
        "Её мёд, моё «Её», №1. Ещё «своё»… Ели её, «ё»",
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
        ("Wczoraj chłopiec poszedł spać.", "poszedł"),
    ],
)
def test_one_misread_word_is_read_again_in_a_sound_line(text: str, word: str, codec: str) -> None:
    assert undo_mojibake(text.replace(word, misread(word, codec))) == text


def test_a_drawn_table_stays() -> None:
    table = "┌────────┐\n│ Şəhər │\n├────────┤\n└────────┘"

    assert undo_mojibake(f"{AZERBAIJANI}\n{table}\n√2 ≈ 1,41") == f"{AZERBAIJANI}\n{table}\n√2 ≈ 1,41"


RIGHT = [
    ("kk", "Cyrl", "Aлмaты қaлaсы мeн бiз", "Алматы қаласы мен біз"),
    ("ru", "Cyrl", "Пpивeт, Mосква", "Привет, Москва"),
    ("cv", "Cyrl", "чăваш чĕлхи ҫулçă", "чӑваш чӗлхи ҫулҫӑ"),
    ("az", "Latn", "Вakı, Аzərbaycanın pаytaxtı", "Bakı, Azərbaycanın paytaxtı"),
    ("ru", "Cyrl", "система Windоws", "система Windows"),
    ("el", "Grek", "Aθήνα, µία Eλλάδα", "Αθήνα, μία Ελλάδα"),
    ("kab", "Latn", "tεmyuγin", "tɛmyuɣin"),
]
KEPT = [
    ("kk", "Cyrl", "Facebookта iPhoneның PDF-ке ATMде"),
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


PYTHON = "def orta(x):\n    if not x:\n        return 0\n\n    cəm = sum(x)\n    return cəm / len(x)"
MAKEFILE = "hamısı:\n\tgcc -O2 -o proqram proqram.c\n\trm -f proqram.o"
YAML = "xidmət:\n  host: 127.0.0.1\n  ports:\n    - 8080\n    - 8443"
C = 'int main(void)\n{\n\tfor (int i = 0; i < 3; i++) {\n\t\tputs("salam");\n\t}\n}'
HTML = "<ul>\n  <li>bir</li>\n  <li>iki</li>\n</ul>"
SQL = "SELECT ad\nFROM kitablar\nWHERE il > 2000\n  AND dil = 'az'"

DOCSTRING = 'class Anbar:\n    """Anbar malları saxlayır.\n\n    Mal gələndə qeyd olunur.\n    Gedəndə silinir.\n    """'
LISP = "(cond\n  (yağış\n     çətir)\n  (qar papaq))"
DIFF = "@@ -1,3 +1,3 @@\n birinci sətir qaldı\n-köhnə\n+yeni\n sonuncu sətir də qaldı"
TREE = "kitab\n  fəsillər\n    giriş\n    son\n  şəkillər"
FOLDER = "kitab/\n  giriş\n  son"
CODES = {
    "python": PYTHON, "make": MAKEFILE, "yaml": YAML, "c": C, "html": HTML, "sql": SQL, "docstring": DOCSTRING,
    "lisp": LISP, "diff": DIFF, "tree": TREE, "folder": FOLDER,
}  # fmt: skip


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@pytest.mark.parametrize("language", language_codes())
def test_lines_of_code_keep_the_spaces_before_them(language: str, code: str) -> None:
    text = f"Yuxarıdakı nümunəyə baxın.\n\n{code}\n\nBurada isə izah verilir."

    assert load_language(language).normalize(text) == text


@pytest.mark.parametrize(
    "prose",
    [
        "    Səhər açıldı, hamı işə getdi.\nAxşam isə evə qayıtdılar.\n    Gecə sakit keçdi (bax: 3).",
        "Sənədlər:\n    1.1. ərizə;\n    1.2. şəxsiyyət vəsiqəsi (surəti);\n    1.3. arayış.",
        "\u3000朝になった。\n\u3000みんな仕事に行った。",
        "Gələnlər (hamısı\n  sadalanmır), gedənlər\n  və qalanlar barədə danışdılar.",
        "  If it rains, we stay at home.\n  For the rest of the day we read, while others sleep.",
    ],
)
def test_prose_does_not_keep_the_spaces_before_its_lines(prose: str) -> None:
    expected = "\n".join(line.strip() for line in prose.split("\n"))

    assert load_language("az").normalize(prose) == expected


def test_cells_of_a_table_stay_apart() -> None:
    assert (
        load_language("az").normalize("Şəhər\t\tƏhali \nGəncə \t 335 600\t") == "Şəhər\tƏhali\nGəncə\t335 600"
    )


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
        # A letter in another code point is not lost.
        if normal != spelling_repair(letters_of(code))(unicodedata.normalize(form, text)):
            lost[name] = sorted(set(text.split()) - set(normal.split()))

    assert lost == {}
    assert len({code for _, code, _ in ROWS}) > 370


def test_the_table_holds_scripts_that_need_what_nobody_sees() -> None:
    found = {name for name, _, text in ROWS if JOINERS & set(text)}

    assert {"ben", "jav_java", "kan", "khk_mong", "mal", "mar", "pes_1", "pnb", "sin"} <= found


NEEDED = {
    "fa": "می‌روم خانه‌ها ۲۰‌ساله PDF‌ها «کتاب»‌ها ه‍.ش",
    "ur": "آزادی‌ہا",
    "ckb": "می‌ر",
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


@pytest.mark.parametrize(
    ("code", "raw", "expected"),
    [
        ("ro", "Şi ţara, Beşiktaş, Şükrü, fǎrǎ", "Și țara, Beșiktaș, Şükrü, fără"),
        ("az", "șəhǝr", "şəhər"),
        ("fa", "كتاب علي، خانۀ ما، على", "کتاب علی، خانهٔ ما، علی"),
        ("ur", "كتاب کي هے، ھم ہم", "کتاب کی ہے، ہم ہم"),
        ("ckb", "كوردستان ئه‌مه بووه، ھەر، شاھ", "کوردستان ئەمە بووە، هەر، شاھ"),
        ("ug", "همه ھەممە", "ھمە ھەممە"),
        ("ar", "کتاب فی یوم علی", "كتاب في يوم على"),
        ("sd", "كتاب", "ڪتاب"),
        (
            "uz",
            "o'zbek o‘zbek oʼzbek, mo''tadil ma’no, tog' bog’",
            "oʻzbek oʻzbek oʻzbek, moʻʼtadil maʼno, togʻ bogʻ",
        ),
        ("uz", "‘yog’ dedi", "‘yog’ dedi"),
        ("uk", "п'ять п’ять 'слово'", "пʼять пʼять 'слово'"),
        ("haw", "'okina Hawai'i", "ʻokina Hawaiʻi"),
        ("ce", "к1ант хIун ГІАЛА", "кӏант хӏун ГӀАЛА"),
        ("tg", "Љумњурии Тољикистон, ќанд, ѓам; Скопје", "Ҷумҳурии Тоҷикистон, қанд, ғам; Скопје"),
        ("tg", "миллї, мењмонї, дўст", "миллӣ, меҳмонӣ, дӯст"),
        ("mn", "єнєєдєр бїх", "өнөөдөр бүх"),
        ("mn", "Україна, Київ, өнөөдөр", "Україна, Київ, өнөөдөр"),
        ("hr", "Ðakovo ǆep Þórður", "Đakovo džep Þórður"),
        ("hu", "erdõ", "erdő"),
        ("en", "o'clock şi كتاب", "o'clock şi كتاب"),
    ],
)
def test_letters_become_those_of_the_language(code: str, raw: str, expected: str) -> None:
    respell = spelling_repair(letters_of(code))

    assert respell(raw) == expected
    assert respell(expected) == expected


RIGHT_TO_LEFT = {
    "ar": "اجتمع المجلس في المدينة الجديدة وقرر شراء كتب كثيرة للمكتبة القديمة (في شارع النصر) من شركة Microsoft Office في 12.05.1990",
    "he": "בקצה הכפר יש ספרייה קטנה שפותח איש זקן בכל בוקר לפני שהילדות הולכות לבית הספר ושומר לכל אחד מהם ספר",
    "ur": "گاؤں کے کنارے ایک چھوٹا سا کتب خانہ ہے جسے ایک بوڑھا آدمی ہر صبح کھولتا ہے",
    "ckb": "لە قەراغی گوندەکە کتێبخانەیەکی بچووک هەیە کە پیاوێکی پیر هەموو بەیانییەک دەیکاتەوە",
}


@pytest.mark.parametrize("code", RIGHT_TO_LEFT)
def test_lines_in_the_order_of_a_page_are_turned_round(code: str) -> None:
    line = RIGHT_TO_LEFT[code]
    seen = line[::-1].replace("eciffO tfosorciM", "Microsoft Office").replace("0991.50.21", "12.05.1990")
    seen = seen.translate(str.maketrans("()", ")("))

    assert put_in_reading_order(f"{seen}\n{line}\n{seen}") == f"{line}\n{line}\n{line}"
    assert put_in_reading_order(line) == line


@pytest.mark.parametrize(
    ("code", "raw", "expected"),
    [
        ("kk", "тебyге кyн Yкімет тyралы сөйлеy", "тебуге күн Үкімет туралы сөйлеу"),
        ("ky", "дyйнөлyк", "дүйнөлүк"),
        ("ru", "прoдyкт", "продукт"),
    ],
)
def test_a_latin_y_is_either_letter_of_a_cyrillic_word(code: str, raw: str, expected: str) -> None:
    assert load_language(code).normalize(raw) == expected
