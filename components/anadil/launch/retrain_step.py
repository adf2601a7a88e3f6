"""Begin of a retraining whose steps are pods.

The first step claims the champion for the run, finds what came since, and writes the recipe of the other steps. The
exit handler gives the champion free.
"""

import logging

from anadil.core.errors import RecipeError
from anadil.preflight.week_cost import refuse_dear
from anadil.retrain.exclusive import claim
from anadil.retrain.lineage import champion_name
from anadil.retrain.resolve import Resolution, resolve
from anadil.runtime.flow import RETRAIN
from anadil.runtime.job import kind_of
from anadil.runtime.kfp import DERIVED, METRICS, STATE, Scalar, ToolInput, write_results
from anadil.runtime.run_record import end_run, record_step, write_recipe

log = logging.getLogger(__name__)


def begin_retraining(call: ToolInput) -> int:
    """Claim the champion, derive the recipe of the run, and tell Kubeflow whether there is anything to do."""
    recipe, run = call.recipe, call.run
    with record_step(recipe, run, RETRAIN) as record:
        root = recipe.storage.root
        if not root:
            raise RecipeError("storage.root: not set; steps on a cluster need one that all of them reach")
        # Before the registry is asked: another retraining may be about to move the champion.
        claim(root, champion_name(recipe)[0], run)
        resolution = resolve(recipe)
        for line in resolution.lines:
            log.info("%s", line)
        if resolution.state == "new":
            refuse_dear(resolution.recipe)
        place = write_recipe(root, run, resolution.recipe)
        record.uri = place
        record.figures = {"state": resolution.state, "new_files": resolution.num_files}
        values = {DERIVED: place, STATE: resolution.state}
        write_results(call.outputs, values, _cards(resolution), {})
    if resolution.state == "nothing":
        # No other step will say so.
        end_run(root, run, 0, "no new text")
    return 0


def _cards(resolution: Resolution) -> dict[str, dict[str, Scalar]]:
    """Return the metadata of the champion and of its corpora in Kubeflow's lineage."""
    champion = resolution.champion
    made = resolution.lineage.made if resolution.lineage else {}
    corpora = {word: each for word, each in made.items() if kind_of(word) == "corpus"}
    rows = sum(sum(manifest.records.values()) for _, manifest in corpora.values())
    model: dict[str, Scalar] = {"name": champion.name, "version": champion.version, "uri": champion.uri}
    earlier: dict[str, Scalar] = {"rows": rows}
    return {
        "champion_artifact": model | {"sha256": champion.manifest.digest, "key": champion.manifest.key},
        "earlier_artifact": earlier | {word: uri for word, (uri, _) in corpora.items()},
        METRICS: {"new_files": resolution.num_files},
    }
