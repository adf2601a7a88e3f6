import hashlib
import re
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anadil.clean.filters.judge import Judge
from anadil.core.errors import IntegrityError, PreflightError
from anadil.recipe.sections import Recipe
from anadil.text import fasttext_model
from anadil.text.language import language_codes, load_language
from anadil.text.language_data import Language, LanguageModel, UnknownLanguageError
from anadil.text.language_id import identify_language
from anadil.text.language_pack import Identification, LanguagePack, to_language
from anadil.text.languages.ja import VALUES, remove_footer, unify_punctuation
from anadil.text.unicode_repair import is_sound, normalize_spaces, repair_characters
from tests.kit.texts import BOSNIAN, CROATIAN

LETTERS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "əƏiıİI\u0307\u04d9\u01ddÉÃÄ¼\x99\x85\xa0\u200b\u200d\ud83d\ude00，．。、が\u3099カ\uff76 \n\r漢"
        ),
    ),
    max_size=60,
)
az, ja = load_language("az"), load_language("ja")


@pytest.mark.parametrize("code", language_codes())
@given(text=LETTERS)
@example(text="Ã\u200b¼Ã¼Ã¼")
@example(text="Â\x85\x85")
def test_normalizing_twice_is_normalizing_once(code: str, text: str) -> None:
    normal = load_language(code).normalize(text)

    assert load_language(code).normalize(normal) == normal


@pytest.mark.parametrize("code", language_codes())
@given(text=LETTERS)
def test_a_normalized_text_is_valid_utf8_in_its_form(code: str, text: str) -> None:
    normal = load_language(code).normalize(text)

    assert normal.encode().decode() == normal
    # NFKC would take raised figures and fractions from their numbers.
    assert unicodedata.is_normalized(*(("NFKC", VALUES.sub("", normal)) if code == "ja" else ("NFC", normal)))


@given(text=st.one_of(LETTERS, st.text("aç \n\t\xa0\u3000\x85É™Й\u0307\u200b", max_size=8)))
@example(text="a  b")
@example(text="a \n b")
@example(text=" a")
@example(text="a\n\n\nb")
@example(text="e\u0301")
@example(text="a\ud83d")
def test_no_repair_changes_a_sound_text(text: str) -> None:
    assert not is_sound(text) or normalize_spaces(repair_characters(text)) == text


def test_ordinary_text_is_sound() -> None:
    assert is_sound("“Gözəl” Bakı – şəhər…\n\nİkinci sətir: 5 €.")
    assert is_sound("東京は日本の首都です。\nガラスの瓶。")


@given(text=LETTERS)
def test_shingles_do_not_depend_on_case(text: str) -> None:
    assert az.shingle_units(text.translate({0x69: "İ", 0x131: "I"})) == az.shingle_units(text)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Az\u04d9rbaycan v\u01dd \u018elif", "Azərbaycan və Əlif"),
        ("Tu\u0308rkmən gu\u0308n", "Türkmən gün"),
        ("i\u0307stanbul", "istanbul"),
        ("Bakı\u00a0 şəhəri\r\n\r\n\r\n\r\nGəncə ", "Bakı şəhəri\n\nGəncə"),
        ("kita\u00adb\u200b və\u202e \x00dəftər\ufeff", "kitab və dəftər"),
        ("\ud83d\ude00 salam \ud83d", "😀 salam"),
    ],
)
def test_azerbaijani_is_brought_to_one_form(raw: str, expected: str) -> None:
    assert az.normalize(raw) == expected


def test_latin_5_that_was_read_as_latin_1_is_read_again() -> None:
    text = "Çoxlu dağlar aşıldı, qış işığı söndü."

    assert az.normalize(text.encode("iso8859-9").decode("latin-1")) == text


def test_letters_of_iceland_stay_where_azerbaijani_ones_stand_beside_them() -> None:
    text = "Þingvellir, Ðorðe, Lýður, það: İslandda yer adları"

    assert az.normalize(text) == text


def test_text_that_was_misread_twice_is_read_again_twice() -> None:
    text = "Vətən üçün şəhid olanlar"
    misread = text.encode().decode("latin-1").encode().decode("latin-1")

    assert az.normalize(misread) == text


