"""Every stage of a run in this process, where a command line would start one for each."""

from pathlib import Path

from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.runtime import execute


def made_folders(recipe: Recipe) -> dict[str, Path]:
    """Artifact word -> its folder; without chats there is no fine-tuning."""
    made: dict[str, str] = {}
    for stage in FLOW:
        if stage.name != "finetune" or recipe.finetune.inputs:
            known = {word: made[word] for word in stage.reads if word in made}
            made[stage.writes] = execute.execute(stage, recipe, known, (), None).uri
    return {word: Path(uri) for word, uri in made.items()}
