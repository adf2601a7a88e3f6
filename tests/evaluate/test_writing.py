import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anadil.core.measures import view_results
from anadil.evaluate.generate import language_of
from anadil.evaluate.heldout import find_contamination
from anadil.evaluate.writing.measure import (
    HELDOUT_CHARS,
    Writing,
    check_value,
    faults_of,
    figures_of,
    has_mixed_word,
    kind_of_text,
    prepare,
    written_words,
)
from anadil.text.corpus import Document
from anadil.text.language import load_language
from anadil.text.ngram_overlap import unit_hashes, word_hashes

BUILT_IN = Path(__file__).parents[2] / "components/anadil/builtin"
AZ, JA = load_language("az"), load_language("ja")
REAL = [
    json.loads(line)["text"]
    for line in (BUILT_IN / "az/prose.jsonl").read_text(encoding="utf-8").splitlines()
]
CYRILLIC = str.maketrans("abcdeəfghxıijklmnoöprstuüvyz", "абҹдеәфҝһхыижклмноөпрстуүвјз")


def text(words: str, kind: str = "answer", **more: Any) -> dict[str, Any]:
    return {
        "text": words, "kind": kind, "mode": "greedy", "ended": True, "loop": False, "language": language_of(words, AZ),
    } | more  # fmt: skip


def beginning(number: int) -> str:
    return " ".join(REAL[number].split()[:20])


