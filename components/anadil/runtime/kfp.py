"""What Kubeflow Pipelines passes to a container component, and what its launcher reads back."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.core.errors import RecipeError
from anadil.core.stages import Stage

PAGES = {"html": "report.html", "markdown": "report.md"}
"""KFP artifact -> file of the report that its page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorInput:
    """One start of a stage by Kubeflow Pipelines."""

    recipe: str
    """JSON text."""
    inputs: dict[str, str]
    """Artifact word -> URI."""
    outputs: dict[str, Any]
    """Where the launcher wants the results."""
    step: str
    """Name under which the step's status stands: the stage's, with the strategy for a pod of the trial's loop."""
    run: str = ""
    """Id of the pipeline run."""


def parse_executor_input(stage: Stage, text: str) -> ExecutorInput:
    """The executor input of a stage.

    Raises:
        RecipeError: It is not what Kubeflow Pipelines passes to this stage.
    """
    try:
        given = json.loads(text)
        values = given["inputs"]["parameterValues"]
        # A step that was left out gives no URI; a pipeline of an earlier release lacks the parameter.
        inputs = {
            word: str(values[word]) for word in stage.reads if word not in stage.optional or values.get(word)
        }
        recipe = _of_one_size(str(values["recipe"]), str(values.get("size", "")))
        strategy = str(values.get("strategy", ""))
        return ExecutorInput(
            recipe=_of_one_strategy(recipe, strategy),
            inputs=inputs,
            outputs=dict(given["outputs"]),
            step=f"{stage.name}-{strategy}" if strategy else stage.name,
            run=str(values.get("run", "")),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise RecipeError(f"--executor-input: not what Kubeflow Pipelines passes ({error!r})") from None


def _of_one_size(recipe: str, size: str) -> str:
    """The recipe of a pod of the parallel sweep, which trains one vocabulary size only."""
    if not size:
        return recipe
    data = json.loads(recipe)
    data["tokenizer"] = data.get("tokenizer", {}) | {"vocab_sizes": [int(size)]}
    return json.dumps(data)


def _of_one_strategy(recipe: str, strategy: str) -> str:
    """The recipe of a pod of the trial, which trains with one strategy's tokenizer only."""
    if not strategy:
        return recipe
    data = json.loads(recipe)
    data["tokenizer"]["trial"] |= {"strategies": [strategy]}
    return json.dumps(data)


def write_outputs(stage: Stage, outputs: dict[str, Any], uri: str, manifest: Manifest) -> None:
    """Write the parameter, the artifacts' metadata and the pages of a finished artifact."""
    path = Path(outputs["parameters"][stage.writes]["outputFile"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(uri, encoding="utf-8")
    artifacts = {}
    for name, listed in outputs.get("artifacts", {}).items():
        described = dict(listed["artifacts"][0])
        described["metadata"] = _metadata(name, uri, manifest)
        if name in PAGES:
            folder, _ = fetch(uri, stage.writes)
            page = _launcher_path(described["uri"])
            page.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / PAGES[name], page)
        artifacts[name] = {"artifacts": [described]}
    target = Path(outputs["outputFile"])
    target.parent.mkdir(parents=True, exist_ok=True)
    # Local runs know an output only from this file; the cluster's launcher merges it.
    written = {"parameterValues": {stage.writes: uri}, "artifacts": artifacts}
    target.write_text(json.dumps(written), encoding="utf-8")


def _launcher_path(uri: str) -> Path:
    """Where KFP's launcher takes the file of an artifact from: `s3://b/k` is `/s3/b/k`."""
    scheme, separator, rest = uri.partition("://")
    return Path(f"/{scheme.replace('gs', 'gcs')}/{rest}") if separator else Path(uri)


def _metadata(name: str, uri: str, manifest: Manifest) -> dict[str, float | int | str]:
    """Numbers for a Metrics artifact, where the artifact lives for any other."""
    if name == "metrics":
        numbers = {key: value for key, value in manifest.figures.items() if isinstance(value, int | float)}
        # NaN is no JSON: the launcher could not read the file, and the step would fail at its very end.
        return {key: value for key, value in numbers.items() if math.isfinite(value)}
    return {"uri": uri, "sha256": manifest.digest}
