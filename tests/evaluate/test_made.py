"""Items made of held-out text: what they are made of, who chooses right, and texts of which none can be made."""

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anadil.artifacts.text_files import text_rows
from anadil.evaluate.heldout import find_contamination
from anadil.evaluate.made import items as made_items
from anadil.evaluate.made import measure as made_measure
from anadil.evaluate.made.items import KINDS, Item, Vocabulary, make_items, translation_items
from anadil.evaluate.made.measure import ALL, Made, check_value, prepare
from anadil.evaluate.made.view import measures, metrics, sentences
from anadil.evaluate.measures import Asked
from anadil.evaluate.models import open_model
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document
from anadil.text.language import load_language
from anadil.text.sentences import sentence_spans, word_spans

from .conftest import save_model

BUILT_IN = Path(made_items.__file__).parents[2] / "builtin/az/generated.jsonl"
AZ, JA = load_language("az"), load_language("ja")
NOUNS = [
    "会議",
    "計画",
    "研究",
    "調査",
    "発表",
    "議論",
    "記録",
    "報告",
    "準備",
    "教育",
    "技術",
    "環境",
    "経済",
    "社会",
    "文化",
    "歴史",
]
VERBS = ["行います", "始めます", "続けます", "終えます", "調べます", "決めます", "考えます", "伝えます"]


def az_texts() -> list[str]:
    return [str(row["text"]) for _, row in text_rows(BUILT_IN, "generated", "text") if isinstance(row, dict)]


def ja_texts(num: int) -> list[str]:
    draw = random.Random(0)
    nouns = ["".join(pair) for pair in itertools.permutations(NOUNS, 2)]
    sentence = "私たちは{}と{}の{}を{}。"
    return [
        "".join(sentence.format(*draw.sample(nouns, 3), draw.choice(VERBS)) for _ in range(5))
        for _ in range(num)
    ]


def documents(texts: Sequence[str]) -> list[Document]:
    return [Document(id=f"d{n}", text=text, source="", url="", lang="az") for n, text in enumerate(texts)]


@pytest.fixture(scope="module")
def split() -> tuple[list[str], list[Document]]:
    texts = az_texts()
    return texts[:-150], documents(texts[-150:])


@pytest.fixture(scope="module")
def vocabulary(split: tuple[list[str], list[Document]]) -> Vocabulary:
    return Vocabulary.of(split[0], AZ)


@pytest.fixture(scope="module")
def kinds(split: tuple[list[str], list[Document]], vocabulary: Vocabulary) -> dict[str, tuple[Item, ...]]:
    return make_items(split[1], vocabulary, 120, seed=0)