def test_upper_case_folds_to_the_same_text_as_lower_case() -> None:
    assert az.fold("ISTI QIŞ İŞIQ") == az.fold("isti qış işıq") == az.fold("İSTİ QIŞ İŞIQ")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("ｶﾞｲﾄﾞ　１２３", "ガイド 123"),
        ("東京は，日本の首都である．大阪は，西にある．", "東京は、日本の首都である。大阪は、西にある。"),
        ("値は１．５である。円周率は３．１４である。", "値は1.5である。円周率は3.14である。"),
        ("本文です。\nお問い合わせ | 利用規約\nCopyright 2024 All Rights Reserved", "本文です。"),
    ],
)
def test_japanese_is_brought_to_one_form(raw: str, expected: str) -> None:
    assert ja.normalize(raw) == expected


def test_japanese_words_are_runs_of_one_class_of_characters() -> None:
    assert " ".join(ja.words("東京タワーへ3回行った。Wi-Fi")) == "東京 タワー へ 3 回行 った Wi Fi"


def test_azerbaijani_words_are_separated_by_white_space() -> None:
    assert az.words("Bakı,  gözəl\nşəhər") == ["Bakı,", "gözəl", "şəhər"]


@pytest.mark.parametrize("code", language_codes())
def test_its_own_prompts_and_questions_are_in_the_language(code: str) -> None:
    language = load_language(code)
    joined = ["\n".join(language.prompts), "\n".join(language.questions)]

    judged = Judge(language).judge(joined, [identify_language(text, language) for text in joined])

    # InputSample are short, so that only language, script and spelling can be judged.
    assert not {"language", "script", "spelling"} & {name for each in judged for name in each.failed}
    assert (
        all(language.normalize(text).rstrip() == text.rstrip() for text in language.prompts) or code == "ja"
    )


def test_a_new_language_is_one_file(tmp_path: Path) -> None:
    pack = tmp_path / "xx.yaml"
    pack.write_text("code: xx\nname: Newly added\nscript: Latn\nstop_words: Bir İki\nfold: turkic\n", "utf-8")

    recipe = Recipe.model_validate({"language": str(pack)})

    assert (recipe.language_code, load_language(recipe.language).name) == ("xx", "Newly added")
    assert load_language(str(pack)).stop_words == {"bir", "iki"}


def test_a_pack_that_has_changed_is_read_again(tmp_path: Path) -> None:
    pack = tmp_path / "xx.yaml"
    for name in ("First", "Another"):
        pack.write_text(f"code: xx\nname: {name}\nscript: Latn\n", "utf-8")

        assert load_language(str(pack)).name == name


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("xx.yaml", "code: xx\nname: X\nscript: Latn\nstopwords: a\n", "stopwords: Extra inputs are not permitted"),
        ("xx.yaml", "code: xx\nname: X\nscript: latin\n", "script: must match"),
        ("xx.yaml", "code: xx\nname: X\nscript: Latn\nlimits: {min_script: 2}\n", "limits.min_script: must be at most"),
        (
            "xx.yaml",
            "code: xx\nname: X\nscript: Latn\nidentification:\n  profile: {orders: [2], own: a, min_chars: [], min_likelihoods: []}\n",
            "identification.profile: own: no table of n-grams: ",
        ),
        ("xx.yaml", "- 1\n", "the file: must be a table of keys"),
        ("xx.yaml", "a: [", "not YAML: while parsing"),
        ("xx.yaml", "code: xx\nname: X\nscript: Latn\nname: Y\n", "line 4: key 'name' is given twice"),
        ("xx.yaml", "code: &c xx\nname: *c\nscript: Latn\n", "line 2: alias *c"),
        ("xx.yaml", "prompts: " + "[" * 200_000, "line 1: nested too deep"),
        ("xx.json", '{"code": "xx", "name": "X", "name": "Y"}', "key 'name' is given twice"),
        ("xx.json", '{"learnt": ' + '{"a":' * 150 + "1" + "}" * 151, "nested too deep"),
        ("xx.json", "[" * 200_000, "nested too deep"),
    ],
)  # fmt: skip
def test_a_pack_with_a_mistake_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    pack = tmp_path / name
    pack.write_text(text, "utf-8")

    with pytest.raises(UnknownLanguageError, match=re.escape(f"{pack}: {reason}")):
        load_language(str(pack))


def test_a_word_of_a_pack_that_yaml_1_1_takes_for_a_truth_value_stays_a_word(tmp_path: Path) -> None:
    pack = tmp_path / "no.yaml"
    pack.write_text("code: no\nname: Norsk\nscript: Latn\nprompts: [nei, off]\n", "utf-8")

    assert load_language(str(pack)).code == "no"


