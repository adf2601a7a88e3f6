import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli import main

QUESTIONS = [f"Sual {number}?" for number in range(20)]


def answer(prompt: str, text: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "kind": "answer", "mode": "greedy", "text": text, **more}


@pytest.fixture
def scores(tmp_path: Path) -> str:
    """Twenty questions, one of them with equal answers, one that training has seen, and a continuation."""
    folder = tmp_path / "scores"
    folder.mkdir()
    seen = answer("Seen?", "x", seen=True)
    beginning = {"prompt": "Bakı", "kind": "continuation", "mode": "greedy", "text": "..."}
    good = [answer(prompt, f"{prompt} good", reference=f"{prompt} best") for prompt in QUESTIONS]
    bad = [answer(prompt, f"{prompt} bad") for prompt in QUESTIONS]
    good[0]["text"] = bad[0]["text"]
    made = {"finetuned": [*good, seen, beginning], "adapted": [*bad, seen, beginning]}
    candidates = {name: {"generations": texts} for name, texts in made.items()}
    (folder / "scores.json").write_text(json.dumps({"candidates": candidates}), encoding="utf-8")
    artifact.seal(folder, kind="scores", origin={})
    return str(folder)


@pytest.fixture
def judge(scores: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Export, let a function say `a`, `b`, `tie` or nothing of each row, import."""

    def judged(says: Callable[[dict[str, str]], str]) -> dict[str, Any]:
        assert main.main(["evaluate", "judge-export", "--scores", scores]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        lines = [json.dumps({"id": row["id"], "verdict": says(row)}) for row in rows if says(row)]
        path = tmp_path / "verdicts.jsonl"
        path.write_text("\n".join(lines) + "\n")
        command = ["evaluate", "judge-import", "--scores", scores, "--verdicts", str(path), "-o", "json"]
        assert main.main(command) == 0
        return dict(json.loads(capsys.readouterr().out))

    return judged


def test_each_pair_goes_out_in_both_orders_and_says_not_who_wrote_what(
    scores: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["evaluate", "judge-export", "--scores", scores]) == 0

    out = capsys.readouterr().out
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 2 * 19
    assert not re.search("adapted|finetuned|greedy", out)
    assert len({row["id"] for row in rows}) == len(rows)
    for prompt in QUESTIONS[1:]:
        own = [(row["answer_a"], row["answer_b"]) for row in rows if row["prompt"] == prompt]
        assert sorted(own) == [(f"{prompt} bad", f"{prompt} good"), (f"{prompt} good", f"{prompt} bad")]
        assert {row["reference"] for row in rows if row["prompt"] == prompt} == {f"{prompt} best"}
    # The order of the lines says nothing: it is that of the ids, which are hashes.
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)


def test_a_judge_that_sees_the_better_answer_finds_it_in_both_orders(judge: Callable[..., Any]) -> None:
    result = judge(lambda row: "a" if row["answer_a"].endswith("good") else "B ")

    assert (result["wins"], result["losses"], result["ties"], result["equal_answers"]) == (19, 0, 1, 1)
    assert result["win_rate"] == 19.5 / 20
    low, high = result["win_rate_interval"]
    assert 0.5 < low < result["win_rate"] < high <= 1
    assert (result["same_in_both_orders"], result["first_place_rate"], result["left_out"]) == (1, 0.5, 0)
    assert result["unsure"]


def test_a_judge_that_always_takes_the_first_is_found_out(judge: Callable[..., Any]) -> None:
    result = judge(lambda _: "a")

    assert result["win_rate"] == 0.5
    assert (result["first_place_rate"], result["same_in_both_orders"]) == (1, 0)
    assert result["first_place_interval"][0] > 0.8


@pytest.mark.parametrize("first", ["good", "bad"])
def test_a_question_that_was_judged_in_one_order_alone_is_left_out(
    judge: Callable[..., Any], first: str
) -> None:
    result = judge(lambda row: "" if row["answer_a"] == f"{QUESTIONS[1]} {first}" else "tie")

    assert (result["questions"], result["left_out"], result["first_place_rate"]) == (19, 1, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", r'verdicts\.jsonl:2: is not {"id"'),
        ('{"id": "ID", "verdict": "both"}', r"verdicts\.jsonl:2: verdict 'both' is not one of a, tie, b"),
        ('{"id": "1234", "verdict": "a"}', r"verdicts\.jsonl:2: id '1234' is not a row of these scores"),
        ('{"id": "ID", "verdict": "b"}', r"verdicts\.jsonl:2: id \w+ was judged 'a' before"),
    ],
)
def test_wrong_verdicts_are_refused_with_their_line(
    scores: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    main.main(["evaluate", "judge-export", "--scores", scores])
    rows = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    path = tmp_path / "verdicts.jsonl"
    path.write_text(f'{{"id": "{rows[0]["id"]}", "verdict": "a"}}\n{line.replace("ID", rows[0]["id"])}\n')
    command = ["evaluate", "judge-import", "--scores", scores, "--verdicts", str(path)]

    assert main.main(command) == 3
    assert re.search(message, capsys.readouterr().err)


def test_a_judge_that_has_seen_no_question_in_both_orders_gives_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    candidates = {name: {"generations": [answer("Sual?", name)]} for name in ("finetuned", "adapted")}
    (folder / "scores.json").write_text(json.dumps({"candidates": candidates}))
    artifact.seal(folder, kind="scores", origin={})

    command = ["evaluate", "judge-import", "--scores", str(folder), "--verdicts", "/dev/null"]
    assert main.main(command) == 3
    assert "no question was judged in both orders" in capsys.readouterr().err


def test_scores_without_such_answers_say_what_they_hold(
    scores: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "judge-export", "--scores", scores]

    assert main.main([*command, "--candidates", "finetuned", "champion"]) == 3
    assert "holds no candidate 'champion'; it holds finetuned, adapted" in capsys.readouterr().err
    assert main.main([*command, "--candidates", "adapted", "adapted"]) == 2
    assert main.main([*command, "--mode", "sampled"]) == 3
    assert "run evaluate again" in capsys.readouterr().err