class Reader:
    """A model whose nats of a choice are told by a function of context and choice."""

    def __init__(self, folder: Path, nats: Any, name: str = "base") -> None:
        if not folder.exists():
            save_model(folder)
        self.candidate = dataclasses.replace(open_model(name, folder))
        self.nats = nats

    def answer_nats(self, prompts: Sequence[Any], answers: Sequence[Any]) -> Any:
        read = self.candidate.tokenizer.decode
        pairs = [
            (read(list(prompt[1:])), read(list(answer)))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        return np.array([self.nats(*pair) * len(pair[1].encode()) for pair in pairs])


def knower(texts: Sequence[str]) -> Any:
    """The text's own continuation is likelier than any other."""
    whole = "\n\n\n".join(texts)
    return lambda context, choice: 1.0 if context + choice in whole else 2.0


def guesser(context: str, choice: str) -> float:
    return random.Random(context + choice).random()


def test_sentences_and_words_are_the_languages_own() -> None:
    text = "Mən 3.5 faiz «aldım». Sonra, məs. sabah, getdim!\nBaşlıq"
    spans = [text[a:b] for a, b in sentence_spans(text, AZ)]
    japanese = "これはペンです。「はい。」と言った"

    assert spans == ["Mən 3.5 faiz «aldım».", "Sonra, məs. sabah, getdim!", "Başlıq"]
    assert [text[a:b] for a, b in word_spans(text[: len(spans[0])], AZ)] == ["Mən", "faiz", "aldım"]
    assert [japanese[a:b] for a, b in sentence_spans(japanese, JA)] == [
        "これはペンです。",
        "「はい。」",
        "と言った",
    ]


def test_the_first_choice_is_the_texts_own(
    kinds: dict[str, tuple[Item, ...]], split: tuple[list[str], list[Document]]
) -> None:
    texts = {document.id: document.text for document in split[1]}
    for kind, items in kinds.items():
        assert len(items) > 50, kind
        for item in items:
            assert item.contexts[0] + item.choices[0] in texts[item.document]
            assert len(set(zip(itertools.cycle(item.contexts), item.choices, strict=False))) == len(
                item.choices
            )


def test_words_of_a_cloze_are_as_frequent_and_end_alike(
    kinds: dict[str, tuple[Item, ...]], vocabulary: Vocabulary
) -> None:
    for item in kinds["cloze"]:
        words = [choice[slice(*word_spans(choice, AZ)[0])] for choice in item.choices]
        assert (
            len({(vocabulary.counts[word].bit_length(), word[-2:], word[0].isupper()) for word in words}) == 1
        )
        assert len(set(words)) == len(words)


def test_another_ending_is_of_the_same_word_and_stands_elsewhere(
    kinds: dict[str, tuple[Item, ...]], vocabulary: Vocabulary
) -> None:
    for item in kinds["ending"]:
        right, wrong = (choice[slice(*word_spans(choice, AZ)[0])] for choice in item.choices)
        stem = next(cut for cut in range(len(right) + 1) if right[: cut + 1] != wrong[: cut + 1])
        assert stem >= 3
        assert right != wrong
        assert vocabulary.counts[wrong]


def test_a_changed_order_has_the_same_words(
    kinds: dict[str, tuple[Item, ...]], vocabulary: Vocabulary
) -> None:
    for item in kinds["word_order"]:
        right, wrong = ([choice[a:b] for a, b in word_spans(choice, AZ)] for choice in item.choices)
        assert sorted(right) == sorted(wrong)
        assert tuple(wrong[:2]) not in vocabulary.pairs
    for item in kinds["continuation"]:
        assert item.choices[0] == item.choices[1]
        assert item.contexts[0] != item.contexts[1]


def test_items_are_the_same_whatever_the_order_of_documents(
    kinds: dict[str, tuple[Item, ...]], split: tuple[list[str], list[Document]], vocabulary: Vocabulary
) -> None:
    again = make_items(split[1][::-1], vocabulary, 120, seed=0)
    other = make_items(split[1], vocabulary, 120, seed=1)

    assert {kind: {item.choices for item in items} for kind, items in again.items()} == {
        kind: {item.choices for item in items} for kind, items in kinds.items()
    }
    assert other["cloze"] != kinds["cloze"]


def test_most_items_stay_as_the_training_text_grows() -> None:
    texts = az_texts()
    before, after = (
        make_items(documents(texts[-100:]), Vocabulary.of(texts[:num], AZ), 200, seed=0) for num in (120, 125)
    )

    assert len({*before["cloze"]} & {*after["cloze"]}) > 120


def test_a_reader_of_the_text_is_right_and_a_guesser_at_chance(
    kinds: dict[str, tuple[Item, ...]], split: tuple[list[str], list[Document]], tmp_path: Path
) -> None:
    knows = Reader(tmp_path / "model", knower([document.text for document in split[1]]), "adapted")
    guesses = Reader(tmp_path / "model", guesser)
    made = Made(kinds=kinds, seed=0)
    tables = {"base": {"made": made.measure(guesses, {})}, "adapted": {"made": made.measure(knows, {})}}  # type: ignore[arg-type]
    made.compare(tables)
    base, adapted = tables["base"]["made"], tables["adapted"]["made"]

    for kind in kinds:
        assert base[kind]["interval"][0] - 0.05 < base[kind]["chance"] < base[kind]["interval"][1] + 0.05
        assert (adapted[kind]["accuracy"], adapted[kind]["reason"]) == (1, "")
    change = adapted[ALL]["differences"]["base"]["accuracy"]
    assert change["low"] > 0.3
    assert adapted[ALL]["num"] == sum(map(len, kinds.values()))
    value = check_value(tables["adapted"])
    assert value
    assert value.value
    assert value.interval
    assert value.interval[0] > 0
    scores = json.loads(json.dumps({"candidates": tables}))
    assert "lead over the base" in sentences(scores, "adapted")[0]
    view = measures(scores)[0]
    assert view.chart
    assert len(view.table.rows) == 2 * (len(kinds) + 1)
    assert metrics(scores["candidates"]["adapted"])["made_cloze"] == 1


@pytest.mark.parametrize("nats", [guesser, lambda _, __: 1.0])
def test_guessers_decide_nothing(nats: Any, kinds: dict[str, tuple[Item, ...]], tmp_path: Path) -> None:
    made = Made(kinds={"cloze": kinds["cloze"]}, seed=0)
    tables = {"base": {"made": made.measure(Reader(tmp_path / "model", nats), {})}}  # type: ignore[arg-type]
    made.compare(tables)

    assert tables["base"]["made"][ALL]["reason"] == "no kind decides"
    assert tables["base"]["made"]["cloze"]["reason"] == "no model is above chance"
    assert check_value(tables["base"]) is None
    assert sentences({"candidates": tables}, "base") == []


def asked(texts: Sequence[str], train: Sequence[str], language: str = "az", **evaluate: Any) -> Asked:
    return Asked(
        recipe=Recipe.model_validate({"evaluate": evaluate}), language=load_language(language), heldout=documents(texts),
        retained=(), train=lambda: [dataclasses.replace(each, lang=language) for each in documents(train)],
        candidates=(), side_files={},
    )  # fmt: skip


@pytest.mark.parametrize(
    "texts",
    [
        ["12 345 678. 9 10 11 12 13 14."],
        ["Bəli."],
        [""],
        ["。。。", "!!!"],
    ],
)
def test_texts_without_items_are_no_error(texts: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert prepare(asked(texts, [])) is None
    assert "no sentences that items can be made of" in caplog.text


def test_the_log_says_how_much_training_text_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    texts = az_texts()
    run = asked(texts[:5], texts[5:])
    prepare(run)
    monkeypatch.setattr(made_items, "SAMPLE_BYTES", 2_000)
    monkeypatch.setattr(made_measure, "SAMPLE_BYTES", 2_000)
    prepare(run)
    find_contamination(run.heldout, run.train(), AZ)

    whole = sum(len(text.encode()) for text in texts[5:])
    first, second = re.findall(r"words are counted in (.*) bytes", caplog.text)
    assert first == f"all {whole:,}"
    assert 2_000 <= int(second.removeprefix("the first ").replace(",", "")) < whole
    assert f"training text: {whole:,} bytes in {len(texts) - 5} documents" in caplog.text


def test_a_recipe_may_want_none(split: tuple[list[str], list[Document]]) -> None:
    assert prepare(asked(split[0], split[0], made_items=0)) is None


@pytest.mark.parametrize("num", [1, 20])
def test_few_documents_decide_nothing(num: int, tmp_path: Path) -> None:
    texts = az_texts()
    made = prepare(asked(texts[:num], texts[num:]))
    assert made is not None
    knows = Reader(tmp_path / "model", knower(texts[:num]))
    tables = {"base": {"made": made.measure(knows, {})}}  # type: ignore[arg-type]
    made.compare(tables)
    scores = json.loads(json.dumps({"candidates": tables}))

    for kind in made.kinds:
        entry = tables["base"]["made"][kind]
        assert not entry["decides"]
        assert entry["reason"].endswith("documents; needs 100")
    assert not made.kinds["continuation"] or num > 1
    assert "needs 100" in str(measures(scores)[0].table.rows)


def test_a_language_without_blanks_has_items() -> None:
    texts = ja_texts(300)
    items = make_items(documents(texts[:120]), Vocabulary.of(texts[120:], JA), 100, seed=0)

    assert {kind for kind, listed in items.items() if len(listed) == 100} >= {
        "cloze",
        "ending",
        "word_order",
        "continuation",
    }
    assert not any(choice.startswith(" ") for item in items["cloze"] for choice in item.choices)
    assert all(len(choice) == len(item.choices[0]) for item in items["cloze"] for choice in item.choices)


def test_a_language_in_two_scripts_has_no_cloze_across_them() -> None:
    cyrillic = str.maketrans("abdeilmnorstuyzqk", "абдеилмнорстуйзгк")
    texts = az_texts()
    mixed = [text.translate(cyrillic) if number % 2 else text for number, text in enumerate(texts)]
    items = make_items(documents(mixed[-100:]), Vocabulary.of(mixed[:-100], AZ), 100, seed=0)

    for item in items["cloze"]:
        words = [choice[slice(*word_spans(choice, AZ)[0])] for choice in item.choices]
        assert len({word[-2:] for word in words}) == 1


def test_translations_are_among_near_ones(caplog: pytest.LogCaptureFixture) -> None:
    texts = [text.split(".")[0] + "." for text in az_texts()[:60]]
    pairs = [f"English: Sentence {number}.\nAzerbaijani: {text}" for number, text in enumerate(texts)]
    turned = ["\n".join(reversed(pair.split("\n"))) for pair in pairs]
    retained = [dataclasses.replace(each, lang="web") for each in documents([*pairs, *turned])]
    recipe = SimpleNamespace(
        evaluate=SimpleNamespace(made_items=30), seed=0, sources={"web": SimpleNamespace(pairs=("en", "az"))}
    )
    question = dataclasses.replace(asked([], []), recipe=recipe, retained=retained)  # type: ignore[arg-type]
    made = prepare(question)
    assert made is not None
    without = prepare(
        dataclasses.replace(question, heldout=documents(az_texts()[:30]), retained=retained[:2])
    )

    assert len(made.kinds["translation"]) == 30
    for item in made.kinds["translation"]:
        assert item.contexts[0].endswith("\nAzerbaijani:")
        assert f"{item.contexts[0]}{item.choices[0]}" in pairs
        assert len(set(item.choices)) == 4
    assert without is not None
    assert without.kinds["translation"] == ()
    assert "no translations, since web hold out 2 pairs" in caplog.text


def test_a_pair_more_moves_no_other_translation() -> None:
    texts = [text.split(".")[0] for text in az_texts()[:20]]
    pairs = [f"English: Sentence {number}.\nAzerbaijani: {text}" for number, text in enumerate(texts)]
    recipe = SimpleNamespace(seed=0, sources={"web": SimpleNamespace(pairs=("en", "az"))})

    def sources_of(some: Sequence[str]) -> list[str]:
        retained = [dataclasses.replace(each, lang="web") for each in documents(some)]
        question = dataclasses.replace(asked([], []), recipe=recipe, retained=retained)  # type: ignore[arg-type]
        return [item.document for item in translation_items(question, 500)["translation"]]

    assert len(sources_of(pairs)) == 20
    assert [each for each in sources_of(pairs) if each in sources_of(pairs[1:])] == sources_of(pairs[1:])


def test_each_kind_has_a_name_on_pages() -> None:
    from anadil.evaluate.made.view import KINDS as NAMES

    assert {*NAMES} == {*KINDS, "translation", ALL}
