import gzip
import itertools
import json
import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.clean.filters.judge import RULE_NAMES, Judge, Judgement
from anadil.clean.kernels.characters import characters_of
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.kernels.ng_words import NgWords, read_ng_words
from anadil.core.errors import DataError, PreflightError
from anadil.recipe.clean import Clean
from anadil.text import fasttext_model
from anadil.text.fasttext_model import QualityModel
from anadil.text.filter_rules import MODES, RULES, Mode, RuleName
from anadil.text.language import load_language
from anadil.text.language_id import identify_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, rows, samples, stats, write_jsonl
from tests.kit.reference_statistics import swallow_keeps, swallow_repetition
from tests.kit.texts import ANOTHER, AZERBAIJANI, ENGLISH, JAPANESE, MORE_JAPANESE, RUSSIAN, TURKISH


def share(text: str, *words: str, code: str = "ja") -> float:
    language = load_language(code)
    return float(NgWords(words, characters_of(language)).shares([language.normalize(text)])[0])


@pytest.mark.parametrize("spelling", ["エロゲー", "えろげー", "ｴﾛｹﾞｰ"])
@pytest.mark.parametrize("entry", ["エロゲー", "えろげー", "ｴﾛｹﾞｰ"])
def test_kind_of_kana_and_width_do_not_matter(entry: str, spelling: str) -> None:
    assert share(f"{spelling}を買う本日", entry) == pytest.approx(4 / 9)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("あいうえお", ("あい", "あいう", "いうえ"), 3 / 5),  # no letter counts twice
        ("あいえお", ("あい", "あいうえ"), 2 / 4),  # what begins as a longer entry and breaks off
        ("日本語sexと書く", ("SEX",), 3 / 6),
        ("日本のEssexと書く", ("sex",), 0),
        ("あいう", ("い",), 0),  # one letter is chance
    ],
)
def test_the_longest_entry_counts_and_latin_ones_are_whole_words(
    text: str, words: tuple[str, ...], expected: float
) -> None:
    assert share(text, *words) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "entry", "expected"), [("pis söz", "pis", 3 / 6), ("pişik", "pis", 0), ("apis pisa", "pis", 0)]
)
def test_a_language_with_spaces_is_matched_by_whole_words(text: str, entry: str, expected: float) -> None:
    assert share(text, entry, code="az") == pytest.approx(expected)


def test_each_text_of_a_batch_has_its_own_share() -> None:
    assert NgWords(["pis"], characters_of(az)).shares(["söz", "", "pis", "söz"]).tolist() == [0, 0, 1, 0]


def test_a_page_full_of_entries_is_dropped_and_one_that_quotes_one_is_kept() -> None:
    sound = JAPANESE + MORE_JAPANESE
    judge = Judge(ja, ng_words=["禁句であります"])

    assert judge.judge([sound + "禁句であります。", sound + "禁句であります。" * 5]).reasons == [
        None,
        "ng_words",
    ]


def test_the_stage_reads_the_lists_that_the_recipe_names(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("GÜCLÜ KÜLƏK\n# fəsillər\n\n", encoding="utf-8-sig")
    raw = write_jsonl(tmp_path / "a.jsonl", [AZERBAIJANI, *texts(6)])

    corpus = clean(tmp_path, raw, ng_words=[str(words)], rules={"max_ng_words": 0.02})

    assert stats(corpus)["dropped"]["ng_words"] == 1


def test_a_packed_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "words.gz").write_bytes(gzip.compress("söz\n# söz\nağır söz\n".encode()))

    assert read_ng_words([str(tmp_path / "words.gz")]) == ["söz", "ağır söz"]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\0\1\2", "is not text"), ("söz".encode("latin-1"), "not UTF-8"), (b"# nothing yet\n", "holds no entry")],
)  # fmt: skip
def test_what_is_no_list_of_words_is_refused_by_name(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)

    with pytest.raises(DataError, match=rf"clean.ng_words: .*a\.txt.*{why}"):
        read_ng_words([str(tmp_path / "a.txt")])


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


