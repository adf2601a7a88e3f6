"""Every stage of a run in this process, where a command line would start one for each."""

from pathlib import Path

from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.job import is_left_out


def made_folders(recipe: Recipe) -> dict[str, Path]:
    """Artifact word -> its folder, of all stages that a run of the recipe has."""
    made: dict[str, str] = {}
    for stage in FLOW:
        if not is_left_out(stage, recipe):
            known = {word: made[word] for word in stage.reads if word in made}
            made[stage.writes] = execute.execute(stage, recipe, known, (), None).uri
    return {word: Path(uri) for word, uri in made.items()}
