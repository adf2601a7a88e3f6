import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.errors import DataError, GateError, IntegrityError
from anadil.release.registry.gate_verdict import check_promotable
from tests.kit.promotable import model, scores


def test_a_model_that_passed_is_taken(tmp_path: Path) -> None:
    made = model(tmp_path / "model")

    found = check_promotable(str(scores(tmp_path / "scores", made)), str(made))

    assert (found.manifest.kind, found.candidate) == ("model", "adapted")


def test_a_model_that_did_not_pass_is_refused_with_the_checks_that_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model(tmp_path / "model")
    judged = scores(tmp_path / "scores", made, adapted=False)

    with pytest.raises(GateError, match=r"over the base.s is 1\.25, the limit 1; nothing was promoted"):
        check_promotable(str(judged), str(made))
    assert main.main(["promote", "--scores", str(judged), str(made)]) == 6
    assert "significant" not in capsys.readouterr().err


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
    """The same scores with another `scores.json`."""
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


def test_a_verdict_that_refuses_counts_without_a_reason_too(tmp_path: Path) -> None:
    made = model(tmp_path / "model")
    verdict = {"candidate": "adapted", "passed": False, "failed": ["adapted.loops"]}
    judged = scores(tmp_path / "scores", made)
    changed = rewrite(judged, lambda rows: rows["gate"].update(verdicts={"model": verdict}))

    with pytest.raises(GateError, match=r"the gate was not passed: adapted\.loops; nothing was promoted"):
        check_promotable(changed, str(made))


def test_scores_of_an_earlier_release_are_judged_by_their_checks(tmp_path: Path) -> None:
    made = model(tmp_path / "model")

    def forget(rows: dict[str, Any]) -> None:
        for check in rows["gate"]["checks"][:2]:
            del check["enforced"]

    assert check_promotable(rewrite(scores(tmp_path / "1", made), forget), str(made)).manifest.kind == "model"
    with pytest.raises(GateError, match=r"bits per byte over the base's is 1\.25, the limit 1;"):
        check_promotable(rewrite(scores(tmp_path / "2", made, adapted=False), forget), str(made))


@pytest.mark.parametrize("gate", [None, {"passed": True}, {"passed": True, "checks": [{"value": 1}]}])
def test_scores_without_a_verdict_say_what_to_do(tmp_path: Path, gate: object) -> None:
    made = model(tmp_path / "model")
    judged = rewrite(scores(tmp_path / "scores", made), lambda rows: rows.update(gate=gate))

    with pytest.raises(DataError, match="holds no verdict of the gate; run evaluate again"):
        check_promotable(judged, str(made))


def test_scores_without_checks_of_the_kind_promote_nothing(tmp_path: Path) -> None:
    adapter = model(tmp_path / "adapter", "lora", "adapter")
    judged = rewrite(scores(tmp_path / "scores", adapter), lambda rows: rows["gate"]["checks"].pop())

    with pytest.raises(DataError, match="holds no checks of the finetuned model; run evaluate again"):
        check_promotable(judged, str(adapter))


def test_the_scores_of_another_model_promote_nothing(tmp_path: Path) -> None:
    judged = scores(tmp_path / "scores", model(tmp_path / "model"))

    with pytest.raises(IntegrityError, match="the scores are not of"):
        check_promotable(str(judged), str(model(tmp_path / "other", "other weights")))


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    judged = scores(tmp_path / "scores", model(tmp_path / "model"))

    with pytest.raises(DataError, match="no finished model or merged or adapter"):
        check_promotable(str(judged), str(tmp_path))


def test_without_a_server_the_remedy_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(tmp_path / "model")
    judged = scores(tmp_path / "scores", made)

    assert main.main(["promote", "--scores", str(judged), str(made)]) == 2
    assert "set it or MLFLOW_TRACKING_URI" in capsys.readouterr().err


def test_a_model_that_was_changed_since_promotes_nothing(tmp_path: Path) -> None:
    made = model(tmp_path / "model")
    judged = scores(tmp_path / "scores", made)
    (made / "model.safetensors").write_text("other bytes")

    with pytest.raises(IntegrityError, match=r"model\.safetensors: differs from its manifest"):
        check_promotable(str(judged), str(made))


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
