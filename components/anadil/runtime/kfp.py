"""Input of Kubeflow Pipelines for a container component, and the output that its launcher reads."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.artifacts import storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.prefetch import fetch
from anadil.core.errors import RecipeError
from anadil.core.stage import Stage
from anadil.core.strict_yaml import parse_yaml
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import Step, recipe_of_step
from anadil.runtime.job import kind_of

PAGES = {"html": "report.html", "markdown": "report.md"}
"""KFP artifact -> file of the report that its page shows."""
METRICS = "metrics"
DATASET = "system.Dataset"
DERIVED, STATE = "derived", "state"
"""Outputs of a retraining's first step: the place of the other steps' recipe, and whether there is text to learn."""
Scalar = float | int | str
VARIED = {
    "base": "base.model", "steps": "pretrain.phases.steps", "learning_rate": "pretrain.phases.lr",
    "vocabulary": "tokenizer.vocab_sizes", "inputs": "clean.inputs", "root": "storage.root",
}  # fmt: skip
"""Parameter of a pipeline beside the recipe -> the recipe key that it sets; empty, the recipe's value stays.

Kubeflow's pages list and compare runs by their parameters, and the recipe is one long text among them. A key of
`pretrain.phases` takes a list, a value for each phase, or one value, for the last phase.
"""


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
    """Name under which the step's status stands: the stage's, with the part for a pod of a parallel loop."""
    run: str = ""
    """Id of the pipeline run."""
    source: str = ""
    """Source of the recipe that the step works on."""


def parse_executor_input(stage: Stage, text: str) -> ExecutorInput:
    """The executor input of a stage."""
    try:
        given = json.loads(text)
        values = given["inputs"]["parameterValues"]
        size, source = (str(values.get(name, "")) for name in ("size", "source"))
        part = str(values.get(stage.pod.parts.one, "")) if stage.pod.parts else ""
        # The words follow from the whole recipe: that of the step would hold its own source alone.
        recipe = varied_recipe(values)
        whole = load_recipe(recipe)
        # A source that the recipe lacks has no words, and would be told of as a parameter that is missing.
        recipe_of_step(stage, whole, source)
        step = Step(stage=stage, source=source)
        # A step that was left out gives no URI; a pipeline of an earlier release lacks the parameter.
        inputs = {
            word: str(values[parameter_of(word)])
            for word in step.reads(whole)
            if values.get(parameter_of(word))
            or not (stage.input(kind_of(word)).optional or stage.input(kind_of(word)).how != "files")
        }
        return ExecutorInput(
            recipe=_of_one_part(stage, recipe, size, part),
            inputs=inputs,
            outputs=dict(given["outputs"]),
            step=f"{stage.name}-{part}" if part else step.name,
            run=str(values.get("run", "")),
            source=source,
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecipeError(f"--executor-input: not what Kubeflow Pipelines passes ({error!r})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInput:
    """One start of a step that makes no artifact, by Kubeflow Pipelines."""

    recipe: Recipe
    run: str
    """Id of the pipeline run."""
    values: Mapping[str, Any]
    """All parameters."""
    outputs: dict[str, Any]
    """Where the launcher wants the results."""


def parse_tool_input(text: str) -> ToolInput:
    """The executor input of a step that is no stage."""
    try:
        given = json.loads(text)
        values = given["inputs"]["parameterValues"]
        recipe, run = varied_recipe(values), str(values["run"])
        outputs = dict(given.get("outputs", {}))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecipeError(f"--executor-input: not what Kubeflow Pipelines passes ({error!r})") from None
    return ToolInput(recipe=load_recipe(recipe), run=run, values=values, outputs=outputs)


def parameter_of(word: str) -> str:
    """Return the name of the parameter that holds an artifact's URI: one of Python, so without the dot."""
    return word.replace(".", "_")


def varied_recipe(values: Mapping[str, Any]) -> str:
    """Return the recipe, JSON text, with the parameters of `VARIED` that a run sets."""
    given = {name: text for name in VARIED if (text := str(values.get(name) or "").strip())}
    recipe = str(values["recipe"])
    if not recipe.lstrip().startswith("{"):
        # A list of new files may be longer than 128 KiB, the most for one argument of a process (Linux).
        recipe = storage.store(recipe).read(recipe).decode()
    if not given:
        return recipe
    data = json.loads(recipe)
    for name, text in given.items():
        section, key, *of_phase = VARIED[name].split(".")
        table = data.setdefault(section, {})
        value = _value(name, text)
        if not of_phase:
            table[key] = value
            continue
        phases = table[key]
        each = value if isinstance(value, list) else [*(one[of_phase[0]] for one in phases[:-1]), value]
        if len(each) != len(phases):
            raise RecipeError(
                f"parameter {name}: {text!r} has {len(each)} values, and pretrain.phases has {len(phases)}; give one "
                "for each phase, or one number, for the last"
            )
        for phase, one in zip(phases, each, strict=True):
            phase[of_phase[0]] = one
    return json.dumps(data)


