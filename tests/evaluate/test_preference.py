import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import DataError
from anadil.core.files import write_atomic
from anadil.core.measures import view_results
from anadil.core.stages import STAGES
from anadil.evaluate.measures import Asked
from anadil.evaluate.preference.measure import Votes, check_value, prepare
from anadil.evaluate.preference.votes import Key, KeyPair, preference, read_key, text_digest
from anadil.preflight.checks import report
from anadil.recipe.sections import Recipe
from anadil.runtime.check import PLAN, PlannedRun
from anadil.text.language import load_language
from anadil.text.metrics import clustered_share

PROMPTS = [f"Sual {number}?" for number in range(40)]
TRUTH = 0.7


def pair(prompt: str, votes: dict[str, Any], *, texts: tuple[str, str] = ("hə", "yox")) -> KeyPair:
    return KeyPair(
        id=prompt, prompt=prompt, texts=(text_digest(texts[0]), text_digest(texts[1])), left=0, votes=votes
    )


def opened(pairs: list[KeyPair], other: str = "adapted") -> Key:
    key = Key(between=("finetuned", other), scores="s3://b/scores", salt="", pairs=tuple(pairs))
    return replace(key, list=key.digest)


def tables(**texts: str) -> dict[str, dict[str, Any]]:
    return {
        name: {"generations": [{"prompt": each, "text": words} for each in PROMPTS]} for name, words in texts.items()
    }  # fmt: skip


def votes(won: int) -> list[KeyPair]:
    return [pair(each, {"Aynur": 0 if place < won else 1}) for place, each in enumerate(PROMPTS)]


@pytest.mark.parametrize(("judges", "repeats"), [(1, 0.0), (3, 0.0), (3, 0.5), (3, 1.0)])
def test_the_interval_holds_the_truth_in_19_of_20_draws(judges: int, repeats: float) -> None:
    generator = random.Random(0)

    def share_of_draw() -> list[float] | None:
        wins, decided = [], []
        for _ in range(40):
            first = generator.random() < TRUTH
            others = [
                first if generator.random() < repeats else generator.random() < TRUTH
                for _ in range(judges - 1)
            ]
            # One vote in ten is a tie.
            kept = [each for each in (first, *others) if generator.random() < 0.9]
            wins.append(sum(kept))
            decided.append(len(kept))
        return clustered_share(wins, decided)[1]

    ends = [share_of_draw() for _ in range(2_000)]

    assert sum(bool(each and each[0] <= TRUTH <= each[1]) for each in ends) >= 0.95 * len(ends)


def test_a_preference_counts_only_for_texts_that_are_still_written(caplog: pytest.LogCaptureFixture) -> None:
    scored = tables(finetuned="hə", adapted="yox")
    listed = votes(28)
    listed[39] = pair(PROMPTS[39], {"Aynur": 0}, texts=("hə", "bəlkə"))
    material = Votes(files=(opened(listed), opened(votes(40), "champion")))

    material.compare(scored)

    figures = scored["finetuned"]["preference"]["adapted"]
    assert (figures["pairs"], figures["wins"], figures["losses"]) == (39, 28, 11)
    for words in (
        "1 of 40 judged pairs do not count: finetuned and adapted",
        "40 of 40 judged pairs do not count: finetuned and champion",
    ):
        assert f"{words} do not write these texts in this run. Make a new page" in caplog.text
    assert material.facts() == {"pairs": 39, "changed": 41}


def test_gate_report_card_and_metrics_have_the_preference() -> None:
    scored = tables(finetuned="hə", adapted="yox")
    ties = [pair(each, {"Aynur": None if place < 4 else 0, "Rauf": 0}) for place, each in enumerate(PROMPTS)]

    Votes(files=(opened(ties),)).compare(scored)

    value = check_value(scored["finetuned"])
    assert value
    assert (value.value, value.num) == (1.0, 40)
    assert check_value(scored["adapted"]) is None
    scores = json.loads(json.dumps({"candidates": scored}))
    shown = next(
        each
        for view in view_results("measures", scores)
        for each in view
        if each.title == "Preference of judges"
    )
    assert [row[:6] for row in shown.table.rows] == [
        ("finetuned over adapted", "40", "80", "76", "0", "4"),
        ("finetuned over adapted, Aynur", "40", "40", "36", "0", "4"),
        ("finetuned over adapted, Rauf", "40", "40", "40", "0", "0"),
    ]
    assert shown.chart is not None
    sentence = next(text for texts in view_results("sentences", scores, "finetuned") for text in texts)
    assert sentence.startswith(
        "2 judges compared 40 pairs of texts blind. 4 of 80 votes chose none. 100 % of the others preferred"
    )
    assert {"preference_adapted": 1.0} in [*view_results("metrics", scores["candidates"]["finetuned"])]


def test_a_key_keeps_half_a_surrogate_pair(tmp_path: Path) -> None:
    key = opened([pair("Sual \ud800?", {"Aynur": 0})])
    write_atomic(tmp_path / "votes.json", key.json())

    assert read_key(tmp_path / "votes.json", "votes.json") == key


def test_only_ties_are_no_preference() -> None:
    figures = preference([pair(each, {"Aynur": None}) for each in PROMPTS])

    assert (figures["same"], figures["share"], figures["interval"]) == (40, None, None)
    scores = {"candidates": {"finetuned": {"preference": {"adapted": figures}}}}
    assert ["1 judge compared 40 pairs of texts blind. 40 of 40 votes chose none."] in [
        *view_results("sentences", scores, "finetuned")
    ]


def asked(*paths: Path) -> Asked:
    return Asked(
        recipe=Recipe(), language=load_language("az"), heldout=(), retained=(), candidates=(), train=list,
        side_files={"evaluate.votes": [*map(str, paths)]},
    )  # fmt: skip


def test_votes_are_read_once(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    for path in (first, second):
        path.write_text(opened(votes(30)).json(), encoding="utf-8")

    material = prepare(asked(first))
    assert material is not None
    assert material.files == (opened(votes(30)),)
    recipe = Recipe.model_validate({"evaluate": {"votes": [str(first)]}})
    planned = PlannedRun(by=PLAN, recipe=recipe, stages=[STAGES["evaluate"]])
    assert [each.detail for each in report(planned)] == ["40 votes"]
    with pytest.raises(
        DataError,
        match=r"b\.json: another file has votes on the same pairs \(\w+\)\. Open all of them by one",
    ):
        prepare(asked(first, second))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"votes\.json: Expecting property name.*`judge votes --out`"),
        ("[]", r"votes\.json: the whole: Input should be .*\(got '\[\]'\)\. Give the key\.json"),
        ('{"list": "0", "judge": "Aynur", "votes": []}', r"votes\.json: between: is missing"),
        (
            opened([pair("Sual?", {})]).json(),
            r"holds no vote\. Name a file of `anadil judge votes --out`",
        ),
    ],
)
def test_other_files_are_refused_with_the_command(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "votes.json").write_text(text, encoding="utf-8")

    with pytest.raises(DataError, match=message):
        prepare(asked(tmp_path / "votes.json"))
