"""Every step of a run in this process, where a command line would start one for each."""

from pathlib import Path

from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.flow import flow_of, recipe_of_step


def made_folders(recipe: Recipe, until: str = "") -> dict[str, Path]:
    """Artifact word -> its folder, of all steps that a run of the recipe has, or of those up to a stage."""
    made: dict[str, str] = {}
    for step in flow_of(recipe, until):
        words = step.reads(recipe).items()
        known = {word: made[of_run] for word, of_run in words if of_run in made}
        derived, _ = recipe_of_step(step.stage, recipe, step.source)
        made[step.writes] = execute.execute(step.stage, derived, known, (), None).uri
    return {word: Path(uri) for word, uri in made.items()}