def test_records_of_one_rule_stand_together_and_have_one_mode() -> None:
    names = [rule.name for rule in RULES]

    assert [name for name, _ in itertools.groupby(names)] == list(MODES)
    assert all(rule.mode == MODES[rule.name] for rule in RULES)


def test_no_documents_have_no_reasons() -> None:
    assert Judge(az).judge([]).reasons == []


DATA = os.environ.get("ANADIL_DATA", "")
OF_SWALLOW: set[RuleName] = {
    "short", "kana", "sentence_length", "ellipsis_sentences", "duplicate_sentences", "top_char_ngram",
    "duplicate_char_ngrams",
}  # fmt: skip
ja = load_language("ja")
JUDGE = Judge(ja, modes={rule.name: "report" for rule in RULES if rule.name not in OF_SWALLOW})
SENTENCES = [f"{sentence}。" for sentence in (JAPANESE + MORE_JAPANESE).split("。") if sentence]
PIECES = (
    *SENTENCES, *SENTENCES, "\n", "\n\n", "！", "！！", "そうだった…", "それは・", "カタカナノモジバカリ。", "abc def ghi jkl. ", "、" * 9,
    "東京都千代田区霞が関一丁目" * 6, "Ｘ．Ｙ，",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=8, max_size=40))
def test_verdicts_are_those_of_the_published_rules(pieces: list[str]) -> None:
    text = "".join(pieces).strip("\n") or "。"

    assert (JUDGE.judge([text]).reasons == [None]) == swallow_keeps(text)


@pytest.mark.parametrize("order", range(2, 11))
def test_repetition_of_characters_is_that_of_the_published_rules(order: int) -> None:
    text = "".join(random.Random(order).choices("あいう", k=500))
    column = f"top_char_{order}gram" if order < 5 else f"duplicate_char_{order}grams"

    judged = JUDGE.judge([text])

    assert judged.statistics[0, COLUMN[column]] == pytest.approx(swallow_repetition(text, order))


@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with ja/")
def test_verdicts_on_real_documents_are_those_of_the_published_rules() -> None:
    files = sorted(Path(DATA, "ja").glob("*.jsonl"))
    texts = [
        ja.normalize(json.loads(line)["text"])[:3_000]
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()[::4]
    ]

    kept = [reason is None for reason in Judge(ja).judge(texts).reasons]

    # Other rules than Swallow's drop some, too.
    assert texts
    assert sum(a == swallow_keeps(text) for a, text in zip(kept, texts, strict=True)) >= 0.99 * len(texts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SENTENCES[0] * 3, "short"),
        ("\n".join(["".join(SENTENCES)] * 2), "duplicate_sentences"),
        ("".join(SENTENCES).replace("。", "、"), "sentence_length"),
        ("".join(SENTENCES).replace("。", "…。\n").replace("…。", "…"), "ellipsis_sentences"),
        ("。".join(re.findall(".{30}", "".join(map(chr, range(0x4E00, 0x5800))))), "kana"),
    ],
)
def test_what_swallow_drops_is_dropped_with_its_reason(text: str, reason: str) -> None:
    assert JUDGE.judge([text]).reasons == [reason]


def test_blank_lines_are_no_lines_that_repeat() -> None:
    assert JUDGE.judge(["\n\n".join(SENTENCES)]).reasons == [None]


pytest.importorskip("fasttext", reason="pip install fasttext-predict")

GOOD, POOR = "__label__hq", "__label__cc"
MAGIC, VERSION = 793712314, 12


