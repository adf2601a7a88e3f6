import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.clean.filters.judge_record import Settings, judge_record
from anadil.clean.filters.line_language import is_foreign, keep_own_lines, may_be_mixed
from anadil.clean.read.readers import RawRecord
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from anadil.text.language_data import Language, LanguageModel
from anadil.text.language_id import IdentifiedLanguage, identify_language

az = load_language("az")
OWN = [
    "Səhər tezdən durub pəncərəni açdım və küçədə heç kimin olmadığını gördüm.",
    "Bakı Azərbaycanın ən böyük şəhəri və ölkənin iqtisadi, elmi, mədəni mərkəzidir.",
    "Uşaqlar məktəbdən qayıdanda nənəm onlara isti çörək və pendir verərdi.",
    "Kitabxanada axşama qədər oturub qədim əlyazmaları oxumaq onun adəti idi.",
]
TURKISH = "Mahallemizin fırını sabahın dördünde açılır ve ilk ekmekler henüz gün doğmadan raflara dizilir."
ENGLISH = "We use cookies to give you the best experience on our website and to analyse traffic."
CODE = "const result = await fetch(url, {method: 'POST', body: JSON.stringify(data)});"
DATA = os.environ.get("ANADIL_DATA")


@pytest.mark.parametrize("foreign", [TURKISH, ENGLISH])
def test_a_line_in_another_language_is_taken_out_and_counted(foreign: str) -> None:
    found = keep_own_lines("\n".join([*OWN[:2], foreign, *OWN[2:]]), az)

    assert found.text == "\n".join(OWN)
    assert found.removed == 1
    assert 0 < found.foreign_share < 0.3


def test_no_identifier_is_asked_of_lines_whose_letters_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(line: str, language: Language) -> IdentifiedLanguage:
        asked.append(line)
        return identify_language(line, language)

    monkeypatch.setattr("anadil.clean.filters.line_language.identify_language", noted)

    keep_own_lines("\n".join([*OWN, ENGLISH, TURKISH, f"{ENGLISH} Əliyev"]), az)

    assert asked == [ENGLISH, TURKISH, f"{ENGLISH} Əliyev"]


@pytest.mark.parametrize(
    "line", ["Read more", CODE, "2024-01-02 03:04:05 +99412 5551234 / 555 12 34 / 10.0.0.1"]
)
def test_short_lines_and_lines_of_no_language_stay(line: str) -> None:
    text = "\n".join([*OWN, line])

    assert keep_own_lines(text, az).text == text


IN_TURN = {
    ("az", "tr"): (
        OWN,
        [
            "Mahallemizin fırını sabahın dördünde açılır ve ilk ekmekler raflara dizilir.",
            "Dedem her akşam bahçedeki ceviz ağacının altında oturup gazetesini okurdu.",
            "Çocuklar yaz boyunca derede yüzdüler ve eve ancak hava kararınca döndüler.",
            "Kasabanın eski istasyonu yıllar önce kapandı, şimdi içinde bir kütüphane var.",
        ],
    ),
    ("ja", "zh"): (
        [
            "昨日は朝から雨が降っていたので、家で本を読んで過ごしました。",
            "この町の図書館は古い駅の建物を直して使っているそうです。",
            "母が作ってくれた弁当を持って、友達と山へ登りに行きました。",
            "新しい橋ができてから、島へ渡る人がずっと多くなりました。",
        ],
        [
            "我们村子里的老人每天早上都会在河边散步聊天,然后一起去喝茶。",
            "这座城市的地铁去年又开通了两条新的线路,大家上班方便多了。",
            "他把旧书整理好以后,全部送给了学校的图书馆,孩子们都很高兴。",
            "冬天来了,湖面结了厚厚的冰,很多人都到这里来学习滑冰运动。",
        ],
    ),
    ("ru", "uk"): (
        [
            "Вчера мы долго гуляли по берегу реки и смотрели, как рыбаки чинят старые сети.",
            "Библиотека в нашем городке открылась в здании бывшего железнодорожного вокзала.",
            "Дедушка рассказывал, что раньше через это поле проходила дорога в соседний город.",
            "Осенью дети собирали в лесу орехи и приносили их домой полными корзинами.",
        ],
        [
            "Щоранку бабуся вставала раніше за всіх і пекла нам смачні пиріжки з вишнями.",
            "У нашому містечку відкрили нову школу, і діти вже з вересня підуть туди вчитися.",
            "Мій товариш розповів, що взимку вони їздили в гори кататися на лижах.",
            "Після дощу над річкою з'явилася веселка, і ми довго стояли та милувалися нею.",
        ],
    ),
}


