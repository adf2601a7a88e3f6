"""Compilation of a recipe to Kubeflow's DAG.

[base -replay-> written] raw -clean-> corpus [-overlap-> overlap] [-admit-> admission] -tokenizer-> tokenizer [-trial-> trial]
-encode-> tokens -pretrain-> model [-merge-> merged] -finetune-> adapter [-tasks-> tasks] -evaluate-> scores -report-> report
[-release-> release]
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from anadil.core.errors import RecipeError
from anadil.core.stage import Parts, Stage
from anadil.core.stages import FLOW, STAGES, forms_of
from anadil.recipe.sections import Recipe
from anadil.runtime.flow import RETRAIN, Step, flow_of, recipe_of_step
from anadil.runtime.job import is_left_out, value_of
from anadil.runtime.kfp import DERIVED, STATE, VARIED, parameter_of
from anadil_pipelines import steps
from anadil_pipelines.steps import (
    configure_exit_handler,
    configure_first_step,
    configure_task,
    is_launched,
    warn_about,
)

NAME = "anadil-adapt"
TAKEN = forms_of("tokenizer")
"""Artifacts that a retraining always takes from its champion. What the base writes may be of a new source."""
PARALLEL_CANDIDATES = 4  # Pods of the sweep at a time; Kubeflow's loops are meant to be limited.


def adapt(recipe: Recipe, until: str = "", *, here: bool = False, retrains: bool = False) -> Any:
    """Return the pipeline of a recipe, which is its parameter beside those of `VARIED`, as a function that kfp compiles or runs.

    `here` has every stage in its own step, and nothing that only a cluster has. Where it `retrains`, a first step looks for
    what came since the champion, and the others follow the recipe that it writes.
    """
    resolved = recipe  # a step's own `recipe` is the parameter
    flow = flow_of(resolved, until)

    def pipeline(*values: Any) -> None:
        given = _Given(resolved, dict(zip(parameters, values, strict=True)))
        if retrains:
            _add_retraining(flow, given, here=here)
            return
        first = len(FLOW) if here else _first_in_exit_handler(resolved)
        watched = [step for step in flow if FLOW.index(step.stage) >= first]
        for step in flow[: len(flow) - len(watched)]:
            _add_step(step, given, here=here)
        if watched:
            end = steps.finish(**given.recipe, run=steps.RUN)
            configure_exit_handler(end, resolved)
            with dsl.ExitHandler(exit_task=end, name="watched"):
                for step in watched:
                    _add_step(step, given, here=False)

    description = describe(recipe, retrains=retrains)
    about = {"recipe": "all keys, as JSON"}
    about |= {name: f"{key} of the recipe; empty, as the recipe says" for name, key in VARIED.items()}
    # How a week ends depends on what the recipe says nothing of, so that a retraining gets the keys that it says.
    parameters = dict.fromkeys(about, "") | {"recipe": recipe.model_dump_json(exclude_unset=retrains)}
    steps.give_signature(pipeline, dict.fromkeys(parameters, str), parameters)
    # kfp reads descriptions out of it, which the page of a new run shows.
    pipeline.__doc__ = "\n".join(
        [description, "", "Args:", *(f"    {each}: {about[each]}" for each in about)]
    )
    return dsl.pipeline(name=NAME, description=description)(pipeline)


def describe(recipe: Recipe, *, retrains: bool) -> str:
    """Return what the pipeline of a recipe does, in a few words."""
    if retrains:
        return f"Retrain the {recipe.language_code} champion on the text and chats that came since"
    return f"Adapt {recipe.base.model} to {recipe.language_code}"


def _add_retraining(flow: Sequence[Step], given: "_Given", *, here: bool) -> None:
    end = steps.finish_retraining(**given.recipe, run=steps.RUN, first=RETRAIN)
    with dsl.ExitHandler(exit_task=end, name="watched"):
        begin = steps.retrain(**given.recipe, run=steps.RUN)
        if here:
            for tool in (begin, end):
                _configure_here(tool, given.resolved.image_of("launch"))
        else:
            configure_first_step(begin, given.resolved)
            configure_exit_handler(end, given.resolved)
        # The recipe that this step writes holds the values that a run varies.
        cards = {word: begin.outputs[steps.card(word)] for word in steps.OF_CHAMPION}
        of_run = replace(given, recipe={"recipe": begin.outputs[DERIVED]}, of_champion=cards)
        with dsl.If(begin.outputs[STATE] == steps.NEW, name="new-text"):
            for step in flow:
                _add_step(step, of_run, here=here)


def _first_in_exit_handler(recipe: Recipe) -> int:
    """Return the place in the flow from which on the exit handler watches; the flow's length for none."""
    # A loop inside an exit handler is broken in the backend (kubeflow/pipelines #12390, #13321), so with a
    # parallel sweep or trial the handler begins behind it, at the next stage that may leave a job behind.
    if recipe.cluster.backend == "local" and recipe.cluster.notifications is None:
        return len(FLOW)
    behind = max([FLOW.index(stage) + 1 for stage in FLOW if _parts(stage, recipe)], default=0)
    if not behind and not _sweep_sizes(recipe):
        return 0
    return [stage.training is not None for stage in FLOW].index(True, behind)


def _sweep_sizes(recipe: Recipe) -> Sequence[int]:
    """Return the vocabulary sizes that are trained in pods of their own; none for `auto`, known to one pod only."""
    sizes = recipe.tokenizer.sizes
    trains = set(recipe.tokenizer.strategies) - {"base"}
    return sizes if recipe.cluster.parallel_sweep and trains and len(sizes) > 1 else ()


