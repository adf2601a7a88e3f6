import json
from pathlib import Path

import pytest

from anadil import artifact, cli
from anadil.errors import DataError, GateError, IntegrityError
from anadil.promote_command import check_promotable


def model(folder: Path, text: str = "weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(text)
    artifact.seal(folder, kind="model", origin={"stage": "pretrain"})
    return folder


def scores(folder: Path, of: Path, *, passed: bool = True) -> Path:
    folder.mkdir(parents=True)
    checks = [
        {"name": "fertility_ratio", "value": 0.5, "limit": 1.0, "passed": True, "enforced": True},
        {"name": "bits_per_byte_ratio", "value": 1.25, "limit": 1.0, "passed": passed, "enforced": True},
        {"name": "bits_per_byte_significant", "value": 0.1, "limit": 0, "passed": False, "enforced": False},
    ]
    (folder / "scores.json").write_text(json.dumps({"gate": {"passed": passed, "checks": checks}}))
    manifest = artifact.read_manifest(str(of))
    assert manifest is not None
    artifact.seal(folder, kind="scores", origin={"input model": manifest.digest})
    return folder


def test_a_model_that_passed_is_taken(tmp_path: Path) -> None:
    made = model(tmp_path / "model")

    manifest = check_promotable(str(scores(tmp_path / "scores", made)), str(made))

    assert manifest.kind == "model"


def test_a_model_that_did_not_pass_is_refused_with_the_checks_that_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model(tmp_path / "model")
    judged = scores(tmp_path / "scores", made, passed=False)

    with pytest.raises(GateError, match=r"bits_per_byte_ratio 1\.25 above 1; nothing was promoted"):
        check_promotable(str(judged), str(made))
    assert cli.main(["promote", "--scores", str(judged), "--model", str(made)]) == 6
    assert "significant" not in capsys.readouterr().err


def test_the_scores_of_another_model_promote_nothing(tmp_path: Path) -> None:
    judged = scores(tmp_path / "scores", model(tmp_path / "model"))

    with pytest.raises(IntegrityError, match="the scores are not of"):
        check_promotable(str(judged), str(model(tmp_path / "other", "other weights")))


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    judged = scores(tmp_path / "scores", model(tmp_path / "model"))

    with pytest.raises(DataError, match="no finished model or adapter"):
        check_promotable(str(judged), str(tmp_path))


def test_without_a_server_the_remedy_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = model(tmp_path / "model")
    judged = scores(tmp_path / "scores", made)

    assert cli.main(["promote", "--scores", str(judged), "--model", str(made)]) == 2
    assert "set it or MLFLOW_TRACKING_URI" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_alias_moves_and_equal_bytes_stay_one_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = model(tmp_path / "1"), model(tmp_path / "2", "more weights")
    registry = ["--set", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db", "--name", "az"]

    for made in (first, second, first):
        judged = tmp_path / f"scores-{made.name}"
        if not judged.exists():
            scores(judged, made)
        assert cli.main(["promote", "--scores", str(judged), "--model", str(made), *registry]) == 0

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert client.get_model_version_by_alias("az", "champion").source == str(first)
    assert len(client.search_model_versions("name = 'az'")) == 2
    assert "az version 1 is champion" in capsys.readouterr().out
