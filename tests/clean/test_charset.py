"""Labels of encodings, right, wrong and hostile."""

import codecs
import unicodedata
from pathlib import Path

import pytest

from anadil.clean.extract.extract import decode_page
from anadil.clean.filters.judge_record import Settings, judge_record
from anadil.clean.read.charset import codec_of, decode_text
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.recipe.sections import Recipe
from anadil.text.code_pages import best_code_page
from anadil.text.letters import letters_of
from tests.kit.texts import AZERBAIJANI, JAPANESE

MEANINGLESS = [
    "", " ", "none", "null", "unknown", "default", "binary", "8bit", "x-user-defined", "replacement", "ansi",
    "iso-8859-99", "utf-9", "utf-7", "utf-32", "charset", "=", ";", "\0", "\0\0utf", "a" * 10_000, "\ud800", "ə",
    "idna", "punycode", "rot13", "rot_13", "zlib", "zlib_codec", "zip", "bz2", "bz2_codec", "base64", "base64_codec",
    "hex", "hex_codec", "uu", "uu_codec", "quopri", "quopri_codec", "quotedprintable", "unicode_escape",
    "raw_unicode_escape", "unicode-escape", "mbcs", "oem", "undefined", "charmap", "unicode_internal", "string_escape",
    "utf_8_sig\0x", "../../etc/passwd", "encodings.idna", "os.path", "%s", "{}", "mac_roman_x", "cp1259", "cp0", "cp99", "cp1140",
]  # fmt: skip
"""Those of Python that are no encodings of text among them."""


@pytest.mark.parametrize("label", MEANINGLESS, ids=range(len(MEANINGLESS)))
def test_a_label_without_meaning_leaves_it_to_the_bytes(label: str) -> None:
    codec = codec_of(label)

    assert codec is None or label.startswith(("\0", "utf_8"))
    assert decode_page(AZERBAIJANI.encode(), label) == (AZERBAIJANI, True)
    assert decode_page(JAPANESE.encode("shift_jis"), label) == (JAPANESE, False)
    assert decode_page(
        b'<meta charset="%s">' % label.encode("ascii", "replace") + JAPANESE.encode("euc_jp"), ""
    )[0].endswith(JAPANESE)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("x-sjis", "shift_jis"), ("windows-31j", "shift_jis"), ("Shift_JIS", "shift_jis"),
        ("MS_Kanji", "shift_jis"), ("cp932", "cp932"), ("x-euc-jp", "euc_jp"), ("eucJP", "euc_jp"),
        ("csISO2022JP", "iso2022_jp"), ("utf8mb4", "utf-8"), ("UTF8", "utf-8"), ("utf_8", "utf-8"),
        ("UTF-8-SIG", "utf-8"), ("cp65001", "utf-8"), (" utf-8 ", "utf-8"),
        ("utf-8; charset=iso-8859-1", "utf-8"), ("charset=utf-8", "utf-8"), ('"utf-8"', "utf-8"),
        ("'utf-8'", "utf-8"), ("utf-8,text/html", "utf-8"), ("utf-8\0", "utf-8"), ("iso-8859-1", "cp1252"),
        ("latin1", "cp1252"), ("us-ascii", "cp1252"), ("iso-8859-9", "cp1254"), ("latin5", "cp1254"),
        ("win-1251", "cp1251"), ("Windows1254", "cp1254"), ("windows_1250", "cp1250"), ("koi8-r", "koi8-r"),
        ("x-mac-cyrillic", "mac-cyrillic"), ("gb2312", "gbk"), ("ks_c_5601-1987", "euc_kr"),
        ("tis-620", "iso8859-11"), ("IBM860", "cp860"), ("ibm-860", "cp860"),
    ],
)  # fmt: skip
def test_a_label_means_what_browsers_take_it_for(label: str, expected: str) -> None:
    found = codec_of(label)

    assert found is not None
    assert codecs.lookup(found) == codecs.lookup(expected)


ISO_2022_JP = JAPANESE.encode("iso2022_jp")
HALF_WIDTH = "ﾃﾚﾋﾞで昨日の風を見た。"