def _parts(stage: Stage, recipe: Recipe) -> Sequence[str]:
    """Return the parts of a training that have pods of their own, such as strategies whose tokenizers are tried."""
    if stage.pod.parts is None or not recipe.cluster.parallel_sweep or is_left_out(stage, recipe):
        return ()
    parts = tuple(
        dict.fromkeys(value_of(recipe, stage.pod.parts.key) or value_of(recipe, stage.pod.parts.or_key))
    )
    return parts if len(parts) > 1 else ()


@dataclass(frozen=True, slots=True)
class _Given:
    """Inputs of steps while a pipeline is put together."""

    resolved: Recipe  # The recipe that is compiled.
    recipe: dict[str, Any]  # The pipeline's parameters, which every step takes.
    uris: dict[str, Any] = field(default_factory=dict)
    """Artifact word of the run, such as `corpus.web` -> its URI."""
    cards: dict[str, Any] = field(default_factory=dict)  # The same word -> its card in Kubeflow's lineage.
    of_champion: dict[str, Any] = field(default_factory=dict)
    """Word of `steps.OF_CHAMPION` -> its card; empty for a run that is no retraining."""

    @property
    def retrains(self) -> bool:
        """True for the steps of a retraining."""
        return bool(self.of_champion)


def _add_step(step: Step, given: _Given, *, here: bool) -> None:
    stage, resolved = step.stage, given.resolved
    # Image, engine and memory may be the source's own.
    step_recipe, _ = recipe_of_step(stage, resolved, step.source)
    # A stage that was left out writes nothing, and its readers get an empty URI.
    inputs = {
        parameter_of(word): given.uris.get(of_run, "") for word, of_run in step.reads_in_run(resolved).items()
    }
    cards = {
        steps.card(parameter_of(word)): given.cards[of_run]
        for word, of_run in step.reads_in_run(resolved).items()
        if of_run in given.cards
    }
    of_champion = steps.read_of_champion(step) if given.retrains else []
    cards |= {steps.card(word): given.of_champion[word] for word in of_champion}
    if step.source:
        inputs["source"] = step.source
    # A retraining takes the champion's tokenizer, so no loop tries others.
    alone = here or given.retrains
    if stage.name == "tokenizer":
        inputs["candidates"] = [] if alone else _candidates(given)
    if stage.pod.parts:
        made = [] if alone else _made_of_parts(stage, stage.pod.parts, given, inputs)
        inputs |= {stage.pod.parts.one: "", stage.pod.parts.made: made}
    launched = not here and is_launched(stage.name, resolved)
    task = steps.component(step, resolved, of_champion, launched=launched)(
        **given.recipe, run=steps.RUN, **inputs, **cards
    )
    if here:
        _configure_here(task, step_recipe.image_of(stage.name))
    else:
        configure_task(task, stage.name, step_recipe, takes=given.retrains and stage.writes in TAKEN)
    task.set_display_name(step.name)
    given.uris[step.writes] = task.outputs[stage.writes]
    given.cards[step.writes] = task.outputs[steps.card(stage.writes)]


def _configure_here(task: Any, image: str) -> None:
    task.set_container_image(image)
    task.set_caching_options(enable_caching=False)


def _candidates(given: _Given) -> Any:
    """Return URIs of the tokenizers of each size, trained beside each other; none without a parallel sweep."""
    sizes = _sweep_sizes(given.resolved)
    if not sizes:
        return []
    # As texts: numbers inside a list would arrive as 50000.0.
    texts = [str(size) for size in sizes]
    with dsl.ParallelFor(texts, name="sizes", parallelism=PARALLEL_CANDIDATES) as size:
        words = Step(stage=STAGES["tokenizer"]).reads(given.resolved).items()
        corpora = {parameter_of(word): given.uris[of_run] for word, of_run in words}
        task = steps.candidate(given.resolved)(**given.recipe, **corpora, size=size)
        configure_task(task, "tokenizer", given.resolved)
        task.set_display_name("candidate")
    return dsl.Collected(task.outputs["tokenizer"])


def _made_of_parts(stage: Stage, parts: Parts, given: _Given, inputs: dict[str, Any]) -> Any:
    """Return URIs of the artifacts of one part each, made beside each other; none without a parallel sweep."""
    values = list(_parts(stage, given.resolved))
    if not values:
        return []
    launched = is_launched(stage.name, given.resolved)
    component = steps.component(Step(stage=stage), given.resolved, launched=launched)
    name = parts.key.rpartition(".")[2]
    with dsl.ParallelFor(values, name=name, parallelism=PARALLEL_CANDIDATES) as value:
        task = component(**given.recipe, run=steps.RUN, **{parts.one: value, parts.made: []}, **inputs)
        configure_task(task, stage.name, given.resolved)
        task.set_display_name(parts.made.removesuffix("s"))
    return dsl.Collected(task.outputs[stage.writes])


def write_pipeline(recipe: Recipe, path: Path, *, retrains: bool = False) -> None:
    """Compile the DAG of a recipe, or of its retrainings, to a file: the pipeline, and what Kubernetes alone knows."""
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"{path}: a pipeline is YAML; give a name that ends in .yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    warn_about(recipe)
    compiler.Compiler().compile(adapt(recipe, retrains=retrains), str(path))


def pipeline_yaml(recipe: Recipe, *, retrains: bool = False) -> str:
    """Return the text that `write_pipeline` writes."""
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        path = Path(folder) / "pipeline.yaml"
        write_pipeline(recipe, path, retrains=retrains)
        return path.read_text(encoding="utf-8")