def _value(name: str, text: str) -> Any:
    if name in ("base", "root") or (name == "inputs" and not text.startswith("[")):
        return [text] if name == "inputs" else text
    value, _ = parse_yaml(text, f"parameter {name}")
    return [value] if name == "vocabulary" and isinstance(value, int) else value


def varied_values(recipe: Recipe) -> dict[str, str]:
    """Values of the parameters of `VARIED` in a recipe, so that a run's page shows them.

    Set again they leave the recipe as it is.
    """
    phases = recipe.pretrain.phases
    sizes = recipe.tokenizer.vocab_sizes
    return {
        "base": recipe.base.model,
        "steps": json.dumps([phase.steps for phase in phases]),
        "learning_rate": json.dumps([phase.lr for phase in phases]),
        "vocabulary": sizes if isinstance(sizes, str) else json.dumps(list(sizes)),
        "inputs": "" if recipe.sources else json.dumps(list(recipe.clean.inputs), ensure_ascii=False),
        "root": recipe.storage.root or "",
    }


def _of_one_part(stage: Stage, recipe: str, size: str, part: str) -> str:
    """Return the recipe of a pod of a parallel loop: of one vocabulary size, or one part of a training."""
    if not size and not part:
        return recipe
    data = json.loads(recipe)
    if size:
        data.setdefault("tokenizer", {})["vocab_sizes"] = [int(size)]
    if part and stage.pod.parts:
        section, table, key = stage.pod.parts.key.split(".")
        data[section][table] |= {key: [part]}
    return json.dumps(data)


def write_outputs(stage: Stage, outputs: dict[str, Any], uri: str, manifest: Manifest) -> None:
    """Write the parameter, the artifacts' metadata and files, and the pages of a finished artifact."""
    listed = {name: each["artifacts"][0] for name, each in outputs.get("artifacts", {}).items()}
    cards = {name: _metadata(name, described, uri, manifest) for name, described in listed.items()}
    pages = {name: fetch(uri, stage.writes)[0] / PAGES[name] for name in listed if name in PAGES}
    write_results(outputs, {stage.writes: uri}, cards, pages)


def write_results(
    outputs: dict[str, Any],
    values: Mapping[str, str],
    cards: Mapping[str, Mapping[str, Scalar]],
    pages: Mapping[str, Path],
) -> None:
    """Write the parameters of a step, and the metadata (`cards`) and the page of each of its artifacts."""
    for name, value in values.items():
        path = Path(outputs["parameters"][name]["outputFile"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value, encoding="utf-8")
    artifacts = {}
    for name, listed in outputs.get("artifacts", {}).items():
        described = dict(listed["artifacts"][0]) | {"metadata": dict(cards[name])}
        if name != METRICS:
            # The card that stands for the artifact in Kubeflow's lineage keeps the launcher's URI, and its file says
            # where the artifact lies. With the artifact's own URI the step would fail: what the launcher registers on
            # `s3://` must lie below the run's pipeline root (`uploadOutputArtifacts` and `KeyFromURI` in
            # kubeflow/pipelines, backend/src/v2/component/launcher_v2.go, backend/src/v2/objectstore/config.go). Newer
            # launchers fail a step that has written no file.
            file = _launcher_path(described["uri"])
            file.parent.mkdir(parents=True, exist_ok=True)
            if name in pages:
                shutil.copyfile(pages[name], file)
            else:
                text = json.dumps(described["metadata"], indent=2, ensure_ascii=False)
                file.write_text(f"{text}\n", encoding="utf-8")
        artifacts[name] = {"artifacts": [described]}
    target = Path(outputs["outputFile"])
    target.parent.mkdir(parents=True, exist_ok=True)
    # Local runs know an output only from this file; the cluster's launcher merges it.
    written = {"parameterValues": dict(values), "artifacts": artifacts}
    target.write_text(json.dumps(written), encoding="utf-8")


def _launcher_path(uri: str) -> Path:
    """Return the place where the launcher takes a file from: `s3://b/k` is `/s3/b/k`."""
    scheme, separator, rest = uri.partition("://")
    return Path(f"/{scheme.replace('gs', 'gcs')}/{rest}") if separator else Path(uri)


def _metadata(name: str, described: Mapping[str, Any], uri: str, manifest: Manifest) -> dict[str, Scalar]:
    """Numbers alone for a Metrics artifact; for another where it lies, its digest, counts and figures."""
    # NaN is no JSON: the launcher could not read the file, and the step would fail at its very end.
    figures = {
        key: value
        for key, value in manifest.figures.items()
        if isinstance(value, str) or math.isfinite(value)
    }
    if name == METRICS:
        # Newer launchers fail a step for a metric that is no number, and true is none.
        return {key: value for key, value in figures.items() if not isinstance(value, str | bool)}
    place: dict[str, Scalar] = {"uri": uri, "sha256": manifest.digest}
    if name in PAGES:
        return place
    is_dataset = described.get("type", {}).get("schemaTitle") == DATASET
    rows = {"rows": sum(manifest.records.values())} if is_dataset else {}
    records = {f"records_{key}": count for key, count in manifest.records.items()}
    return figures | rows | records | {"key": manifest.key} | place
