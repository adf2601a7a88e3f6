"""The DAG.

raw -clean-> corpus -tokenizer-> tokenizer -pretrain-> model -finetune-> adapter
-evaluate-> scores -report-> report
"""

from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from anadil import __version__
from anadil.config import Recipe
from anadil.errors import RecipeError
from anadil.flow import FLOW
from anadil.stage import is_left_out
from anadil_pipelines.steps import STEPS

NAME = "anadil-adapt"


def adapt(recipe: Recipe, until: str = "report") -> Any:
    """The pipeline of a recipe, as a function that kfp compiles or runs.

    Args:
        recipe: Travels as the pipeline's one parameter, so that a run can be given another.
        until: Name of the last stage.
    """
    given, image = recipe, recipe.cluster.image

    @dsl.pipeline(name=NAME, description=f"Adapt {recipe.base.model} to {recipe.language}")
    def pipeline(recipe: str = recipe.model_dump_json()) -> None:
        made: dict[str, Any] = {}
        for stage in FLOW:
            if is_left_out(stage, given):
                made[stage.writes] = ""
                continue
            inputs = {word: made[word] for word in stage.reads}
            task = STEPS[stage.name](recipe=recipe, **inputs)
            task.set_display_name(stage.name)
            task.set_container_image(image.format(stage=stage.name, version=__version__))
            # A stage finds its finished artifact by content; Kubeflow's cache looks at names only.
            task.set_caching_options(enable_caching=False)
            made[stage.writes] = task.outputs[stage.writes]
            if stage.name == until:
                break

    return pipeline


def write_pipeline(recipe: Recipe, path: Path) -> None:
    """Compile the DAG of a recipe to a file of Kubeflow Pipelines' intermediate representation.

    Raises:
        RecipeError: The file's name does not end as kfp wants it.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"{path}: a pipeline is YAML; give a name that ends in .yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(adapt(recipe), str(path))