@pytest.mark.parametrize("spelling", ["kk", "kaz", "kaz_Cyrl", "kk-Cyrl", "KK"])
def test_a_language_without_a_pack_is_known_by_any_of_its_ids(spelling: str) -> None:
    language = load_language(spelling)

    assert (language.code, language.name, *language.labels) == ("kk", "Kazakh", "kk")
    assert language.is_script("ә")
    assert not language.is_script("a")
    assert language.words("бір екі") == ["бір", "екі"]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_pack_that_is_too_large_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    with (tmp_path / f"xx{suffix}").open("wb") as file:
        file.truncate(2**33)

    with pytest.raises(UnknownLanguageError, match=r"is larger than 16\.0 MiB"):
        load_language(str(tmp_path / f"xx{suffix}"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Kazkh", "did you mean 'kk' (Kazakh)?"),
        ("qzz", "Packs are shipped for az, en, ja, tr; one in no list is learnt, `anadil language learn"),
        ("kk-Latn", "Kazakh in Latn is a language that CLD2 cannot tell"),
        ("gag", "`anadil language learn gag SAMPLE... --out gag.yaml`"),
        ("./no.yaml", "the language pack ./no.yaml cannot be read: No such file"),
    ],
)
def test_a_language_that_nothing_can_identify_is_refused_with_the_remedy(name: str, told: str) -> None:
    with pytest.raises(UnknownLanguageError, match=re.escape(told)):
        load_language(name)


def test_a_script_without_spaces_counts_characters() -> None:
    assert load_language("zh").words("北京 2008 年。") == ["北", "京", "2008", "年"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("azj_Latn", "az"), ("aze_Latn", "az"), ("__label__uzn_Latn", "uz"), ("ekk_Latn", "et"), ("est", "et"),
        ("arb_Arab", "ar"), ("prs_Arab", "fa"), ("pbt_Arab", "ps"), ("quy_Latn", "qu"), ("plt_Latn", "mg"),
        ("cmn_Hani", "zh"), ("zho_Hans", "zh"), ("zho_Hant", "zh-Hant"), ("kor_Hang", "ko"), ("ron_Latn", "ro"),
        ("rum", "ro"), ("iw", "he"), ("twi_Latn", "ak"), ("urd_Aran", "ur"), ("tgl_Latn", "fil"),
    ],
)  # fmt: skip
def test_ids_of_public_data_sets_name_their_language(name: str, code: str) -> None:
    assert load_language(name).code == code


def test_an_id_with_another_script_is_refused_with_the_usual_one() -> None:
    with pytest.raises(
        UnknownLanguageError, match=r"Arabic in Latn .* usually written in Arab, whose id is ar"
    ):
        load_language("arb_Latn")
    with pytest.raises(UnknownLanguageError, match="Azerbaijani in Cyrl"):
        load_language("azj_Cyrl")


class FakeModel:
    """A model as `fasttext.load_model` returns it, which knows one word."""

    def predict(self, text: str, k: int) -> tuple[tuple[str, ...], list[float]]:
        assert "\n" not in text, "predict processes one line at a time"
        return (("__label__qaa_Latn" if "zum" in text else "__label__eng_Latn",), [1.0])


@pytest.fixture
def language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Language:
    """A language that a model of the user's knows."""
    fasttext_model.load_fasttext.cache_clear()
    monkeypatch.setitem(sys.modules, "fasttext", SimpleNamespace(load_model=lambda _: FakeModel()))
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    table = LanguageModel(
        path=str(model), label="__label__qaa_Latn", sha256=hashlib.sha256(b"weights").hexdigest()
    )
    pack = LanguagePack(code="qaa", name="X", script="Latn", identification=Identification(model=table))
    return to_language(pack)


def test_a_model_of_the_user_decides(language: Language) -> None:
    found = [identify_language(text, language).is_language for text in ("du zum\nla", "the house")]

    assert found == [True, False]


def test_another_file_than_the_pack_was_made_with_is_refused(language: Language) -> None:
    assert language.model is not None
    Path(language.model.path).write_bytes(b"others")

    with pytest.raises(IntegrityError, match="is not the one that the pack was made with"):
        identify_language("du zum", language)


