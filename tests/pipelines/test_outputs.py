import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]  # its stubs are a package of their own
from kfp.pipeline_spec import pipeline_spec_pb2

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.runtime import kfp


def outputs(folder: Path, *names: str, root: str = "") -> dict[str, Any]:
    """Where the launcher of Kubeflow Pipelines wants the results of a step."""
    kinds = {
        "metrics": "system.Metrics", "html": "system.HTML", "markdown": "system.Markdown",
        "corpus_artifact": "system.Dataset", "model_artifact": "system.Model",
    }  # fmt: skip
    listed = {}
    for name in names:
        kind, uri = {"schemaTitle": kinds[name]}, f"{root or folder}/{name}"
        listed[name] = {"artifacts": [{"name": name, "type": kind, "uri": uri, "metadata": {}}]}
    parameters = {
        stage.writes: {"outputFile": str(folder / f"{stage.name}.uri")} for stage in STAGES.values()
    }
    output = str(folder / "executor_output.json")
    return {"parameters": parameters, "artifacts": listed, "outputFile": output}


def test_the_launcher_reads_the_metrics_and_pages_of_a_step(tmp_path: Path) -> None:
    made = tmp_path / "report"
    made.mkdir()
    (made / "report.html").write_text("<h1>Hesabat</h1>", encoding="utf-8")
    (made / "report.md").write_text("# Hesabat", encoding="utf-8")
    figures = {"fertility": 1.59, "steps": 20, "gate": "passed", "whole": True, "loss": float("nan")}
    manifest = artifact.seal(made, kind="report", origin={}, figures=figures)

    asked = outputs(tmp_path / "out", "metrics", "html", "markdown")
    kfp.write_outputs(STAGES["report"], asked, str(made), manifest)

    text = (tmp_path / "out" / "executor_output.json").read_text(encoding="utf-8")
    # Both are read as the launcher reads them: strictly.
    read = json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput())
    [metrics] = read.artifacts["metrics"].artifacts
    assert json_format.MessageToDict(metrics.metadata) == {"fertility": 1.59, "steps": 20}
    assert metrics.type.schema_title == "system.Metrics"
    assert read.parameter_values["report"].string_value == str(made)
    assert (tmp_path / "out" / "html").read_text(encoding="utf-8") == "<h1>Hesabat</h1>"
    assert (tmp_path / "out" / "markdown").read_text(encoding="utf-8") == "# Hesabat"
    assert json.loads(text)["artifacts"]["html"]["artifacts"][0]["metadata"]["uri"] == str(made)


@pytest.mark.parametrize(
    ("stage", "name", "expected"),
    [
        ("clean", "corpus_artifact", {"rows": 363, "records_train": 328, "records_heldout": 35}),
        ("pretrain", "model_artifact", {"records_train": 328, "records_heldout": 35}),
    ],
)
def test_a_step_registers_where_its_artifact_lies_and_copies_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, name: str, expected: dict[str, Any]
) -> None:
    """What KFP's launcher does with a URI that is not below the run's root, and without a file: the step fails."""
    monkeypatch.setattr(kfp, "_launcher_path", lambda uri: tmp_path / uri.replace("://", "/"))
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_bytes(b"w" * 100_000)
    figures = {"loss": 3.5, "gate": "passed", "ratio": float("inf")}
    manifest = artifact.seal(
        made, kind=STAGES[stage].writes, origin={}, figures=figures, records={"train": 328, "heldout": 35}
    )
    root = "s3://kubeflow/v2/artifacts/anadil-adapt/1234"

    asked = outputs(tmp_path / "out", name, root=root)
    kfp.write_outputs(STAGES[stage], asked, "s3://team/runs/made", manifest)

    text = (tmp_path / "out" / "executor_output.json").read_text(encoding="utf-8")
    [card] = json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput()).artifacts[name].artifacts
    metadata = json_format.MessageToDict(card.metadata)
    assert card.uri == f"{root}/{name}"
    assert metadata == {
        "uri": "s3://team/runs/made", "sha256": manifest.digest, "key": manifest.key, "loss": 3.5, "gate": "passed",
        **expected,
    }  # fmt: skip
    uploaded = [path for path in (tmp_path / "s3").rglob("*") if path.is_file()]
    assert uploaded == [tmp_path / "s3" / "kubeflow" / "v2" / "artifacts" / "anadil-adapt" / "1234" / name]
    assert json.loads(uploaded[0].read_text(encoding="utf-8")) == metadata
