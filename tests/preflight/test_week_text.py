"""Text of a retraining before it runs: the champion's by its tokens, new text by its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError
from anadil.core.stages import STAGES
from anadil.estimate.instances import machine
from anadil.plan.plan import build_plan, choose_layout, plan_as_file, request_for
from anadil.preflight.checks import CHECKS
from anadil.preflight.text_size import inspect_text, sizes_of_inputs, text_of
from anadil.recipe.sections import Recipe
from anadil.retrain.resolve import resolve
from anadil.runtime.check import RUN, PlannedRun
from tests.kit.retraining import add_text, make_week, two_sources, use_registry


def tokens(folder: Path, targets: int, num_bytes: int) -> str:
    folder.mkdir(parents=True)
    counts = {
        "targets": targets,
        "bytes": num_bytes,
        "documents": targets // 100,
        "sequences": targets // 400,
    }
    (folder / "tokens.json").write_text(json.dumps(counts))
    artifact.seal(folder, kind="tokens", origin={})
    return str(folder)


@pytest.fixture
def week(tmp_path: Path) -> Recipe:
    """`web` has a file of 1 MB that came since, `en` has none."""
    for name in ("old", "en"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n" * 7_000_000)
    (tmp_path / "new.jsonl").write_bytes(b"\n" * 1_000_000)
    # Five bytes a token, where the general estimate is three.
    artifacts = {
        "model": "model",
        "tokens.web": tokens(tmp_path / "tokens" / "web", 1_400_000, 7_000_000),
        "tokens.en": tokens(tmp_path / "tokens" / "en", 1_000_000, 4_000_000),
        "corpus.en": str(tmp_path / "corpus"),
    }
    champion = {"name": "anadil-az", "version": "1", "uri": "m", "digest": "0", "artifacts": artifacts}
    mix = {"web": 0.8, "en": 0.2}
    return Recipe.model_validate(
        {
            "language": "az",
            "base": {"model": "tiny"},
            "tokenizer": {"trial": {"steps": 50}},
            "sources": {
                "web": {"inputs": [str(tmp_path / "new.jsonl")]},
                "en": {"inputs": [str(tmp_path / "en.jsonl")], "language": "en"},
            },
            "pretrain": {
                "phases": [{"trains": "all", "steps": 9_000, "lr": 1e-3, "mix": mix}],
                "batch_size": 10,
                "sequence_length": 400,
                "start_from": "runs/step-00008100",
            },
            "retrain": {"champion": champion, "keeps": ["corpus.en"]},
        }
    )


def planned(recipe: Recipe, text: Any) -> Any:
    request = request_for("week", recipe, machine("p5.48xlarge"), 1, text)
    return build_plan(request, choose_layout(request))


def test_new_text_has_as_many_bytes_a_token_as_the_champion_s_and_a_source_without_new_files_has_one_part(
    week: Recipe,
) -> None:
    text = text_of(week)

    assert {name: (each.basis, each.tokens) for name, each in text.items()} == {
        "web": ("tokens", 1_400_000),
        "new_web": ("files", 200_000),
        "en": ("tokens", 1_000_000),
    }


def test_only_files_that_are_cleaned_cost_something(week: Recipe, tmp_path: Path) -> None:
    assert sizes_of_inputs(week) == {str(tmp_path / "new.jsonl"): 1_000_000}


def test_the_plan_of_a_week_counts_the_steps_that_its_text_makes(week: Recipe) -> None:
    plan = planned(week, text_of(week))

    # 500 sequences of new text are half of the tokens.
    assert [(each.trains, each.steps) for each in plan.phases] == [("all", 100)]
    assert plan.expected_cost is not None
    whole = planned(
        week.model_copy(
            update={"retrain": None, "pretrain": week.pretrain.model_copy(update={"start_from": None})}
        ),
        None,
    )
    assert plan.phases[0].tokens * 80 < whole.phases[0].tokens
    # Only new text is encoded.
    assert plan.as_json()["encode"]["text_bytes"] == 1_000_000
    shares = {each.source: (each.shares, round(each.epochs, 2)) for each in plan.text}
    assert shares == {
        "web": ((pytest.approx(0.3),), pytest.approx(0.09, abs=0.01)),
        "new_web": ((pytest.approx(0.5),), pytest.approx(1.0, abs=0.02)),
        "en": ((pytest.approx(0.2),), pytest.approx(0.08, abs=0.01)),
    }
    assert not any("trial" in each for each in plan.assumptions)


def test_the_doctor_says_how_often_each_part_is_read(week: Recipe) -> None:
    lines = [each.detail for each in inspect_text(week)]

    assert any(
        line.startswith(
            "new_web: about 200,000 tokens (by the sizes of its files, before cleaning) at share 0.5 for 100 steps is"
        )
        for line in lines
    )
    assert all(not each.remedy for each in inspect_text(week))


def test_without_new_text_there_is_no_week_and_where_it_is_not_known_no_plan_is_kept(
    week: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "new.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match="no text came since the champion"):
        list(inspect_text(week))

    assert plan_as_file(week, "week", here=True) == {}
    # Memory is that of the last phase, whatever its steps.
    assert [each.steps for each in planned(week, None).phases] == [9_000]


def test_files_of_a_source_without_new_text_may_have_been_put_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("az", "en"):
        add_text(tmp_path / folder, "1.jsonl", folder)
    recipe = two_sources(tmp_path)
    use_registry(monkeypatch).set_champion(make_week(recipe)["model"])
    add_text(tmp_path / "az", "2.jsonl")
    (tmp_path / "en/1.jsonl").unlink()
    derived = resolve(recipe).recipe
    planned = PlannedRun(by=RUN, recipe=derived, stages=(STAGES["clean"],))

    for check in CHECKS:
        if check.name in ("clean.inputs", "cost of clean"):
            assert [each.status for each in check.results(planned)] == ["passed"]