def test_a_model_without_its_package_is_refused_with_the_remedy(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)

    with pytest.raises(PreflightError, match=r"-m pip install .*\[clean\]"):
        identify_language("du zum", language)


def test_a_language_without_a_pack_is_identified() -> None:
    kazakh = load_language("kk")
    text = "Қазақстан Республикасы Орталық Азияда орналасқан мемлекет, оның астанасы Астана қаласы."

    assert identify_language(text, kazakh).is_language
    assert not identify_language(
        "Кыргызстан Борбордук Азияда жайгашкан мамлекет, борбору Бишкек.", kazakh
    ).is_language
    assert identify_language(text, load_language("kk")).code == "kk"


@pytest.mark.parametrize(
    ("code", "text", "sibling", "is_language"),
    [("hr", CROATIAN, "bs", True), ("hr", BOSNIAN, "bs", False), ("bs", BOSNIAN, "", True), ("az", CROATIAN, "", False)],
)  # fmt: skip
def test_a_text_that_cld2_takes_for_a_sibling_stays_where_the_second_opinion_says_so(
    code: str, text: str, sibling: str, is_language: bool
) -> None:
    identified = identify_language(text, load_language(code))

    assert (identified.sibling, identified.is_language) == (sibling, is_language)
    assert not identified.other_percent or code == "az"


def test_where_cld2_is_not_sure_something_else_has_to_agree() -> None:
    found = identify_language("Washington Examiner цитир", load_language("en"))

    assert (found.code, found.is_reliable, found.is_language) == ("en", False, False)


BODY = "本文はここにあります。二つ目の文もあります。\n三つ目の文は次の行にあります。"
FOOTER = ["コメント", "トラックバック一覧", "Copyright", "スポンサーリンク", "ランキング 一覧へ"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京は，日本の首都である．大阪は，西にある．", "東京は、日本の首都である。大阪は、西にある。"),
        ("東京は、日本の首都である。大阪は，西にある．", "東京は、日本の首都である。大阪は、西にある。"),
        ("円周率は３．１４で，終わり．（注），abc．", "円周率は３．１４で、終わり。（注）、abc。"),
        ("第１，第２は、ない。", "第１，第２は、ない。"),
    ],
)
def test_punctuation_has_one_style_but_for_full_width_numbers_and_names(text: str, expected: str) -> None:
    assert unify_punctuation(text) == expected


@pytest.mark.parametrize(
    "footer", [FOOTER, FOOTER[::-1], ["東京都港区一丁目", *FOOTER], ["Copyright 2024", "ABC商会", "PR"]]
)
def test_a_footer_goes_whatever_the_order_of_its_lines(footer: list[str]) -> None:
    kept = remove_footer("\n".join([BODY, *footer]))

    assert not {line for line in [*FOOTER, "Copyright 2024", "ABC商会", "PR"] if line in kept.split("\n")}
    assert kept.startswith(BODY)


def test_running_text_after_a_footer_line_stays() -> None:
    text = f"コメント\n{BODY}\n関連記事"

    assert remove_footer(text) == f"コメント\n{BODY}"


def test_a_line_that_mentions_a_footer_word_is_no_footer() -> None:
    text = f"{BODY}\nこの記事の著作権は筆者にあるが、引用の範囲であれば自由に使ってよいとされている。"

    assert remove_footer(text) == text


def test_a_footer_begins_in_the_last_ten_lines() -> None:
    text = "\n".join([BODY, "コメント", *(f"品目{number}" for number in range(10))])

    assert remove_footer(text) == text


@given(lines=st.lists(st.sampled_from([*FOOTER, BODY, "品目一", ""]), max_size=25))
def test_a_footer_that_was_cut_leaves_running_text_alone(lines: list[str]) -> None:
    cut = remove_footer("\n".join([BODY, *lines]))

    assert cut.count(BODY) == 1 + lines.count(BODY)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("細胞が10⁵個、砂糖は3½杯", "細胞が10⁵個、砂糖は3½杯"),
        ("５０㎡の部屋、２㎥の水", "50m²の部屋、2m³の水"),
        ("ｌｏｇ₂８、ｘⁿ、ﾊﾝｶｸ", "log₂8、xⁿ、ハンカク"),
    ],
)
def test_a_number_keeps_its_value_in_compatible_form(raw: str, expected: str) -> None:
    assert load_language("ja").normalize(raw) == expected
