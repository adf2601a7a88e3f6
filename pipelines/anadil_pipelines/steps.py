"""Container step of each stage: what it takes, what it gives, how its image is started.

Artifacts travel between steps as URIs, because Kubeflow Pipelines would copy an artifact
whole through each pod's scratch disk, model weights too. Beside each URI goes an artifact of
Kubeflow's own, a card of a few lines, so that its pages know what was made of what. Everything
travels in one JSON document, the executor input, so that a step has the same command in every runner.
"""

from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Any

from kfp import dsl

from anadil.core.stages import ENGINE_IMAGES, STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import RETRAIN, Step, recipe_of_step
from anadil.runtime.kfp import DERIVED, STATE, VARIED, parameter_of

RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER
"""Id of the run, which the backend fills in: what a step leaves is found by it."""
EXECUTOR_INPUT = dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER
RECIPE: dict[str, Any] = {"recipe": str} | dict.fromkeys(VARIED, str)
NEW = "new"
"""Output `state` of a retraining's first step where there is text to learn."""
TYPES = {
    "written": dsl.Dataset,
    "corpus": dsl.Dataset,
    "tokens": dsl.Dataset,
    "model": dsl.Model,
    "merged": dsl.Model,
    "adapter": dsl.Model,
}
"""Artifact word -> its type in Kubeflow's lineage; any other is a `dsl.Artifact`."""
OF_CHAMPION = {"champion": dsl.Model, "earlier": dsl.Dataset}
"""Cards of a retraining's first step: the champion, and the corpora that it has learnt."""
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


def _step(name: str, parameters: dict[str, Any], image: str, *command: str, reads: Sequence[str] = ()) -> Any:
    """Return a component of kfp, which reads the name and the signature of a function and calls it once."""
    types = TYPES | OF_CHAMPION
    cards = {card(word): dsl.Input[types.get(word.partition("_")[0], dsl.Artifact)] for word in reads}
    parameters = parameters | cards
    # A stage may have been left out, and a pipeline's caller may vary nothing.
    defaults = dict.fromkeys(VARIED, "") | dict.fromkeys(cards)

    def function(*_: Any) -> dsl.ContainerSpec:
        # `resources` sets the image itself from the recipe.
        return dsl.ContainerSpec(
            image=f"anadil/{image}",
            command=["python", "-m", *command],
            args=["--executor-input", EXECUTOR_INPUT],
        )

    function.__name__ = name
    give_signature(function, parameters, defaults)
    return dsl.container_component(function)


def give_signature(function: Any, parameters: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Give a function the parameters that kfp is to read: name -> annotation, and the defaults of some."""
    function.__signature__ = Signature(
        [
            Parameter(
                key, Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(key, Parameter.empty)
            )
            for key, kind in parameters.items()
        ]
    )


def card(word: str) -> str:
    """Return the name of an artifact's card in Kubeflow's lineage."""
    return f"{word}_artifact"


def _outputs(word: str) -> dict[str, Any]:
    """Return the outputs of a step: the artifact's URI, its card, the figures."""
    return {word: dsl.OutputPath(str), card(word): dsl.Output[TYPES.get(word, dsl.Artifact)]} | METRICS


def component(step: Step, recipe: Recipe, of_champion: Sequence[str] = (), *, launched: bool = False) -> Any:
    """Return the component of a step of a run.

    Args:
        step: The step.
        recipe: The whole recipe.
        of_champion: Those of `OF_CHAMPION` that it takes.
        launched: It starts the stage as a job of its own and follows it.
    """
    stage = step.stage
    words = [parameter_of(word) for word in step.reads_in_run(recipe)]
    parameters = RECIPE | {"run": str} | dict.fromkeys(words, str)
    parameters |= ({"source": str} if step.source else {}) | _outputs(stage.writes) | MORE.get(stage.name, {})
    words += of_champion
    if launched:
        return _step(step.name, parameters, "tools", "anadil.launch", stage.name, reads=words)
    # The words are those of the whole recipe, the engine may be the source's own.
    own_recipe, _ = recipe_of_step(stage, recipe, step.source)
    if stage.name == "clean" and own_recipe.clean.engine in ENGINE_IMAGES:
        # Its engine runs pods, which the stage by itself does not know.
        return _step(step.name, parameters, "clean-ray", "anadil.launch.clean", reads=words)
    return _step(step.name, parameters, stage.name, f"anadil.{stage.name}", reads=words)


def candidate(recipe: Recipe) -> Any:
    """Return the component that trains the tokenizers of one vocabulary size."""
    words = [parameter_of(word) for word in Step(stage=STAGES["tokenizer"]).reads(recipe)]
    # No `run`: how it ended is for the step `tokenizer` to tell, which uses what it made.
    parameters = RECIPE | dict.fromkeys(words, str) | {"size": str} | _outputs("tokenizer")
    return _step("candidate", parameters, "tokenizer", "anadil.tokenizer")


def read_of_champion(step: Step) -> list[str]:
    """Return those of `OF_CHAMPION` that a step of a retraining reads, so that the lineage leads to the champion."""
    stage = step.stage
    reads = {
        "champion": stage.reads_champion or stage.name in ("pretrain", "release"),
        "earlier": stage.extends == STAGES["clean"].extends or "corpus" in stage.of_champion,
    }
    return [word for word, is_read in reads.items() if is_read]


retrain = _step(
    RETRAIN,
    RECIPE | {"run": str, DERIVED: dsl.OutputPath(str), STATE: dsl.OutputPath(str)}
    | {card(word): dsl.Output[kind] for word, kind in OF_CHAMPION.items()} | METRICS,
    "tools", "anadil.launch", RETRAIN,
)  # fmt: skip
"""First step of a retraining: it asks the registry for the champion, and writes the recipe of the others."""
finish = _step("finish", RECIPE | {"run": str}, "tools", "anadil.launch", "finish")
"""Exit handler: stops what a run has left behind and tells how it ended."""
finish_retraining = _step("finish", RECIPE | {"run": str, "first": str}, "tools", "anadil.launch", "finish")
"""The same after a retraining."""
