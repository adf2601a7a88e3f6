import itertools
import random

import pytest

from anadil.clean.filters.judge import RULE_NAMES, Judge, Judgement
from anadil.recipe.clean import Clean
from anadil.recipe.filter_rules import Rules
from anadil.text.filter_rules import MODES, RULES
from anadil.text.language import load_language
from anadil.text.language_id import identify_language
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, MORE_JAPANESE, RUSSIAN, TURKISH

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


az = load_language("az")


def judge(text: str, code: str = "az", *, modes: dict[str, str] | None = None, **rules: float) -> Judgement:
    language = load_language(code)
    settings = Clean.model_validate({"rules": rules, "modes": modes or {}})
    normal = language.normalize(text)
    made = Judge(language, settings.rules, settings.modes)
    return made.judge([normal], [identify_language(normal, language)])[0]


def reason(text: str, code: str = "az", **rules: float) -> str | None:
    return judge(text, code, modes=None, **rules).reason


@pytest.mark.parametrize("text", [AZERBAIJANI, ANOTHER])
def test_a_sound_azerbaijani_text_is_kept(text: str) -> None:
    assert reason(text) is None


def test_a_sound_japanese_text_of_400_letters_is_kept() -> None:
    assert reason(JAPANESE, "ja") == "short"
    assert reason(JAPANESE + MORE_JAPANESE, "ja") is None


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
        ("duplicate_ngrams", f"{ANOTHER} " * 2),
    ],
)
def test_a_damaged_or_poor_text_is_dropped_with_its_reason(expected: str, text: str) -> None:
    assert reason(text) == expected


def test_a_rule_of_the_recipe_replaces_the_limit_of_the_language() -> None:
    short = "Sakinlər deyirlər ki, belə hava bu fəsildə nadir hallarda olur və tez keçir."

    assert reason(short, min_words=5) is None
    assert reason(AZERBAIJANI, max_words=60) == "long"
    assert reason(f"{AZERBAIJANI} {ANOTHER} {RUSSIAN}", min_script=0.8) == "script"


def test_capital_letters_do_not_hide_stop_words() -> None:
    assert reason(AZERBAIJANI.replace("i", "İ").replace("ı", "I").upper()) is None


def test_a_rule_in_report_mode_is_counted_and_drops_nothing() -> None:
    text = f"{AZERBAIJANI} {'ə' * 1_001}"

    judged = judge(text, modes={"word_length": "report"})

    assert judged.reason is None
    assert "word_length" in judged.failed


def test_a_rule_that_reports_by_default_drops_where_the_recipe_enforces_it() -> None:
    text = f"{AZERBAIJANI} function() {{ return 1; }}"

    assert "curly_brackets" in judge(text).failed
    assert reason(text) is None
    assert judge(text, modes={"curly_brackets": "enforce"}).reason == "curly_brackets"


def test_every_rule_is_judged_and_the_first_enforced_one_is_the_reason() -> None:
    judged = judge(f"{TURKISH} {TURKISH}")

    assert judged.reason == "language"
    assert {"language", "spelling", "duplicate_ngrams"} <= set(judged.failed)
    assert list(judged.failed) == [name for name in RULE_NAMES if name in judged.failed]


@pytest.mark.parametrize(("step", "expected"), [(10, "isolated"), (40, None)])
def test_text_with_characters_that_were_lost_in_decoding_is_damaged(step: int, expected: str | None) -> None:
    words = f"{AZERBAIJANI} {ANOTHER}".split()
    words[::step] = [f"{word[:1]}\ufffd{word[2:]}" for word in words[::step]]

    assert reason(" ".join(words)) == expected


def test_words_that_recur_are_no_repetition_where_a_letter_is_the_unit() -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("กขคงจชดตนบปพมยรลวสหอ", k=5)) for _ in range(80)]
    text = "".join(draw.choices(words, [1 / place for place in range(1, 81)], k=300))

    judge = Judge(load_language("th"))
    sound, repeated = judge.judge([text, "\n".join([text[:300]] * 8)]).reasons

    assert sound is None
    assert repeated is not None
    assert repeated.startswith("duplicate")


def test_the_reason_comes_with_the_value_and_the_limit() -> None:
    judged = judge(DAMAGED)

    assert (judged.reason, judged.limit) == ("isolated", 0.05)
    assert judged.value is not None
    assert judged.value > 0.05


def test_what_other_steps_found_is_judged_too() -> None:
    judgements = Judge(az).judge([AZERBAIJANI] * 3, foreign=[0.31, 0.3, 0], quality=[1, 1, 0.49])

    assert judgements.reasons == ["mixed", None, "quality"]


def test_limits_can_be_tried_on_what_was_measured_before() -> None:
    measured = Judge(az).judge([AZERBAIJANI, ANOTHER]).statistics

    assert Judge(az, Rules(min_words=70)).judge_statistics(measured).reasons == [None, "short"]


def test_records_of_one_rule_stand_together_and_have_one_mode() -> None:
    names = [rule.name for rule in RULES]

    assert [name for name, _ in itertools.groupby(names)] == list(MODES)
    assert all(rule.mode == MODES[rule.name] for rule in RULES)


def test_no_documents_have_no_reasons() -> None:
    assert Judge(az).judge([]).reasons == []