@pytest.mark.parametrize(
    ("data", "label", "expected"),
    [
        (ISO_2022_JP, "iso-2022-jp", JAPANESE),
        (ISO_2022_JP, "", JAPANESE),
        (HALF_WIDTH.encode("iso2022_jp_ext"), "iso-2022-jp", HALF_WIDTH),
        ("①番".encode("cp932"), "shift_jis", "①番"),
        ("中国人民".encode("hz"), "hz-gb-2312", "中国人民"),
        ("한국어".encode("iso2022_kr"), "iso-2022-kr", "한국어"),
        (codecs.BOM_UTF16_BE + AZERBAIJANI.encode("utf-16-be"), "utf-8", AZERBAIJANI),
        (AZERBAIJANI.encode("utf-16-le"), "utf-16", AZERBAIJANI),
        (AZERBAIJANI.encode("utf-16-le"), "", AZERBAIJANI),
        (f"<p>{AZERBAIJANI}".encode("utf-16-be"), "", f"<p>{AZERBAIJANI}"),
        (b"\xef\xbb\xbf" + AZERBAIJANI.encode(), "shift_jis", AZERBAIJANI),
        (JAPANESE.encode("shift_jis"), "utf-16le", JAPANESE),
        (AZERBAIJANI.encode(), "iso-8859-1", AZERBAIJANI),
        (b"", "none", ""),
    ],
)
def test_bytes_become_the_text_that_was_written(data: bytes, label: str, expected: str) -> None:
    assert decode_text(data, [label])[0] == expected


@pytest.mark.parametrize(
    ("meta", "server", "encoded", "expected"),
    [("ISO-2022-JP", "none", ISO_2022_JP, JAPANESE), ("windows-1254", "", "şehir".encode("cp1254"), "şehir")],
)
def test_the_page_may_say_what_the_server_does_not_and_both_may_lie(
    meta: str, server: str, encoded: bytes, expected: str
) -> None:
    data = f'<meta http-equiv=Content-Type content="text/html; charset={meta}">'.encode() + encoded

    text, is_utf8 = decode_page(data, server)

    assert text.endswith(f">{expected}")
    assert not is_utf8


def test_a_page_that_was_cut_within_a_letter_is_utf8() -> None:
    data = (AZERBAIJANI * 3).encode() + "ə".encode()[:1]

    assert decode_page(data, "") == (AZERBAIJANI * 3 + "\ufffd", True)


@pytest.mark.parametrize(
    "label", ["shift_jis", "euc-jp", "big5", "utf-16", "gb18030", "none", "windows-1252"]
)
def test_any_bytes_become_some_text(label: str) -> None:
    every = bytes(range(256)) * 3

    text, codec = decode_text(every, [label])

    assert text.encode(errors="strict")
    assert codecs.lookup(codec)


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_tells_utf_32_from_utf_16(codec: str) -> None:
    assert decode_text(("\ufeff" + AZERBAIJANI).encode(codec)) == (AZERBAIJANI, codec)


