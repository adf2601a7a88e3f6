"""Begin and end of a retraining whose steps are pods.

The first step claims the champion for the run, finds what came since, and writes the recipe of the other steps. The
exit handler writes into the ledger how it ended, and gives the champion free.
"""

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime

from anadil.core.errors import RecipeError
from anadil.core.format import human_seconds
from anadil.preflight.week_cost import refuse_dear, week_cost
from anadil.recipe.sections import Recipe
from anadil.retrain.champion import champion_name, champion_version
from anadil.retrain.exclusive import claim, free
from anadil.retrain.ledger import Ledger, Retraining, as_registered, ended, lines_of_past
from anadil.retrain.resolve import Resolution, resolve
from anadil.runtime.flow import RETRAIN
from anadil.runtime.job import kind_of
from anadil.runtime.kfp import DERIVED, METRICS, SCHEDULED, STATE, Scalar, ToolInput, write_results
from anadil.runtime.run_record import (
    end_run,
    no_failure,
    read_record,
    record_step,
    record_uri,
    write_recipe,
)

log = logging.getLogger(__name__)

MISSED = "missed"
"""Figure of the first step: scheduled times that were missed, in words."""
SCHEDULED_FORMAT = "%Y%m%d%H%M%S"
"""Source: kubeflow/pipelines, backend/src/common/util/parameter_formatter.go, for `[[ScheduledTime]]`, in UTC."""
LATE_S = 600.0
"""A later begin is said: pods of a free cluster start within minutes. Chosen by us."""


def begin_retraining(call: ToolInput) -> int:
    """Claim the champion, derive the recipe of the run, and tell Kubeflow whether there is anything to do."""
    recipe, run = call.recipe, call.run
    with record_step(recipe, run, RETRAIN) as record:
        root = recipe.storage.root
        if not root:
            raise RecipeError("storage.root: not set; steps on a cluster need one that all of them reach")
        name, _ = champion_name(recipe)
        # Before the registry is asked: another retraining may be about to move the champion.
        claim(root, name, run)
        resolution, missed = _begin(recipe, run, Ledger(root, name), str(call.values.get(SCHEDULED, "")))
        place = write_recipe(root, run, resolution.recipe)
        record.uri = place
        record.figures = {"state": resolution.state, "new_files": resolution.num_files}
        record.figures |= {MISSED: missed} if missed else {}
        values = {DERIVED: place, STATE: resolution.state}
        write_results(call.outputs, values, _cards(resolution), {})
    if resolution.state == "nothing":
        # No other step will say so.
        end_run(root, run, 0, "no new text")
    return 0


def _begin(recipe: Recipe, run: str, ledger: Ledger, scheduled: str) -> tuple[Resolution, str]:
    """Write the beginning of a retraining into the ledger; return what it will do, and what was missed since the last."""
    past = [each for each in ledger.read() if each.id != run]
    known = ledger.last_of(run)
    started = known.started if known else _time_of(scheduled) or time.time()
    lines = list(lines_of_past(past, started))
    resolution = resolve(recipe)
    for line in (*lines, *resolution.lines):
        log.info("%s", line)
    version, num_files = resolution.champion.version, resolution.num_files
    ledger.write(Retraining(id=run, started=started, champion=version, num_files=num_files))
    has_budget = recipe.retrain and recipe.retrain.max_usd is not None
    if resolution.lineage and resolution.state == "new" and has_budget:
        inputs, chats = resolution.inputs, resolution.chats
        refuse_dear(recipe, week_cost(recipe, resolution.recipe, resolution.lineage, inputs, chats).week)
    return resolution, "".join(lines[1:])


def end_retraining(recipe: Recipe, run: str, message: str) -> None:
    """Write how a run ended into the ledger, and give the champion free; a failure is a warning.

    Args:
        recipe: Of the pipeline.
        run: Its id.
        message: How it ended, in words.
    """
    root = str(recipe.storage.root)
    # The handler of a run never fails it, and frees the champion whatever else failed.
    with no_failure(record_uri(root, run)):
        ledger = Ledger(root, champion_name(recipe)[0])
        known = ledger.last_of(run)
        if known and known.outcome == "running":
            record = read_record(record_uri(root, run))
            failed = [(name, step.exit_code) for name, step in record.steps.items() if step.exit_code]
            step, code = next(iter(failed), ("", 0))
            released = record.steps.get("release")
            end = ended(
                known, record.exit_code or code, release=released.uri if released else "", step=step, reason=message
            )  # fmt: skip
            if end.outcome == "champion":
                end = as_registered(end, champion_version(recipe))
            ledger.write(replace(end, ended=time.time()))
    with no_failure(record_uri(root, run)):
        free(root, champion_name(recipe)[0], run)


def _time_of(text: str) -> float | None:
    """Return the time of a schedule in seconds since 1970; None for a run by hand."""
    try:
        scheduled = datetime.strptime(text, SCHEDULED_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        # Servers before 2.16 leave the macro as it is (kubeflow/pipelines #12494).
        return None
    late = time.time() - scheduled.timestamp()
    if late > LATE_S:
        log.warning(
            "scheduled for %s, and begins %s later: the cluster had no room, or an earlier run took its time",
            f"{scheduled:%Y-%m-%d %H:%M} UTC",
            human_seconds(late),
        )
    return scheduled.timestamp()


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