@pytest.mark.parametrize(("own", "other"), IN_TURN)
def test_of_a_paragraph_in_two_languages_only_the_sentences_of_one_stay(own: str, other: str) -> None:
    mine, theirs = IN_TURN[own, other]
    gap = "" if own == "ja" else " "
    paragraph = gap.join(sentence for pair in zip(mine, theirs, strict=True) for sentence in pair)
    language = load_language(own)

    found = keep_own_lines(f"{mine[0]}\n{paragraph}", language, by_sentence=True)

    assert may_be_mixed(paragraph, identify_language(paragraph, language), language)
    own_text = gap.join(mine)
    assert not may_be_mixed(own_text, identify_language(own_text, language), language)
    assert found.text == f"{mine[0]}\n{gap.join(mine)}"
    assert (found.removed, found.foreign_share > 0.3) == (4, True)
    assert keep_own_lines(found.text, language, by_sentence=True).text == found.text


def test_names_quotations_and_short_sentences_say_no_other_language() -> None:
    theirs = IN_TURN["az", "tr"][1]
    for foreign in (
        f"«{theirs[0]} {theirs[1]}»",
        f"“{theirs[0]}” “{theirs[1]}”",
        "Evet, öyle. Hadi gidelim. Ne oldu sana? Çok güzel!",
        theirs[0],  # one alone is a quotation without marks
        "The New York Times, The Wall Street Journal, The Washington Post 2024.",
    ):
        text = f"{OWN[0]} {OWN[1]} {foreign} {OWN[2]}"

        assert keep_own_lines(text, az, by_sentence=True).text == text


def test_a_document_whose_sentences_are_of_two_languages_is_dropped_as_mixed() -> None:
    mine, theirs = IN_TURN["az", "tr"]
    text = " ".join(f"{own} {other}" for own, other in zip(mine * 3, theirs * 3, strict=True))
    settings = Settings(recipe=Recipe.model_validate({"language": "az"}))

    assert judge_record(RawRecord(source="a", text=text), settings).reason == "mixed"


@pytest.mark.parametrize(
    "signs", [" ({}).", " [{}].", ", {},", "; {};", " — {}.", " / {} /", "\t{}\t", " {}"]
)
@pytest.mark.parametrize(("own", "other"), [("az", "tr"), ("ru", "uk")])
def test_sentences_of_two_languages_are_mixed_by_whatever_signs_they_are_joined(
    own: str, other: str, signs: str
) -> None:
    pairs = zip(*IN_TURN[own, other], strict=True)
    line = " ".join(mine.rstrip(".") + signs.format(theirs.rstrip(".")) for mine, theirs in pairs)
    limit = load_language(own).limits["max_foreign"]

    assert keep_own_lines(line, load_language(own), by_sentence=True).foreign_share > (limit or 1)


def test_a_translation_in_brackets_stays_where_few_sentences_have_one() -> None:
    theirs = IN_TURN["az", "tr"][1]
    own = OWN * 4
    text = " ".join(
        [f"{own[0].rstrip('.')} ({theirs[0].rstrip('.')}).", *own[1:15], f"{own[15]} ({theirs[1]})"]
    )

    assert keep_own_lines(text, az, by_sentence=True).text == text


def test_no_hole_is_left_where_lines_were() -> None:
    assert keep_own_lines("\n\n".join([OWN[0], ENGLISH, OWN[1], OWN[2], OWN[3]]), az).text == "\n\n".join(OWN)


@pytest.mark.parametrize(
    ("is_reliable", "second", "is_learnt", "is_foreign_line"),
    [
        (True, "", False, True),  # a language that py3langid does not know: CLD2 alone, if it is sure
        (False, "", False, False),
        (False, "tr", False, False),  # it is the one that py3langid finds
        (True, "az", False, True),
        (False, "", True, True),  # the user's model decides alone
    ],
)
def test_a_line_is_foreign_where_all_that_know_the_language_say_so(
    is_reliable: bool, second: str, is_learnt: bool, is_foreign_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = IdentifiedLanguage(code="tr", is_language=False, is_reliable=is_reliable, retried=False)
    monkeypatch.setattr("anadil.clean.filters.line_language.identify_language", lambda *_: found)
    monkeypatch.setattr("anadil.clean.filters.line_language.second_opinion", lambda _: "tr")
    model = LanguageModel(path="lid.bin", label="az", sha256="") if is_learnt else None
    language = replace(az, second_label=second, model=model, is_certain=lambda _: False)

    assert is_foreign("Bu sətir qırx hərfdən uzundur və bir dildədir", language) is is_foreign_line


@pytest.mark.parametrize("code", ["az", "tr", "en", "ru"])
@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with az/, tr/, en/ and ru/")
def test_lines_of_real_text_are_told_apart(code: str) -> None:
    language = load_language(code)

    def lines(other: str) -> list[str]:
        """A tenth of the lines of running text."""
        file = next(Path(str(DATA), other).glob("*FLORES*"))
        texts = [json.loads(row)["text"] for row in file.read_text("utf-8").splitlines()[::10]]
        return [line for text in texts for line in text.split("\n") if len(line) >= 40]

    for other in ("az", "tr", "en", "ru"):
        taken = [identify_language(line, language).is_language for line in lines(other)]
        removed = sum(keep_own_lines(line, language).removed for line in lines(other))
        share = removed / len(taken)
        assert share <= 0.01 if other == code else share >= 0.95
        assert sum(taken) >= 0.97 * len(taken) if other == code else not any(taken)
