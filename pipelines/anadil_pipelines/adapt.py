"""Compilation of a recipe to Kubeflow's DAG.

raw -clean-> corpus -tokenizer-> tokenizer [-trial-> trial] -pretrain-> model -finetune-> adapter
[-tasks-> tasks] -evaluate-> scores -report-> report
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from anadil.core.errors import RecipeError
from anadil.core.stages import ENGINE_IMAGES, FLOW, STAGES, Stage
from anadil.recipe.sections import Recipe
from anadil.runtime.job import is_left_out
from anadil.runtime.kfp import VARIED
from anadil_pipelines import steps
from anadil_pipelines.resources import configure_exit_handler, configure_task, is_launched, warn_about

NAME = "anadil-adapt"
PARALLEL_CANDIDATES = 4
"""Pods of the sweep at a time; Kubeflow's loops are meant to be limited."""


def adapt(recipe: Recipe, until: str = "report", *, here: bool = False) -> Any:
    """Return the pipeline of a recipe, which is its parameter beside those of `VARIED`, as a function that kfp compiles or runs.

    With `here` it is for this machine: every stage in its own step, and nothing that only a cluster has.
    """
    resolved = recipe  # a step's own `recipe` is the parameter
    stages = FLOW[: [stage.name for stage in FLOW].index(until) + 1]

    def pipeline(*values: Any) -> None:
        given = _Given(resolved, dict(zip(parameters, values, strict=True)))
        first = len(stages) if here else _first_in_exit_handler(resolved)
        for stage in stages[:first]:
            _add_step(stage, given, here=here)
        if first < len(stages):
            end = steps.finish(**given.recipe, run=steps.RUN)
            configure_exit_handler(end, resolved)
            with dsl.ExitHandler(exit_task=end, name="watched"):
                for stage in stages[first:]:
                    _add_step(stage, given, here=False)

    description = f"Adapt {recipe.base.model} to {recipe.language_code}"
    parameters = {"recipe": recipe.model_dump_json()} | dict.fromkeys(VARIED, "")
    steps.give_signature(pipeline, dict.fromkeys(parameters, str), parameters)
    about = [f"    {name}: {key} of the recipe; empty, as the recipe says" for name, key in VARIED.items()]
    # kfp reads descriptions out of it, which the page of a new run shows.
    pipeline.__doc__ = "\n".join([description, "", "Args:", "    recipe: all keys, as JSON", *about])
    return dsl.pipeline(name=NAME, description=description)(pipeline)


def _first_in_exit_handler(recipe: Recipe) -> int:
    """Return the place in the flow from which on the exit handler watches; the flow's length for none."""
    # A loop inside an exit handler is broken in the backend (kubeflow/pipelines #12390, #13321), so with a
    # parallel sweep or trial the handler begins behind it, at the next stage that may leave a job behind.
    if recipe.cluster.backend == "local" and recipe.cluster.notifications is None:
        return len(FLOW)
    if _tried_strategies(recipe):
        return FLOW.index(STAGES["pretrain"])
    return [stage.launchable for stage in FLOW].index(True) if _sweep_sizes(recipe) else 0


def _sweep_sizes(recipe: Recipe) -> Sequence[int]:
    """Return the vocabulary sizes that are trained in pods of their own; none for `auto`, known to one pod only."""
    sizes = recipe.tokenizer.sizes
    trains = set(recipe.tokenizer.strategies) - {"base"}
    return sizes if recipe.cluster.parallel_sweep and trains and len(sizes) > 1 else ()


def _tried_strategies(recipe: Recipe) -> Sequence[str]:
    """Return the strategies whose tokenizers are tried in pods of their own."""
    trial = recipe.tokenizer.trial
    if trial is None or not recipe.cluster.parallel_sweep:
        return ()
    strategies = tuple(dict.fromkeys(trial.strategies or recipe.tokenizer.strategies))
    return strategies if len(strategies) > 1 else ()


