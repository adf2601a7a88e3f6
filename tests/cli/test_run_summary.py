import json
import sys
from pathlib import Path

import pytest

from anadil.cli.runs.run import figure_lines, summary_lines
from anadil.recipe.sections import Recipe
from tests.kit import report_run

RECIPE = Recipe.model_validate({"base": {"model": "tiny"}})


@pytest.fixture
def scores(tmp_path: Path) -> str:
    folder = tmp_path / "scores" / "0a1b"
    folder.mkdir(parents=True)
    (folder / "scores.json").write_text(json.dumps(report_run.scores()), encoding="utf-8")
    return str(folder)


def test_an_adapted_model_that_is_released_is_tried_by_a_text_that_it_continues(tmp_path: Path) -> None:
    table = report_run.scores() | {"gate": {"passed": True, "released": "adapted", "checks": []}}
    (tmp_path / "scores.json").write_text(json.dumps(table), encoding="utf-8")

    lines = list(summary_lines(RECIPE, {"scores": str(tmp_path), "model": "/runs/model/2"}, ""))

    assert "try it: anadil chat /runs/model/2 --complete" in lines
    assert [line.partition(":")[0] for line in lines[-3:]] == ["beginning", "continued", "try it"]


def test_a_released_model_shows_an_answer_to_a_question_that_it_had_not_seen(tmp_path: Path) -> None:
    texts = [
        {"kind": "continuation", "mode": "greedy", "prompt": "Bakı", "text": " gözəldir"},
        {"kind": "answer", "mode": "greedy", "prompt": "Köhnə?", "text": "Bəli.", "seen": True},
        {"kind": "answer", "mode": "sampled", "prompt": "Yeni?", "text": "Bəlkə.", "seen": False},
        {"kind": "answer", "mode": "greedy", "prompt": "Yeni?", "text": "Xeyr.\n" + "uzun " * 40, "seen": False},
    ]  # fmt: skip
    table = report_run.scores()
    table["candidates"]["finetuned"]["generations"] = texts
    (tmp_path / "scores.json").write_text(json.dumps(table), encoding="utf-8")

    lines = list(summary_lines(RECIPE, {"scores": str(tmp_path), "adapter": "/runs/adapter/3"}, ""))

    asked = lines.index("question: Yeni?")
    assert lines[asked + 1].startswith("answer: Xeyr. uzun uzun")
    assert lines[asked + 2] == "try it: anadil chat /runs/adapter/3"
    assert max(map(len, lines)) <= 100


def test_a_model_that_is_not_released_can_be_asked_too_and_is_called_so(tmp_path: Path) -> None:
    verdicts = {
        "model": {"candidate": "adapted", "use": "continuing text", "passed": True, "failed": []},
        "adapter": {
            "candidate": "finetuned",
            "use": "answering",
            "passed": False,
            "failed": ["finetuned.loops"],
        },
    }
    gate = {"passed": True, "released": "adapted", "checks": [], "verdicts": verdicts}
    (tmp_path / "scores.json").write_text(json.dumps(report_run.scores() | {"gate": gate}), encoding="utf-8")
    uris = {"scores": str(tmp_path), "model": "/runs/model/2", "adapter": "/runs/adapter/3"}

    lines = list(summary_lines(RECIPE, uris, ""))

    assert "the finetuned model, not released: anadil chat /runs/adapter/3" in lines
    assert lines[-1] == "try it: anadil chat /runs/model/2 --complete"


def test_answers_of_several_files_are_told_by_file() -> None:
    scores = report_run.scores()
    seen = scores["candidates"]["finetuned"]["seen_questions"]
    seen["exact_by_file"] = {"questions": [25, 25], "chats": [0, 7]}

    rows = [line.split() for line in figure_lines(scores)]

    assert ["of", "chats", "\u2014", "\u2014", "0", "of", "7"] in rows
    assert ["of", "questions", "\u2014", "\u2014", "25", "of", "25"] in rows


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_it_tells_before_and_after_the_release_the_report_and_how_to_look_at_tracking(
    scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uris = {"scores": scores, "adapter": "/runs/adapter/3", "report": "/runs/report/77aa"}
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))

    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "sent.json").write_text('{"parent": "8a8c", "experiment": "1"}')

    lines = list(summary_lines(RECIPE, uris, "sqlite:////runs/a b/mlflow.db", spool))

    assert lines[0].split() == ["base", "adapted", "finetuned"]
    assert lines[1].split() == ["bits", "per", "byte", "2.913", "1.745", "1.802"]
    assert "trained questions: answered word for word" in lines[5]
    assert lines[6].startswith("Release the finetuned model for answering: all 4 deciding checks hold.")
    assert lines[-4:] == [
        "try it: anadil chat /runs/adapter/3",
        "report: /runs/report/77aa/report.html",
        "tracking: mlflow ui --port 5000 --backend-store-uri 'sqlite:////runs/a b/mlflow.db'",
        "  and then: http://127.0.0.1:5000/#/experiments/1/runs/8a8c?workflowType=machine_learning",
    ]
    assert len(lines) <= 17
    assert max(map(len, lines)) <= 100


def test_mlflow_of_an_environment_that_is_not_active_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    [line] = summary_lines(RECIPE, {}, "sqlite:////runs/mlflow.db")

    assert line.startswith(f"tracking: {Path(sys.executable).with_name('mlflow')} ui --port 5000 ")


def test_a_server_is_named_and_its_password_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://leyla:secret@mlflow.example")

    lines = list(summary_lines(RECIPE, {}, "sqlite:////runs/mlflow.db"))

    assert lines == ["tracking: https://leyla:***@mlflow.example"]
    off = Recipe.model_validate({"base": {"model": "tiny"}, "tracking": {"uri": "off"}})
    assert list(summary_lines(off, {}, "sqlite:////runs/mlflow.db")) == []
