import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.errors import DataError, GateError, IntegrityError
from anadil.release.registry.promotion import check_promotable
from tests.kit.promotable import model, scores

REFUSED = {"candidate": "adapted", "passed": False, "failed": ["adapted.loops"]}


def test_each_kind_is_judged_by_its_own_checks(tmp_path: Path) -> None:
    made, adapter = model(tmp_path / "model"), model(tmp_path / "adapter", "lora", "adapter")
    bad_adapter = str(scores(tmp_path / "1", made, adapter, finetuned=False))
    bad_model = str(scores(tmp_path / "2", made, adapter, adapted=False))

    assert check_promotable(bad_adapter, str(made)).manifest.kind == "model"
    with pytest.raises(
        GateError, match=r"over the adapted model's is 1\.21, the limit 1\.05; nothing was promoted"
    ):
        check_promotable(bad_adapter, str(adapter))
    assert check_promotable(bad_model, str(adapter)).manifest.kind == "adapter"
    with pytest.raises(GateError, match=r"over the base.s is 1\.25, the limit 1; nothing was promoted"):
        check_promotable(bad_model, str(made))


def rewrite(judged: Path, change: Callable[[dict[str, Any]], object]) -> str:
    rows = json.loads((judged / "scores.json").read_text())
    change(rows)
    (judged / "scores.json").write_text(json.dumps(rows))
    manifest = artifact.read_manifest(str(judged))
    assert manifest is not None
    artifact.seal(judged, kind="scores", origin=manifest.origin)
    return str(judged)


def test_the_verdict_of_the_kind_decides_and_says_what_may_be_promoted_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, adapter = model(tmp_path / "model"), model(tmp_path / "adapter", "lora", "adapter")
    verdicts = {"model": {"passed": True}, "adapter": {"passed": False}}
    answers = {
        "name": "finetuned.answers", "value": -0.1, "limit": 0, "passed": False, "enforced": True,
        "interval": [-0.3, 0.1],
    }  # fmt: skip
    ended = {"name": "finetuned.ended", "value": 0.2, "limit": 0.5, "passed": False, "enforced": True}

    def fail(rows: dict[str, Any]) -> None:
        rows["gate"].update(verdicts=verdicts, released="adapted")
        rows["gate"]["checks"] += [answers, ended | {"at_least": True}, ended | {"value": None}]

    judged = rewrite(scores(tmp_path / "scores", made, adapter), fail)

    assert main.main(["promote", "--scores", judged, str(adapter)]) == 6
    assert (
        "bits per byte of answers, less the adapted model's is −0.1 (−0.3000 to 0.1000), the limit 0; "
        "share of answers that end is 0.2, the limit at least 0.5; share of answers that end was not measured, the limit "
        "0.5; nothing was promoted; the adapted model passed: promote the model"
    ) in " ".join(capsys.readouterr().err.split())
    assert check_promotable(judged, str(made)).manifest.kind == "model"


def test_scores_are_found_beside_the_model_the_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model(tmp_path / "model/1")
    command = ["promote", str(made), "--name", "az", "--dry-run"]

    assert main.main(command) == 3
    assert f"no scores of it in {tmp_path}/scores; run evaluate, or name them by --scores" in (
        capsys.readouterr().err
    )
    scores(tmp_path / "scores/1", made, adapted=False)
    assert main.main(command) == 6
    scores(tmp_path / "scores/2", made)
    scores(tmp_path / "scores/3", model(tmp_path / "model/2", "other"))
    assert main.main(command) == 0
    out, err = capsys.readouterr()
    assert out == f"{made} would be az@champion\n"
    assert f"scores: {tmp_path}/scores/2" in err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--name", "a/b"],
            "'a/b' is not a name of a registered model: '/', ':' and '@' are not allowed; rename it",
        ),
        (["--rollback", "--as", "champion"], "--rollback: takes no alias"),
    ],
)
def test_words_that_mean_nothing_are_refused_before_anything_is_read(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["promote", str(tmp_path / "model"), *options]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("ratio", "answers", "beaten"),
    [
        ({"value": 0.9, "passed": True, "interval": [0.85, 0.95]}, None, True),
        ({"value": 0.9, "passed": True}, None, True),
        ({"value": 0.99, "passed": True, "interval": [0.9, 1.05]}, None, False),  # maybe better
        ({"value": 1.0, "passed": True, "interval": [1.0, 1.0]}, None, False),
        (
            {"value": 1.0, "passed": True, "interval": [0.9, 1.1]},
            {"value": -0.2, "passed": True, "interval": [-0.3, -0.1]},
            True,
        ),
        (
            {"value": 0.9, "passed": True, "interval": [0.8, 0.95]},
            {"value": 0.1, "passed": False, "interval": [0.0, 0.2], "enforced": False},
            False,
        ),
        (None, None, False),
    ],
)
def test_the_champion_is_beaten_where_a_comparison_is_sure_and_none_is_lost(
    ratio: dict[str, Any] | None, answers: dict[str, Any] | None, beaten: bool, tmp_path: Path
) -> None:
    made = model(tmp_path / "model")
    rows = {"bits_per_byte_to_champion": ratio, "answers_to_champion": answers}
    judged = scores(tmp_path / "scores", made)
    table = json.loads((judged / "scores.json").read_text())
    table["gate"]["checks"] += [
        {"name": f"adapted.{name}", "limit": 1.0, **row} for name, row in rows.items() if row
    ]
    (judged / "scores.json").write_text(json.dumps(table))
    manifest = artifact.read_manifest(str(judged))
    assert manifest is not None
    artifact.seal(judged, kind="scores", origin={**manifest.origin, "input champion": "c0"})

    found = check_promotable(str(judged), str(made))

    assert found.has_beaten("c0") is beaten
    assert not found.has_beaten("another champion")


@pytest.mark.parametrize(
    ("kind", "change", "error", "words"),
    [
        ("model", lambda rows: rows["gate"].update(verdicts={"model": REFUSED}), GateError, r"not passed: adapted\.loops;"),
        ("model", lambda rows: rows.update(gate=None), DataError, "holds no verdict of the gate"),
        ("model", lambda rows: rows["gate"].update(checks=[{"value": 1}]), DataError, "holds no verdict of the gate"),
        ("adapter", lambda rows: rows["gate"]["checks"].pop(), DataError, "holds no checks of the finetuned model"),
    ],
    ids=["verdict", "no gate", "no names", "no checks"],
)  # fmt: skip
def test_scores_that_release_nothing_are_refused(
    kind: str, change: Callable[[dict[str, Any]], object], error: type[Exception], words: str, tmp_path: Path
) -> None:
    made = model(tmp_path / "made", kind=kind)

    with pytest.raises(error, match=words):
        check_promotable(rewrite(scores(tmp_path / "scores", made), change), str(made))


def test_what_was_not_scored_is_not_promoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(tmp_path / "model")
    judged = str(scores(tmp_path / "scores", made))

    assert main.main(["promote", "--scores", judged, str(made)]) == 2
    assert "set it or MLFLOW_TRACKING_URI" in capsys.readouterr().err
    with pytest.raises(IntegrityError, match="the scores are not of"):
        check_promotable(judged, str(model(tmp_path / "other", "other weights")))
    with pytest.raises(DataError, match="no finished model or merged or adapter"):
        check_promotable(judged, str(tmp_path))
    (made / "model.safetensors").write_text("other bytes")
    with pytest.raises(IntegrityError, match=r"model\.safetensors: differs from its manifest"):
        check_promotable(judged, str(made))