@dataclass(frozen=True, slots=True)
class _Given:
    """Inputs of steps while a pipeline is put together."""

    resolved: Recipe
    """The recipe that is compiled."""
    recipe: dict[str, Any]
    """The pipeline's parameters, which every step takes."""
    uris: dict[str, Any] = field(default_factory=dict)
    """Artifact word -> its URI; empty where its stage was left out."""
    cards: dict[str, Any] = field(default_factory=dict)
    """Its card in Kubeflow's lineage, by the name of a step's parameter."""


def _add_step(stage: Stage, given: _Given, *, here: bool) -> None:
    """Add the step of a stage, and store what it writes in `given`."""
    resolved = given.resolved
    if is_left_out(stage, resolved):
        given.uris[stage.writes] = ""
        return
    inputs = {word: given.uris[word] for word in stage.reads}
    names = [steps.card(word) for word in stage.reads]
    cards = {name: given.cards[name] for name in names if name in given.cards}
    if stage.name == "tokenizer":
        inputs["candidates"] = [] if here else _candidates(given)
    if stage.name == "trial":
        inputs |= {"strategy": "", "finalists": [] if here else _finalists(given, inputs)}
    launched = not here and is_launched(stage.name, resolved)
    step = (steps.LAUNCHERS if launched else steps.STEPS)[stage.name]
    if stage.name == "clean" and resolved.clean.engine in ENGINE_IMAGES:
        step = steps.DRIVER
    task = step(**given.recipe, run=steps.RUN, **inputs, **cards)
    if here:
        task.set_display_name(stage.name)
        task.set_container_image(resolved.image_of(stage.name))
        task.set_caching_options(enable_caching=False)
    else:
        configure_task(task, stage.name, resolved)
    given.uris[stage.writes] = task.outputs[stage.writes]
    name = steps.card(stage.writes)
    given.cards[name] = task.outputs[name]


def _candidates(given: _Given) -> Any:
    """Return URIs of the tokenizers of each size, trained beside each other; none without a parallel sweep."""
    sizes = _sweep_sizes(given.resolved)
    if not sizes:
        return []
    # As texts: numbers inside a list would arrive as 50000.0.
    with dsl.ParallelFor(
        [str(size) for size in sizes], name="sizes", parallelism=PARALLEL_CANDIDATES
    ) as size:
        task = steps.candidate(**given.recipe, corpus=given.uris["corpus"], size=size)
        configure_task(task, "tokenizer", given.resolved)
        task.set_display_name("candidate")
    return dsl.Collected(task.outputs["tokenizer"])


def _finalists(given: _Given, inputs: dict[str, Any]) -> Any:
    """Return URIs of the trials of one strategy each, run beside each other; none without a parallel sweep."""
    strategies = _tried_strategies(given.resolved)
    if not strategies:
        return []
    launched = is_launched("trial", given.resolved)
    step = (steps.LAUNCHERS if launched else steps.STEPS)["trial"]
    with dsl.ParallelFor(list(strategies), name="strategies", parallelism=PARALLEL_CANDIDATES) as strategy:
        task = step(**given.recipe, run=steps.RUN, strategy=strategy, finalists=[], **inputs)
        configure_task(task, "trial", given.resolved)
        task.set_display_name("finalist")
    return dsl.Collected(task.outputs["trial"])


def write_pipeline(recipe: Recipe, path: Path) -> None:
    """Compile the DAG of a recipe to a file: two YAML documents, the pipeline and what Kubernetes alone knows.

    Raises:
        RecipeError: The file's name does not end as kfp wants it.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"{path}: a pipeline is YAML; give a name that ends in .yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    warn_about(recipe)
    compiler.Compiler().compile(adapt(recipe), str(path))


def pipeline_yaml(recipe: Recipe) -> str:
    """Return the text that `write_pipeline` writes."""
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / "pipeline.yaml"
        write_pipeline(recipe, path)
        return path.read_text(encoding="utf-8")