def fasttext_file(path: Path, good_words: str, poor_words: str) -> Path:
    """A classifier in fastText's format: each word has a vector of its own label.

    Source of the layout: fastText 0.9.2, fasttext.cc, `FastText::saveModel`, and args.cc, dictionary.cc, densematrix.cc.
    """
    words = ["</s>", *good_words.split(), *poor_words.split()]
    num_good = len(good_words.split())
    args = struct.pack("<12i", 2, 5, 1, 1, 5, 1, 3, 3, 0, 0, 0, 100) + struct.pack("<d", 0.0001)
    head = struct.pack("<3i2q", len(words) + 2, len(words), 2, 100, -1)
    entries = b"".join(
        name.encode() + b"\0" + struct.pack("<qb", 2, kind)
        for name, kind in [*((word, 0) for word in words), (GOOD, 1), (POOR, 1)]
    )
    vectors = [(0, 0), *((40, 0) if number < num_good else (0, 40) for number in range(len(words) - 1))]
    matrices = [vectors, [(1, 0), (0, 1)]]
    tables = b"".join(
        b"\0" + struct.pack("<2q", len(each), 2) + b"".join(struct.pack("<2f", *row) for row in each)
        for each in matrices
    )
    path.write_bytes(struct.pack("<2i", MAGIC, VERSION) + args + head + entries + tables)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    fasttext_model.load_fasttext.cache_clear()
    return fasttext_file(tmp_path / "quality.bin", "bir", "külək")


def test_the_score_is_the_probability_of_the_label(model: Path) -> None:
    quality = QualityModel(str(model), GOOD)

    assert quality.score("və\nbu bir") > 0.99
    assert quality.score("bu külək") < 0.01
    assert QualityModel(str(model), POOR).score("bu külək") > 0.99
    assert quality.score("") == pytest.approx(0.5, abs=1e-4)


def test_documents_with_a_low_score_are_dropped_and_counted(tmp_path: Path, model: Path) -> None:
    own = [f"{text} Bu {word} sözdür." for text, word in zip(texts(3), ("bir", "bir", "külək"), strict=True)]
    raw = write_jsonl(tmp_path / "a.jsonl", [*own, TURKISH])

    corpus = clean(tmp_path / "1", raw, quality_model=str(model))
    watched = clean(tmp_path / "2", raw, quality_model=str(model), modes={"quality": "report"})

    assert stats(watched)["rules"]["quality"]["mode"] == "report"
    (sample,) = samples(corpus, "quality")
    assert sample["value"] < 0.5 == sample["limit"]
    assert {row["reason"] for row in rows(corpus)} == {None, "quality", "language"}
    assert stats(watched)["kept"] == 3


def test_a_label_that_the_model_does_not_know_is_refused(tmp_path: Path, model: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(3))

    with pytest.raises(PreflightError, match=r"set clean.quality_label to one of __label__cc, __label__hq"):
        clean(tmp_path, raw, quality_model=str(model), quality_label="__label__good")


def test_a_file_that_is_no_model_and_several_models_are_refused(tmp_path: Path, model: Path) -> None:
    raw = write_jsonl(tmp_path / "a.jsonl", texts(3))

    with pytest.raises(PreflightError, match=f"{raw} is no fastText model"):
        clean(tmp_path, raw, quality_model=str(raw))
    with pytest.raises(DataError, match=r"clean.quality_model: names 2 files"):
        clean(tmp_path, raw, quality_model=str(tmp_path / "*.*"))


ONLY: dict[RuleName, Mode] = {
    rule.name: "report" for rule in RULES if rule.name not in {"words_soup", "sentence_length"}
}
ORDER_JUDGE = Judge(az, modes=ONLY)


def real_texts() -> list[str]:
    """News, law and documentation that no other rule drops."""
    files = [file for file in sorted(Path(DATA, "az").glob("*.jsonl")) if "udhr" not in file.name]
    rows = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()[::2]]
    texts = [az.normalize(json.loads(row)["text"]) for row in rows]
    others = Judge(az, modes={"words_soup": "report", "sentence_length": "report"})
    return [text for text, reason in zip(texts, others.judge(texts).reasons, strict=True) if reason is None]


def shuffled(text: str, draw: random.Random) -> str:
    words = text.split()
    draw.shuffle(words)
    return " ".join(words)


def shuffled_lines(text: str, draw: random.Random) -> str:
    return "\n".join(shuffled(line, draw) for line in text.split("\n"))


def keywords(text: str, draw: random.Random) -> str:
    words = sorted({word for word in re.findall(r"\w{4,}", text.lower()) if word not in az.stop_words})
    return ", ".join(draw.choices(words, k=max(60, len(words))))


