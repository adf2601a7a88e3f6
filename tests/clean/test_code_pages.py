"""The code page that gives a language's letters."""

import unicodedata
from pathlib import Path

import pytest

from anadil.clean.filters.judge_record import Settings, judge_record
from anadil.clean.read.charset import codec_of, decode_text
from anadil.clean.read.read_stats import ReadStats
from anadil.clean.read.readers import RawRecord, read_records
from anadil.recipe.sections import Recipe
from anadil.text.letters import letters_of

KAZAKH = (
    "Ертең таңертең балалар өзен жағасына барып, құмнан үй салады. Әжеміз бізге ыстық нан мен қаймақ берді, ал атам шөп "
    "шауып жүр. Кешке қарай бәріміз от басында отырып, ескі ертегілерді тыңдаймыз. Ғарыш туралы кітапты інім оқиды."
)
TEXTS = {
    "kk": KAZAKH,
    "tr": "Dağda kışın çok kar yağar, ağaçların altında gölge olur; şu ırmağın suyu öğlen ılıktır.",
    "eu": "Iruñeko andereñoek español hizkuntza ikasi dute, José eta Andrés Peñak lagunduta.",
    "ro": "Mâine dimineață mergem în grădină să culegem cireșe și să ascultăm păsările din pădure.",
    "es": "La señora llegó tarde a la estación; ¿quién dijo que allá haría más frío? El pingüino también lo oyó.",
    "pt": "A irmã não lembrou as canções do avô; à noite, três mães também estão lá, e há pão e maçãs.",
    "it": "La libertà è così: perché aspettare? Più tardi arriverà papà con il caffè.",
    "uk": "Їжак живе в лісі, а ґава сидить на дубі; її друг Юрій їсть смачний пиріг із чорницею.",
    "tg": "Ҳоло мо дар боғ ҷамъ шудем, қаҳва менӯшем ва дар бораи ғизои хуб суҳбат мекунем, Зулайхои зебо.",
    "be": "Учора ўвечары ў нашым двары была вялікая снежная бура, і дзеці будавалі крэпасць.",
    "pl": "Wczoraj wieczorem chłopiec zjadł jabłko i położył się spać pod ciepłą kołdrą, śniąc o źrebięciu.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "hu": "Tegnap este a kisfiú megevett egy szőlőt, és elaludt a hűvös, zöld fűben, amíg őrizték.",
    "lt": "Vakar vakare vėjas nulaužė ąžuolo šaką, o žmonės iškėlė ją į šoną.",
    "mt": "Ilbieraħ filgħaxija ż-żiffa kienet kiesħa u ġġib ir-riħa tal-baħar, iċ-ċkejken beka.",
    "cy": "Mae'r tŷ ar y bryn yn hen iawn, a'r dŵr yn oer; ŵyn yn chwarae gyda'r gŵr.",
    "se": "Mun lean boahtán Kárášjohkii, gos čáhci lea čielggas ja đávvirat leat šealgut.",
    "el": "Χθες το βράδυ φύσηξε δυνατός άνεμος και έπεσαν δέντρα στην παλιά πόλη.",
    "he": "אתמול בערב נשבה רוח חזקה בעיר ועצים נפלו ברחובות.",
    "ar": "هبت رياح قوية مساء أمس وسقطت الأشجار في شوارع المدينة القديمة.",
    "th": "เมื่อวานเย็นมีลมแรงพัดในเมืองและต้นไม้ล้มหลายต้น",
    "ky": "Кечээ кечинде катуу шамал болуп, өрөөндө жаңы үйлөрдүн чатыры учуп кетти.",
}
CASES = [
    ("kk", "kz1048"), ("kk", "ptcp154"), ("ky", "ptcp154"), ("tr", "cp1254"), ("tr", "cp857"), ("eu", "latin-1"),
    ("es", "mac-roman"), ("es", "cp850"), ("pt", "cp860"), ("pt", "mac-roman"), ("it", "mac-roman"), ("eu", "mac-roman"),
    ("ro", "iso8859-16"), ("uk", "koi8-u"), ("uk", "cp1251"), ("uk", "mac-cyrillic"), ("tg", "koi8-t"),
    ("be", "cp1251"), ("pl", "cp1250"), ("pl", "iso8859-2"), ("pl", "cp852"), ("cs", "mac-latin2"), ("hu", "iso8859-2"),
    ("lt", "cp1257"), ("lt", "cp775"), ("mt", "iso8859-3"), ("cy", "iso8859-14"), ("se", "iso8859-10"), ("el", "cp1253"),
    ("el", "cp737"), ("he", "cp1255"), ("he", "cp862"), ("ar", "cp1256"), ("ar", "iso8859-6"), ("th", "cp874"),
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


@pytest.mark.parametrize("label", ["cp860", "IBM860", "ibm-860"])
def test_numbers_of_code_pages_of_dos_are_labels(label: str) -> None:
    assert codec_of(label) == "cp860"
    assert codec_of("cp99") is codec_of("cp1140") is None


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
    assert judged.extracted.is_recoded
