"""A retraining that was killed after its result had become the champion, and before it was recorded.

The registry names its result by then, so that the files of its week are new to nobody, and the same command would find
nothing to do. Its last step is made again from the recipe that it kept, and moves no alias twice.
"""

from collections.abc import Sequence

from anadil.artifacts import storage
from anadil.artifacts.uri import join
from anadil.core.stages import FLOW
from anadil.recipe.sections import Recipe
from anadil.retrain.champion import ReleasedModel
from anadil.retrain.derive import checked
from anadil.retrain.ledger import Outcome, Retraining
from anadil.runtime.run_record import read_record, read_steps, recipe_of, record_uri

NO_END: Sequence[Outcome] = ("running", "stopped", "failed")
ENDING = ".json"


def unfinished_recipe(root: str, last: Retraining, champion: ReleasedModel) -> Recipe | None:
    """Return the recipe of the last retraining where the champion is its result and its end is not recorded.

    Args:
        root: Storage root, with the records of runs.
        last: As the ledger has it.
        champion: The registry's now.
    """
    if last.outcome not in NO_END or champion.version == last.champion:
        return None
    folder = join(root, "runs")
    # A run is named after the time and the process, by which the ledger knows it.
    for name in sorted(storage.store(folder).listed(folder), reverse=True):
        run = name.removesuffix(ENDING)
        if not (name.endswith(ENDING) and run.endswith(f"-{last.id}")):
            continue
        steps = read_steps(root, run, read_record(record_uri(root, run)).stages)
        is_released = any(each.stage == FLOW[-1].name and each.status == "finished" for each in steps)
        if not is_released and champion.uri in {each.uri for each in steps}:
            return checked(recipe_of(root, run))
    return None