WEATHER = (
    "Səhər saatlarında arabir leysan yağacaq. Dağlarda çiskin yollara gedən körpüləri bağlaya bilər. Çaylarda suyun "
    "səviyyəsi qalxacaq, sahilə yaxınlaşmaq təhlükəlidir. Ürək xəstələri evdən çıxarkən dərmanlarını unutmasınlar. "
    "Masallıda göy qısa müddətə aydınlaşacaq, günəş dağın üstündən görünəcək. İsmayıllı sakinləri yaylıqları şkafdan "
    "çıxarıb novu düzəldirlər. Dağlıq rayonlarda atları otlağa çıxaran çobanlar evə tez gedirlər."
)


def test_a_weather_report_with_few_stop_words_is_kept() -> None:
    assert ORDER_JUDGE.judge([WEATHER]).reasons == [None]


def in_small_letters(text: str) -> str:
    return az.normalize(text.lower())


@pytest.mark.parametrize("text", [AZERBAIJANI, ANOTHER, WEATHER])
def test_prose_in_small_letters_is_kept(text: str) -> None:
    small = in_small_letters(text)

    assert small != text
    assert ORDER_JUDGE.judge([small, small.replace("bakıda", "Bakıda")]).reasons == [None, None]


@pytest.mark.parametrize("text", [AZERBAIJANI, ANOTHER, WEATHER])
def test_prose_in_small_letters_is_kept_where_its_first_letter_or_each_lines_is_a_capital(text: str) -> None:
    small = in_small_letters(text)
    lines = small.replace(". ", ".\n").split("\n")
    texts = [small.capitalize(), "«" + small.capitalize(), "\n".join(line.capitalize() for line in lines)]

    assert ORDER_JUDGE.judge(texts).reasons == [None, None, None]


def test_speech_without_any_marks_falls_for_its_sentences() -> None:
    spoken = re.sub(r"[^\w\s]", "", in_small_letters(AZERBAIJANI + " " + ANOTHER))

    judged = Judge(az).judge([spoken])[0]

    assert (judged.reason, judged.limit) == ("sentence_length", 60)
    assert "words_soup" not in judged.failed


def test_keywords_in_small_letters_are_dropped_still() -> None:
    words = keywords(in_small_letters(AZERBAIJANI + ANOTHER + WEATHER), random.Random(0))

    assert ORDER_JUDGE.judge([words])[0].reason == "words_soup"


def dropped(texts: list[str]) -> float:
    reasons = ORDER_JUDGE.judge(texts).reasons
    return 1 - reasons.count(None) / len(reasons)


@pytest.fixture(scope="module")
def good_texts() -> list[str]:
    if not DATA:
        pytest.skip("set ANADIL_DATA to the directory with az/")
    found = real_texts()
    assert found
    return found


@pytest.mark.parametrize("damage", [shuffled, shuffled_lines, keywords])
def test_nine_in_ten_damaged_documents_are_dropped(
    damage: Callable[[str, random.Random], str], good_texts: list[str]
) -> None:
    draw = random.Random(1)

    assert dropped([damage(text, draw) for text in good_texts]) >= 0.9


def test_one_in_a_hundred_good_documents_is_lost_at_most(good_texts: list[str]) -> None:
    assert dropped(good_texts) <= 0.01


def test_text_of_a_language_without_stop_words_is_kept_and_lists_of_its_words_are_not() -> None:
    if not DATA:
        pytest.skip("set ANADIL_DATA to the directory with ru/")
    russian, draw = load_language("ru"), random.Random(0)
    judge = Judge(russian, modes=ONLY)
    files = sorted(Path(DATA, "ru").glob("[HMr]*.jsonl"))
    rows = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()[::4]]
    texts = [russian.normalize(json.loads(row)["text"]) for row in rows]
    lists = [keywords(text, draw) for text in texts]

    kept, others = (judge.judge(some).reasons.count(None) / len(texts) for some in (texts, lists))

    assert not russian.stop_words
    assert (kept > 0.97, others < 0.03) == (True, True), (kept, others)
