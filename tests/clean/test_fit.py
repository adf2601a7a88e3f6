import json
import random
import re
from pathlib import Path

import pytest
import yaml

from anadil.clean.filters.judge import Judge
from anadil.cli.main import main
from anadil.language.fit import MOST_REPETITION, REPETITION, spare_good
from anadil.recipe.filter_rules import Rules
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import write_jsonl

az = load_language("az")


@pytest.fixture
def good_and_bad(tmp_path: Path) -> list[str]:
    good = texts(100)
    draw = random.Random(1)
    bad = [" ".join(draw.sample(text.split(), 70)) for text in good]
    files = write_jsonl(tmp_path / "good.jsonl", good), write_jsonl(tmp_path / "bad.jsonl", bad)
    return ["--good", str(files[0]), "--bad", str(files[1])]


def test_limits_that_drop_the_bad_and_keep_the_good_are_proposed(
    good_and_bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", "fit", *good_and_bad, "-o", "json"]) == 0

    limits = json.loads(capsys.readouterr().out)
    assert "max_broken_sentences" in [limit["key"] for limit in limits]
    assert all(limit["good_dropped"] <= 0.005 for limit in limits)
    assert sum(limit["bad_dropped_alone"] for limit in limits) > 0.9


def test_what_is_printed_is_part_of_a_recipe_with_drop_rates(
    good_and_bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["clean", "fit", *good_and_bad])

    printed = capsys.readouterr().out
    assert "% of the good documents" in printed
    rules = Recipe.model_validate(yaml.safe_load(printed)).clean.rules
    assert rules.max_broken_sentences == 0


def test_equal_documents_give_no_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = str(write_jsonl(tmp_path / "same.jsonl", texts(40)))

    assert main(["clean", "fit", "--good", same, "--bad", same]) == 0

    assert "No limit" in capsys.readouterr().out


def test_a_language_without_a_pack_is_refused(
    good_and_bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", "fit", *good_and_bad, "--language", "xx"]) == 2
    assert "az" in capsys.readouterr().err


def test_a_language_of_a_pack_of_the_user_is_fitted(
    good_and_bad: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qaa.yaml").write_text("code: qaa\nname: X\nscript: Latn\n", encoding="utf-8")

    assert main(["clean", "fit", *good_and_bad, "--language", str(tmp_path / "qaa.yaml")]) == 0
    assert "clean:" in capsys.readouterr().out


@pytest.mark.parametrize("share", ["7", "1", "-0.1", "nan"])
def test_a_share_beyond_all_documents_is_refused(
    share: str, good_and_bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["clean", "fit", *good_and_bad, "--max-good-loss", share])
    assert "is no share" in capsys.readouterr().err


def test_web_pages_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.html").write_text("<p>salam", encoding="utf-8")
    page = str(tmp_path / "a.html")

    assert main(["clean", "fit", "--good", page, "--bad", page]) == 3
    assert "clean them first" in capsys.readouterr().err


def test_limits_that_a_language_does_not_keep_are_loosened_until_its_own_text_does() -> None:
    good = [re.sub("[.!?]", "", text) for text in texts(100)]
    judge = Judge(az)
    statistics = judge.judge(good).statistics

    spared = spare_good(statistics, judge)

    assert set(judge.judge(good).reasons) == {"sentence_length"}
    assert set(Judge(az, Rules.model_validate(spared)).judge(good).reasons) == {None}


def test_a_few_lists_of_a_sample_do_not_let_pages_of_one_paragraph_through() -> None:
    lists = ["Məktəblər şagirdlərə yeni kitablar verir və onlar oxuyur.\n" * 30] * 3
    judge = Judge(az)
    statistics = judge.judge([*texts(97), *lists]).statistics

    spared = spare_good(statistics, judge)

    repetition = {key: limit for key, limit in spared.items() if key.startswith(REPETITION)}
    assert repetition
    assert max(repetition.values()) == MOST_REPETITION
    repeated = Judge(az, Rules.model_validate(repetition)).judge(lists)
    assert None not in repeated.reasons


def test_a_limit_that_would_drop_too_much_with_the_others_is_left_out(
    tmp_path: Path, good_and_bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def tables(number: int) -> list[str]:
        return [f"{text} {'17 ' * 40}".strip() for text in texts(number)]

    good = str(write_jsonl(tmp_path / "some_tables.jsonl", [*texts(100)[3:], *tables(3)]))
    bad = str(write_jsonl(tmp_path / "tables.jsonl", tables(100)))

    def proposed(most: str) -> list[str]:
        main(["clean", "fit", "--good", good, "--bad", bad, good_and_bad[3], "-o", "json",
              "--max-good-loss", "0.05", "--max-total-loss", most])  # fmt: skip
        return [limit["key"] for limit in json.loads(capsys.readouterr().out)]

    few, more = proposed("0.01"), proposed("0.1")
    assert few == ["max_broken_sentences"]
    assert set(more) > set(few)


def test_files_without_text_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blank = str(write_jsonl(tmp_path / "blank.jsonl", [" ", "\n"]))

    assert main(["clean", "fit", "--good", blank, "--bad", blank]) == 3
    assert "blank.jsonl: no document with text" in capsys.readouterr().err