@pytest.mark.parametrize("codec", ["utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [AZERBAIJANI, "<p>Salam</p>", "日本語の文章です。", "\U00020bb7野家"])
def test_utf_32_is_known_without_a_mark(codec: str, text: str) -> None:
    assert decode_text(text.encode(codec)) == (text, codec)


@pytest.mark.parametrize(
    "data", [b"\0" * 8, "Salam, dünya".encode("utf-16-le"), "日本語です".encode("utf-16-be")]
)
def test_other_bytes_with_zeros_are_no_utf_32(data: bytes) -> None:
    assert not decode_text(data)[1].startswith("utf-32")


KAZAKH = (
    "Ертең таңертең балалар өзен жағасына барып, құмнан үй салады. Әжеміз бізге ыстық нан мен қаймақ берді, ал атам шөп "
    "шауып жүр. Кешке қарай бәріміз от басында отырып, ескі ертегілерді тыңдаймыз. Ғарыш туралы кітапты інім оқиды."
)
TEXTS = {
    "kk": KAZAKH,
    "tr": "Dağda kışın çok kar yağar, ağaçların altında gölge olur; şu ırmağın suyu öğlen ılıktır.",
    "eu": "Iruñeko andereñoek español hizkuntza ikasi dute, José eta Andrés Peñak lagunduta.",
    "ro": "Mâine dimineață mergem în grădină să culegem cireșe și să ascultăm păsările din pădure.",
    "pt": "A irmã não lembrou as canções do avô; à noite, três mães também estão lá, e há pão e maçãs.",
    "uk": "Їжак живе в лісі, а ґава сидить на дубі; її друг Юрій їсть смачний пиріг із чорницею.",
    "pl": "Wczoraj wieczorem chłopiec zjadł jabłko i położył się spać pod ciepłą kołdrą, śniąc o źrebięciu.",
    "el": "Χθες το βράδυ φύσηξε δυνατός άνεμος και έπεσαν δέντρα στην παλιά πόλη.",
    "ar": "هبت رياح قوية مساء أمس وسقطت الأشجار في شوارع المدينة القديمة.",
    "th": "เมื่อวานเย็นมีลมแรงพัดในเมืองและต้นไม้ล้มหลายต้น",
    "ky": "Кечээ кечинде катуу шамал болуп, өрөөндө жаңы үйлөрдүн чатыры учуп кетти.",
}
CASES = [
    ("kk", "kz1048"), ("kk", "ptcp154"), ("ky", "ptcp154"), ("tr", "cp1254"), ("tr", "cp857"), ("eu", "latin-1"),
    ("pt", "cp860"), ("pt", "mac-roman"), ("eu", "mac-roman"),
    ("ro", "iso8859-16"), ("uk", "koi8-u"), ("uk", "cp1251"), ("uk", "mac-cyrillic"),
    ("pl", "cp1250"), ("pl", "iso8859-2"), ("pl", "cp852"),
    ("el", "cp1253"),
    ("el", "cp737"), ("ar", "cp1256"), ("ar", "iso8859-6"), ("th", "cp874"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "codec"), CASES)
def test_bytes_without_a_label_get_the_letters_of_the_language(code: str, codec: str) -> None:
    text = TEXTS[code]

    assert decode_text(text.encode(codec), letters=letters_of(code))[0] == text


@pytest.mark.parametrize("codec", ["cp852", "cp1250", "iso8859-2"])
@pytest.mark.parametrize("labels", [[], ["CP852"], ["iso-8859-1"]])
def test_romanian_is_read_where_a_code_page_writes_cedillas(codec: str, labels: list[str]) -> None:
    text = TEXTS["ro"].translate(str.maketrans("șț", "şţ"))

    found, _ = decode_text(text.encode(codec), labels, letters_of("ro"))

    assert found.translate(str.maketrans("şţ", "șț")) == TEXTS["ro"]


def test_vietnamese_marks_of_tone_join_their_letters() -> None:
    text = "T\xe2\u0301t ca\u0309 mo\u0323i ng\u01b0\u01a1\u0300i sinh ra \u0111\xea\u0300u \u0111\u01b0\u01a1\u0323c t\u01b0\u0323 do"

    found = decode_text(text.encode("cp1258"), letters=letters_of("vi"))

    assert found == (unicodedata.normalize("NFC", text), "cp1258")


def test_a_label_that_gives_other_letters_is_not_believed() -> None:
    data = KAZAKH.encode("kz1048")

    assert decode_text(data, ["windows-1251"], letters_of("kk")) == (KAZAKH, "kz1048")
    assert decode_text(data, ["windows-1251"])[0] != KAZAKH


def test_a_page_in_another_language_is_read_as_before() -> None:
    russian = "Вчера вечером в городе дул сильный ветер, и повалило деревья."
    japanese = "昨日の夕方、市内では強い風が吹いた。"

    assert decode_text(russian.encode("cp1251"), ["windows-1251"], letters_of("az")) == (russian, "cp1251")
    assert decode_text(japanese.encode("shift_jis"), ["shift_jis"], letters_of("kk"))[0] == japanese


def test_foreign_names_do_not_change_the_code_page() -> None:
    text = "Dün Müller ve André bir şiir okudu, ½ saat sürdü; “öğretmen” çığlık attı."

    assert decode_text(text.encode("cp1254"), letters=letters_of("tr"))[0] == text


def test_a_text_that_no_code_page_reads_is_dropped_as_damaged() -> None:
    # A private code page: the letters of Kazakh at the places of Serbian and Macedonian ones.
    data = KAZAKH.lower().translate(str.maketrans("әғқңөұүһі", "ђѓљњћќџѕј")).encode("cp1251")

    text, _ = decode_text(data, letters=letters_of("kk"))
    settings = Settings(recipe=Recipe.model_validate({"language": "kk"}))
    judged = judge_record(RawRecord(source="a.txt:1", text=(text + "\n") * 3), settings)

    assert "\ufffd" in text
    assert "isolated" in judged.failed
    assert judged.reason is not None


def test_files_and_pages_are_read_in_the_code_page_of_the_recipes_language(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(KAZAKH.encode("kz1048"))
    page = f"<html><meta charset=windows-1251><p>{KAZAKH}</p></html>".encode("kz1048")
    settings = Settings(recipe=Recipe.model_validate({"language": "kk", "clean": {"extract": "fast"}}))

    (read,) = read_records(str(path), "a.txt", "text", ReadStats(), language="kk")
    judged = judge_record(RawRecord(source="a.html", html=page), settings)

    assert read.text == KAZAKH
    assert judged.extracted.document.text == KAZAKH
    assert "recoded" in judged.extracted.marks


@pytest.mark.parametrize(
    ("code", "text"), [("uz", "Yomg‘irli kunda o‘qish ma’no beradi"), ("en", "It’s “naïve”, isn’t it?")]
)
def test_quotation_marks_of_code_pages_are_letters_of_some_languages(code: str, text: str) -> None:
    page = best_code_page(text.encode("cp1254"), (), letters_of(code))

    assert page
    assert text.encode("cp1254").decode(page) == text
