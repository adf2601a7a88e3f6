"""Promotions from several processes at once: `python -m tests.kit.promote_worker TRACKING NAME PROCESSES MODEL...`.

Each process promotes its share of the models to champion; their scores lie beside them.
"""

import os
import sys

from anadil.artifacts.artifact import finished_manifest
from anadil.core.candidates import BY_KIND
from anadil.release.registry.client import open_registry
from anadil.release.registry.gate_verdict import check_promotable, find_scores
from anadil.release.registry.promotion import promote


def work(tracking: str, name: str, models: list[str]) -> None:
    """Promote models one after another."""
    registry = open_registry(tracking)
    for model in models:
        scores = find_scores(model, finished_manifest(model, *BY_KIND), None)
        promote(registry, name, check_promotable(scores, model), "champion", "anadil")


def main(tracking: str, name: str, processes: int, models: list[str]) -> int:
    """Fork after MLflow is loaded, which takes seconds; the number of processes that failed."""
    import mlflow.store.artifact.artifact_repository_registry  # noqa: F401  forked with everything that is needed

    children = []
    for share in range(processes):
        child = os.fork()
        if child == 0:
            try:
                work(tracking, name, models[share::processes])
            except BaseException as error:  # noqa: BLE001  the parent counts it
                print(f"{share}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
