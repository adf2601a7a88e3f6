"""One container step for each stage: what it takes, what it gives, how its image is started.

Artifacts travel between steps as URIs, because Kubeflow Pipelines would copy an artifact
whole through each pod's scratch disk, model weights too. Everything else travels in one
JSON document, the executor input, so that a step has the same command in every runner.
"""

from inspect import Parameter, Signature
from typing import Any

from kfp import dsl

from anadil.core.stages import FLOW, LAUNCHABLE, STAGES, Stage

RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER
"""Id of the run, which the backend fills in: what a step leaves is found by it."""
EXECUTOR_INPUT = dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER
RECIPE = {"recipe": str}
METRICS = {"metrics": dsl.Output[dsl.Metrics]}
MORE: dict[str, dict[str, Any]] = {
    # The step waits for the pods of a parallel sweep; what they made is found by its content.
    "tokenizer": {"candidates": list[str]},
    # The same; a pod of the loop has a strategy, and the step that collects has none.
    "trial": {"strategy": str, "finalists": list[str]},
    # For Kubeflow's pages.
    "report": {"html": dsl.Output[dsl.HTML], "markdown": dsl.Output[dsl.Markdown]},
}
"""Stage -> parameters of its step beside what the table of stages says."""


def _step(name: str, parameters: dict[str, Any], image: str, *command: str) -> Any:
    """A component of kfp, which reads the name and the signature of a function and calls it once."""

    def function(*_: Any) -> dsl.ContainerSpec:
        # `resources` sets the image itself from the recipe.
        return dsl.ContainerSpec(
            image=f"anadil/{image}",
            command=["python", "-m", *command],
            args=["--executor-input", EXECUTOR_INPUT],
        )

    function.__name__ = name
    function.__signature__ = Signature(  # type: ignore[attr-defined]  # what inspect.signature looks for
        [Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for key, kind in parameters.items()]
    )
    return dsl.container_component(function)


def _parameters(stage: Stage) -> dict[str, Any]:
    inputs = RECIPE | {"run": str} | dict.fromkeys(stage.reads, str)
    return inputs | {stage.writes: dsl.OutputPath(str)} | METRICS | MORE.get(stage.name, {})


STEPS = {
    stage.name: _step(stage.name, _parameters(stage), stage.name, f"anadil.{stage.name}") for stage in FLOW
}
LAUNCHERS = {
    name: _step(name, _parameters(STAGES[name]), "tools", "anadil.launch", name) for name in LAUNCHABLE
}
"""Steps that start a stage as a job of its own and follow it; they have the names of the stages."""
candidate = _step(
    "candidate",
    # No `run`: how it ended is for the step `tokenizer` to tell, which uses what it made.
    RECIPE | {"corpus": str, "size": str, "tokenizer": dsl.OutputPath(str)} | METRICS,
    "tokenizer",
    "anadil.tokenizer",
)
"""Trains the tokenizers of one vocabulary size."""
finish = _step("finish", RECIPE | {"run": str}, "tools", "anadil.launch", "finish")
"""Exit handler: stops what a run has left behind and tells how it ended."""
