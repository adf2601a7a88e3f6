"""Release steps that are killed: `python -m tests.kit.release_worker TRACKING FOLDER SEED TRIALS`.

Each trial has a champion of its own, a step that is killed at a random moment, and the same step again. A JSON line says
how each ended.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anadil.artifacts.find import artifacts_below
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.release import run as release
from anadil.release.registry.client import Registry, open_registry
from anadil.release.registry.promotion import check_promotable, promote
from anadil.release.run import read_release
from anadil.runtime.execute import execute
from anadil.runtime.tracking_spool import SPOOL_VARIABLE
from tests.kit.promotable import model, scores
from tests.kit.releasing import UNSURE, retraining, week


def trial(
    registry: Registry, folder: Path, name: str, fraction: float | None, usual_s: float, **ratio: Any
) -> dict[str, Any]:
    """Kill a release step after a fraction of its usual time, repeat it, and return what is there then."""
    made = model(folder / "model" / "first", f"first of {name}")
    first = check_promotable(str(scores(folder / "scores/1", made)), str(made))
    promote(registry, name, first, None, "anadil")
    champion = registry.by_alias(name, "champion")
    assert champion is not None
    recipe = retraining(folder, registry.uri, champion)
    inputs = week(folder, f"second of {name}", champion.digest, **ratio)
    began = time.monotonic()
    code = 0
    if fraction is not None:
        child = forked(lambda: step(recipe, inputs, folder))
        time.sleep(max(0.0, fraction * usual_s - (time.monotonic() - began)))
        os.kill(child, signal.SIGKILL)
        code = os.waitpid(child, 0)[1]
    began = time.monotonic()
    again = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: step(recipe, inputs, folder)), 0)[1])
    return end(registry, folder, name) | {
        "killed": os.WIFSIGNALED(code), "again": again, "seconds": time.monotonic() - began,
    }  # fmt: skip


def step(recipe: Recipe, inputs: dict[str, str], folder: Path) -> None:
    """The stage, whose alerts are lines of a file."""

    def notify(event: Any) -> None:
        with (folder / "alerts").open("a", encoding="utf-8") as file:
            file.write(f"{event.kind}\n")

    setattr(release, "notify", notify)  # noqa: B010  mypy lets nobody replace an import
    execute(STAGES["release"], recipe, inputs, (), None)


def forked(function: Callable[[], None]) -> int:
    """Process that runs a function, with everything loaded already."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  the parent reads the exit code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def end(registry: Registry, folder: Path, name: str) -> dict[str, Any]:
    """The state of the registry and of the storage."""
    client = registry.client
    found = registry.model(name)
    experiment = client.get_experiment_by_name("anadil")
    runs = client.search_runs([experiment.experiment_id], max_results=1_000)
    here = [each for each in runs if each.data.tags.get("anadil.artifact", "").startswith(f"{folder}/")]
    artifacts = list(artifacts_below([str(folder)], "release"))
    record = read_release(artifacts[0][0])
    return {
        "aliases": {alias: str(number) for alias, number in found.aliases.items()},
        "versions": sorted(str(each.version) for each in client.search_model_versions(f"name = '{name}'")),
        "runs": len(here), "artifacts": len(artifacts),
        "leftovers": sorted(path.name for path in (folder / "release").iterdir() if path.suffix == ".partial"),
        "alerts": (folder / "alerts").read_text(encoding="utf-8").split(),
        "record": [record.outcome, record.alias, record.version, record.previous, *record.reasons[1:]],
    }  # fmt: skip


def main(tracking: str, folder: Path, seed: int, trials: int) -> None:
    """One trial that is left alone, then those that are killed; every third candidate beats nobody for sure."""
    import mlflow.store.artifact.artifact_repository_registry  # noqa: F401  forked with everything that is needed

    os.environ[SPOOL_VARIABLE] = str(folder / "spool")
    chance, usual_s = random.Random(seed), 0.0
    registry = open_registry(tracking)
    for number in range(-2, trials):
        ratio = UNSURE if number % 3 == 1 else {}
        fraction = None if number < 0 else chance.random()
        # A name of its own in the server, which other tests share.
        name, place = f"kills-{seed}-{number}", folder / str(number)
        told = trial(registry, place, name, fraction, usual_s, **ratio)
        usual_s = told["seconds"] if number < 0 else usual_s
        print(json.dumps({"number": number, "fraction": fraction} | told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
