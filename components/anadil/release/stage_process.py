"""One stage in another process, with the recipe of the artifacts that it reads."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from pydantic import BaseModel

from anadil.core.errors import RecipeError
from anadil.core.stage import Stage
from anadil.core.stages import BUILT_IN, PER_SOURCE, STAGES
from anadil.recipe.load import load_recipe
from anadil.recipe.sections import Recipe
from anadil.release.artifact_object import Artifact, open_artifact
from anadil.release.child_process import Say, recipe_file, run_command
from anadil.release.runs import WORK
from anadil.runtime.environment import PARENT_VARIABLE
from anadil.runtime.flow import Step, options_of
from anadil.runtime.job import kind_of, word_of

Place = Artifact | str | Path
Places = Place | Mapping[str, Place]
"""An artifact, or one for each source of the recipe."""
Opened = Mapping[str, Artifact]
"""Source -> its artifact; an empty name for one of all sources."""


class Options(TypedDict, total=False):
    """Arguments that all functions of stages take."""

    recipe: Recipe | str | None
    """A recipe, the name of a shipped one, or a file; left out, that of the artifacts that are read."""
    work: str | Path | None
    """Directory or `s3://` URI for artifacts; left out, that of the recipe, else `anadil-work`."""
    overrides: Sequence[str]
    """Keys of the recipe as `--set` takes them, such as `base.model=tiny`."""
    say: Say | None
    """Gets each line of the log; left out, a notebook shows how far it is, and elsewhere lines are printed."""


def run_stage(
    name: str,
    inputs: Mapping[str, Places | None],
    options: Mapping[str, Any],
    values: Mapping[str, object],
    source: str = "",
) -> Artifact:
    """Run a stage to its end and open what it made; a finished artifact is reused.

    Args:
        name: Name of the stage.
        inputs: Artifact word -> what is given, the last of the flow last; None: nothing.
        options: `Options`, and keys of the stage's section.
        values: Recipe key -> value; None: as the recipe says.
        source: Source of the recipe that the stage works on.
    """
    keys = {f"{name}.{key}": value for key, value in options.items() if key not in Options.__annotations__}
    given = {key: value for key, value in values.items() if value is not None} | keys
    overrides = [*options.get("overrides", ()), *(f"{key}={_text(value)}" for key, value in given.items())]
    opened = {word: _opened(value) for word, value in inputs.items() if value is not None}
    recipe = _in_place(_recipe(options.get("recipe"), opened, overrides), options.get("work"))
    # A stage that outlived a kernel would train on unseen, and the same cell would wait for its lock.
    with recipe_file(recipe) as path:
        arguments = [name, "--recipe", path, *options_of(_words(STAGES[name], recipe, opened))]
        arguments += ["--source", source] if source else []
        ended = run_command(arguments, options.get("say"), {PARENT_VARIABLE: str(os.getpid())})
    return open_artifact(ended.stdout.strip().rpartition("\n")[2])


def _text(value: object) -> str:
    """A value as an override has it: JSON, which is YAML too."""

    def plain(other: object) -> object:
        return (
            other.model_dump(mode="json", exclude_unset=True) if isinstance(other, BaseModel) else str(other)
        )

    # YAML reads the halves of an escaped surrogate pair as two characters.
    return json.dumps(value, default=plain, ensure_ascii=False)


def _opened(value: Places) -> Opened:
    several = value if isinstance(value, Mapping) else {"": value}
    return {
        name: each if isinstance(each, Artifact) else open_artifact(each) for name, each in several.items()
    }


def _recipe(given: Recipe | str | None, opened: Mapping[str, Opened], overrides: Sequence[str]) -> Recipe:
    """The recipe that the caller gives, else that of the last artifact, with the overrides."""
    # Each call is checked as a whole, so that keys of another section that no longer fit are told at once.
    if isinstance(given, Recipe):
        return load_recipe(given.model_dump_json(), overrides)
    if given is not None or not opened:
        return load_recipe(given or BUILT_IN, overrides)
    # The last one knows the most: a tokenizer's recipe has the base that the corpus's caller may not have named.
    last = next(iter(opened[[*opened][-1]].values()))
    if last.kind in PER_SOURCE and last.manifest.recipe.get("sources"):
        raise RecipeError(
            f"{last.uri}: is the {last.kind} of one source of a recipe; give the whole recipe, as recipe=..."
        )
    return load_recipe(json.dumps(last.manifest.recipe, ensure_ascii=False), overrides)


def _in_place(recipe: Recipe, work: str | Path | None) -> Recipe:
    """The recipe with a place for artifacts."""
    if work is None and recipe.storage.root is not None:
        return recipe
    root = os.path.realpath(work or WORK) if "://" not in str(work) else str(work)
    return recipe.model_copy(update={"storage": recipe.storage.model_copy(update={"root": root})})


def _words(stage: Stage, recipe: Recipe, opened: Mapping[str, Opened]) -> dict[str, str]:
    """Word of the command line -> URI; of what is given for each source, those that the stage reads."""
    words = Step(stage=stage).reads(recipe)
    inputs: dict[str, str] = {}
    for word, several in opened.items():
        for source, each in several.items():
            # A merged model stands in the place of the model that a recipe without one names.
            key = word_of(each.kind if word in stage.either else word, source)
            if key in words or len(several) == 1 or kind_of(key) not in {kind_of(known) for known in words}:
                inputs[key] = each.uri
    return inputs
