import json
from pathlib import Path
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]  # its stubs are a package of their own
from kfp.pipeline_spec import pipeline_spec_pb2

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.runtime import kfp


def outputs(folder: Path, *names: str) -> dict[str, Any]:
    """Where the launcher of Kubeflow Pipelines wants the results of a step."""
    kinds = {"metrics": "system.Metrics", "html": "system.HTML", "markdown": "system.Markdown"}
    listed = {
        name: {
            "artifacts": [
                {
                    "name": name,
                    "type": {"schemaTitle": kinds[name]},
                    "uri": str(folder / name),
                    "metadata": {},
                }
            ]
        }
        for name in names
    }
    return {
        "parameters": {"report": {"outputFile": str(folder / "parameter")}},
        "artifacts": listed,
        "outputFile": str(folder / "executor_output.json"),
    }


def test_the_launcher_reads_the_metrics_and_pages_of_a_step(tmp_path: Path) -> None:
    made = tmp_path / "report"
    made.mkdir()
    (made / "report.html").write_text("<h1>Hesabat</h1>", encoding="utf-8")
    (made / "report.md").write_text("# Hesabat", encoding="utf-8")
    figures = {"fertility": 1.59, "steps": 20, "gate": "passed", "loss": float("nan")}
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