def document(words: str) -> Document:
    return Document(id="1", text=words, source="", url="", lang="az")


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (text("Bakanlık, yeni okulların gelecek yıl açılacağını ve öğretmenlerin işe başlayacağını duyurdu."), "other_language"),
        (text("The ministry said that new schools will open next year and teachers will start to work."), "other_language"),
        (text("Министерство сообщило, что новые школы откроются в следующем году."), "other_script"),
        (text("教育省は来年新しい学校が開校すると発表しました。先生も働き始めます。"), "other_script"),
        (text(beginning(0).lower().translate(CYRILLIC)), "second_script"),
        (text("Шәһәрдә."), "second_script"),
        (text(beginning(1).replace("a", "а", 1)), "mixed_script"),
        (text(beginning(2), loop=True), "loops"),
        (text(beginning(3), ended=False), "cut"),
        (text(" \n…", "continuation"), "empty"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(planted: dict[str, Any], fault: str) -> None:
    assert fault in faults_of(planted, AZ)


def test_real_text_has_no_fault() -> None:
    texts = [text(beginning(number)) for number in range(len(REAL))]

    assert [each["text"] for each in texts if faults_of(each, AZ)] == []


def test_a_continuation_that_goes_on_at_the_limit_has_no_fault() -> None:
    assert faults_of(text(beginning(0), "continuation", ended=False), AZ) == set()


def test_units_and_names_with_endings_mix_no_scripts() -> None:
    russian = load_language("ru")

    assert not has_mixed_word("5 kΩ, Tシャツ, COVID-19-дан", JA)
    assert not has_mixed_word("WhatsAppом и iPhoneа", russian)
    assert has_mixed_word("Мocква", russian)
    assert has_mixed_word("Бakı", AZ)


def test_shares_have_their_number_and_interval() -> None:
    texts = [
        text(beginning(0)),
        text(beginning(1), loop=True),
        text("Hə."),
        text(beginning(2).lower().translate(CYRILLIC)),
    ]

    figures = figures_of(texts, AZ)

    assert (figures["texts"], figures["own_language"]["num"]) == (4, 3)
    assert figures["own_language"]["value"] == pytest.approx(2 / 3)
    assert figures["second_script"]["value"] == figures["foreign_script"]["value"] == pytest.approx(1 / 3)
    assert figures["loops"]["value"] == 0.25
    # The language of a short text is unknown.
    assert (figures["sound"]["value"], figures["sound"]["num"]) == (pytest.approx(1 / 3), 3)
    low, high = figures["sound"]["interval"]
    assert low < 1 / 3 < high


def test_a_fault_counts_in_a_text_whose_language_nobody_can_tell() -> None:
    figures = figures_of([text(beginning(0)), text(""), text("1 2 1 2", loop=True), text("Hə.")], AZ)

    assert (figures["sound"]["value"], figures["sound"]["num"]) == (pytest.approx(1 / 3), 3)


def test_the_usual_script_is_the_second_one_where_a_pack_takes_another() -> None:
    cyrillic = load_language("sr")
    latin = replace(cyrillic, script="Latn")

    assert kind_of_text("Ministarstvo je saopštilo vest.", None, cyrillic) == "second_script"
    assert Writing(language=latin, heldout=[]).facts()["second_scripts"] == ["Cyrl"]


def test_heldout_text_is_as_long_as_a_continuation_where_no_spaces_part_words() -> None:
    asked: Any = SimpleNamespace(language=JA, heldout=[document("東京は日本の首都です。" * 1_000)])

    assert [len(each) for each in prepare(asked).heldout] == [HELDOUT_CHARS]


def writing_of(
    texts: Iterable[dict[str, Any]], train: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    writing = Writing(language=AZ, heldout=[beginning(5)])
    writing.words["adapted", "greedy"] = [written_words(each, AZ) for each in texts]
    find_contamination([document(REAL[0])], map(document, train), AZ, readers=[writing.reader()])
    tables: dict[str, dict[str, Any]] = {"adapted": {"writing": {"greedy": figures_of([], AZ)}}}
    writing.compare(tables)
    return tables["adapted"], writing.facts()


def test_words_of_no_training_text_are_counted_and_their_endings() -> None:
    made = [text("kitablardan kitablarda KİTAB zürmüt krivuşk 2024 x")]

    table, over_all = writing_of(made, ["kitab, evlardan, bağlarda.", "Kömüt!"])

    words, endings = (table["writing"]["greedy"][key] for key in ("unseen_words", "unseen_endings"))
    # `kitab` is known in capitals, and figures and single letters are no words.
    assert (words["value"], words["num"]) == (4 / 5, 5)
    assert endings["value"] == 1 / 5, "only -uşk ends no word of training, diacritics aside"
    assert over_all["heldout"]["unseen_words"]["value"] > 0.5
    assert over_all["second_scripts"] == ["Arab", "Cyrl"]


def test_cut_ends_of_a_continuation_are_no_words() -> None:
    cut = text("nin kitab kitabla", "continuation", ended=False)

    words, _ = written_words(cut, AZ)

    assert words.tolist() == unit_hashes("kitab", AZ, by_character=False).tolist()


def test_words_are_hashed_with_their_last_three_letters() -> None:
    words, endings = word_hashes("Kitabda, dəftərdə da", AZ)

    assert np.array_equal(words, unit_hashes("kitabda dəftərdə da", AZ, by_character=False))
    assert endings[0] != endings[1]
    assert (
        endings[0]
        == word_hashes("abda", AZ)[1][0]
        == word_hashes("bda", AZ)[1][0]
        != word_hashes("da", AZ)[1][0]
    )
    assert [each.tolist() for each in word_hashes("", AZ)] == [[], []]


def test_a_language_without_spaces_has_no_words_to_ask_for() -> None:
    writing = Writing(language=JA, heldout=["東京は日本の首都です。"])

    find_contamination([document("東京" * 30)], [document("大阪" * 30)], JA, readers=[writing.reader()])

    assert "unseen_words" not in writing.facts()["heldout"]


def test_gate_report_card_and_metrics_have_the_shares() -> None:
    table, over_all = writing_of([text(beginning(0))], REAL[:3])
    table["writing"]["greedy"] |= figures_of([text(beginning(0)), text("Шәһәрдә, шәһәрдә.")], AZ)
    scores = json.loads(json.dumps({"candidates": {"adapted": table}, "writing": over_all}))

    value = check_value(table)
    assert value
    assert (value.value, value.num) == (0.5, 2)
    view = next(
        each
        for views in view_results("measures", scores)
        for each in views
        if each.title == "What the models write"
    )
    assert view.table.columns == ("share of texts", "adapted", "held-out text")
    assert {row[0]: row[1:] for row in view.table.rows}["its other script"] == (
        "50.0 % (9 to 91)",
        "0 % (0 to 79)",
    )
    assert view.chart is not None
    assert [
        "Of its 2 greedy texts, 50.0 % are in its language and script, 0 % end in a loop, 0 % mix scripts within a word."
    ] in [*view_results("sentences", scores, "adapted")]
    assert any(
        each.get("writing_second_script") == 0.5
        for each in view_results("metrics", scores["candidates"]["adapted"])
    )


def test_a_share_of_no_texts_does_not_stand_in_a_card() -> None:
    scores = {
        "candidates": {
            "adapted": {"writing": {"greedy": figures_of([text("\N{REPLACEMENT CHARACTER}")], AZ)}}
        }
    }

    [[sentence]] = [
        each for each in view_results("sentences", json.loads(json.dumps(scores)), "adapted") if each
    ]

    assert sentence == "Of its 1 greedy texts, 0 % end in a loop, 0 % mix scripts within a word."
