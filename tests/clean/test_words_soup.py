"""What shuffled words and lists of keywords betray themselves by, on real text."""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.clean.filters.judge import Judge
from anadil.text.filter_rules import RULES, Mode, RuleName
from anadil.text.language import load_language
from tests.kit.texts import ANOTHER, AZERBAIJANI

DATA = os.environ.get("ANADIL_DATA", "")
ONLY: dict[RuleName, Mode] = {
    rule.name: "report" for rule in RULES if rule.name not in {"words_soup", "sentence_length"}
}
az = load_language("az")
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
