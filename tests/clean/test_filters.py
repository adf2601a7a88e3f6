import pytest

from anadil.clean.filters import drop_reason, duplicate_ngram_share, limits_of, top_ngram_share
from anadil.clean.language_id import identify_language
from anadil.recipe.sections import Rules
from anadil.text.language import load_language
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, RUSSIAN, TURKISH

CYCLE = (
    "Elanlar şöbəsi müştərilər üçün hər gün saat doqquzdan açıqdır və zəngləri qəbul edir. "
    "Bizimlə əlaqə saxlamaq istəyən hər kəs aşağıdakı nömrəyə zəng edə bilər. "
)
DAMAGED = (
    "Madd ə 7-1. Ail ə münasib ə tl ə ri m ə s ə l ə l ə rinin h ə lli. Ər v ə arvad bir-birin ə kömək etm ə lidirl ə r və "
    "uşaqların t ə rbiy ə si il ə m əşğul olmalıdırlar. Bu M ə c ə ll ə il ə nizama salınmayan münasib ə tl ə r dig ə r "
    "qanunvericilik aktları il ə t ə nziml ə nir, bu hallarda ail ə nin mənaf e yi n ə z ə r ə alınır v ə qorunur."
)
ASCII = (
    "Dunen axsam Bakida guclu kulek esdi ve seherin bir nece kucesinde agaclar yixildi. Sakinler deyirler ki, bele hava "
    "bu fesilde nadir hallarda olur, amma her il bir defe mutleq tekrarlanir. Kommunal xidmet iscileri gece boyu yollari "
    "temizlediler, seher saatlarinda ise neqliyyatin hereketi tam berpa edildi. Azerbaycan dili ucun bu cox vacibdir ve "
    "biz onu qorumaliyiq, cunki dilimiz bizim en boyuk servetimizdir."
)
NUMBERS = (
    "Cədvəl: "
    + " ".join(f"{n * 37 % 991}" for n in range(60))
    + " manat və qəpik "
    + "Bakı şəhərinin əhalisi artır, gəlirlər də yüksəlir və bu çox yaxşıdır."
)
TOWNS = (
    "Ağdam, Füzuli, Cəbrayıl, Laçın, Kəlbəcər, Zəngilan, Qubadlı, Şuşa, Xocalı, Tərtər, Bərdə, Goranboy, Naftalan, "
    "Yevlax, Mingəçevir, Göyçay, Ucar, Zərdab, Kürdəmir, Ağsu, Şamaxı, Qobustan, Quba, Qəbələ, İsmayıllı, Şəki"
)
LISTING = TOWNS.replace(",", " rayonu")
LINES = "\n".join(
    [AZERBAIJANI.split(". ")[0] + "."] * 2 + ["Müəllif hüquqları qorunur."] * 6 + ANOTHER.split(". ")[:3]
)


def reason(text: str, code: str = "az", **rules: float) -> str | None:
    language = load_language(code)
    normal = language.normalize(text)
    return drop_reason(
        normal,
        identify_language(normal, language),
        language,
        limits_of(language, Rules.model_validate(rules)),
    )


@pytest.mark.parametrize("text", [AZERBAIJANI, ANOTHER])
def test_a_sound_azerbaijani_text_is_kept(text: str) -> None:
    assert reason(text) is None


def test_a_sound_japanese_text_is_kept() -> None:
    assert reason(JAPANESE, "ja") is None


@pytest.mark.parametrize("text", [TURKISH, ENGLISH, RUSSIAN, JAPANESE])
def test_text_in_another_language_is_dropped_as_language(text: str) -> None:
    assert reason(text) == "language"


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("empty", "\u200b \n"),
        ("short", "Sakinlər deyirlər ki, belə hava bu fəsildə nadir hallarda olur."),
        ("short", "OK 15"),
        ("word_length", f"{AZERBAIJANI} {'ə' * 1_001}"),
        ("isolated", DAMAGED),
        ("spelling", ASCII),
        ("alpha", NUMBERS),
        ("stop_words", LISTING),
        ("duplicate_lines", LINES),
        (
            "top_ngram",
            "Elektron qəbul xidməti və onun bütün bölmələri. " + "telefon nömrəsi " * 30 + AZERBAIJANI[:200],
        ),
        ("duplicate_ngrams", CYCLE * 3),
    ],
)
def test_a_damaged_or_poor_text_is_dropped_with_its_reason(expected: str, text: str) -> None:
    assert reason(text) == expected


def test_a_text_with_too_much_cyrillic_is_dropped_as_script() -> None:
    assert reason(f"{AZERBAIJANI} {ANOTHER} {RUSSIAN}", min_script=0.8) == "script"


def test_a_text_beyond_the_limit_is_dropped_as_long() -> None:
    assert reason(AZERBAIJANI, max_words=60) == "long"


def test_a_rule_of_the_recipe_replaces_the_limit_of_the_language() -> None:
    short = "Sakinlər deyirlər ki, belə hava bu fəsildə nadir hallarda olur və tez keçir."

    assert reason(short, min_words=5) is None


def test_capital_letters_do_not_hide_stop_words() -> None:
    assert reason(AZERBAIJANI.replace("i", "İ").replace("ı", "I").upper()) is None


def test_the_most_frequent_pair_is_weighed_by_its_characters() -> None:
    assert top_ngram_share(["ab", "cd", "ab", "cd", "efgh"]) == pytest.approx(8 / 12)


def test_words_of_overlapping_repeats_count_once() -> None:
    words = ["a", "b", "c", "d", "e", "f"]

    assert duplicate_ngram_share(words + words) == pytest.approx(6 / 12)
