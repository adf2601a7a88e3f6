"""Entries of a finished artifact in MLflow: its data, its model, its small files.

They follow from the stage's row in `core/stages.py`, the manifests and the files in the directory, so that no stage
handles datasets or models of MLflow itself.
"""

import getpass
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from anadil import __version__
from anadil.artifacts.artifact import Manifest
from anadil.core.candidates import BY_KIND
from anadil.core.processes import run_child
from anadil.core.stage import Stage
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_keys
from anadil.runtime.environment import image_name
from anadil.runtime.flow import Step
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import PlannedArtifact
from anadil.runtime.trackers import NOTE_TAG
from anadil.runtime.tracking_spool import Dataset, Tracker, run_settings
from anadil.text.metrics import deciding_scores

CONTEXTS = {"evaluate": "evaluation", "report": "evaluation", "finetune": "finetuning", "clean": "raw"}
"""Stage -> what MLflow calls the use of its data; any other trains."""
LEARNT = ("loss", "validation_loss", "tokens", "trained_tokens")
"""Figures of training that say how far a model has learned."""
PAGES = ("report.html", "report.md", "metrics.json", "model_card.md", "data_card.md")
MAX_FILES = 50
"""Most outside files that are shown one by one; a crawl of thousands stands in the manifest."""


def run_tags(recipe: Recipe, stage: Stage) -> dict[str, str]:
    """Words by which runs are found: version, user, commit, machines, the image of the stage that speaks."""
    tags = {
        "anadil.version": __version__,
        "anadil.language": recipe.language_code,
        "anadil.instance": recipe.cluster.instance or "",
        f"anadil.image.{stage.name}": recipe.image_of(stage.name) if image_name() else "",
        "mlflow.source.name": "anadil",
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.commit": _commit(),
    }
    tags |= parent_tags(recipe.model_dump(mode="json"))
    with suppress(OSError, KeyError):  # a container's user may have a number and no name
        tags["mlflow.user"] = getpass.getuser()
    return {name: value for name, value in tags.items() if value}


def parent_tags(recipe: Mapping[str, object]) -> dict[str, str]:
    """Registered version and digest of the champion that a retraining began with; none for a run from the base."""
    # With `--from-base` a recipe names the champion that the run competes with, and begins with none.
    pretrain, retrain = recipe.get("pretrain"), recipe.get("retrain")
    champion = retrain.get("champion") if isinstance(retrain, dict) else None
    if not (isinstance(champion, dict) and isinstance(pretrain, dict)):
        return {}
    # On new chats alone, training begins with nothing, and finetuning with an artifact of the champion.
    if not (pretrain.get("start_from") or champion.get("artifacts")):
        return {}
    return {
        "anadil.parent": f"{champion['name']}/{champion['version']}",
        "anadil.parent_sha256": str(champion["digest"]),
    }


def _commit() -> str:
    """Commit of the directory from which the run is started: there the recipe lies."""
    with suppress(OSError, subprocess.SubprocessError):
        done = run_child(["git", "rev-parse", "HEAD"], 2)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def tell_start(
    tracker: Tracker, planned: PlannedArtifact, job: Job, manifests: Mapping[str, Manifest]
) -> None:
    """Name the settings of a step, its artifact, the data and the models that it reads."""
    step, recipe = Step.of(planned.stage, job.recipe), job.recipe
    tags = {
        "anadil.artifact": planned.target, "anadil.key": planned.key,
        "anadil.version": __version__, "anadil.stage": planned.stage.name, "anadil.source": step.source,
        "anadil.image": image_name(),
    }  # fmt: skip
    shared = {} if step.source else run_tags(recipe, planned.stage)
    keys = recipe_keys(recipe, planned.stage.keys)
    tracker.texts("params", keys)
    if not step.source:  # the recipe of one source is not that of the run
        tracker.texts("run params", run_settings(recipe))
        tracker.texts("run tags", shared)
        changed = recipe.model_dump(mode="json", exclude_defaults=True)
        tracker.files({"recipe.yaml": yaml.safe_dump(changed, allow_unicode=True, sort_keys=False)})
    tracker.texts("tags", {name: value for name, value in tags.items() if value})
    tell_inputs(tracker, planned.stage, manifests, job.uris, planned.origin)


def tell_inputs(
    tracker: Tracker, stage: Stage, inputs: Mapping[str, Manifest], uris: Mapping[str, str],
    origin: Mapping[str, str],
) -> None:  # fmt: skip
    """Name the data and the models that a stage reads. `uris` says where each lies, `origin` names outside files."""
    datasets = [*_corpora(stage, inputs, uris), *_outside(stage, origin)]
    if datasets:
        tracker.inputs(datasets)
    for word, candidate in BY_KIND.items():
        if word in inputs:
            tracker.model(candidate.name, uris[word], inputs[word].digest, word)


def _corpora(stage: Stage, inputs: Mapping[str, Manifest], uris: Mapping[str, str]) -> Iterator[Dataset]:
    context = CONTEXTS.get(stage.name, "training")
    for word, corpus in inputs.items():
        if word.partition(".")[0] == "corpus":
            yield Dataset(
                name=word, uri=uris[word], digest=corpus.digest, context=context,
                rows=corpus.records.get("train", 0) + corpus.records.get("heldout", 0),
            )  # fmt: skip


def _outside(stage: Stage, origin: Mapping[str, str]) -> Iterator[Dataset]:
    """Yield outside files, such as chats and questions; too many to be looked through are skipped."""
    named = [
        (name.removeprefix("file "), digest) for name, digest in origin.items() if name.startswith("file ")
    ]
    for place, digest in named if len(named) <= MAX_FILES else ():
        uri, _, key = place.partition(" of ")
        # An S3 version id is not a digest of the content, but tells contents apart as well.
        name = Path(urlsplit(uri).path if "://" in uri else uri.partition(":")[2] or uri).name
        context = CONTEXTS.get(stage.name, "training")
        yield Dataset(
            name=name or uri,
            uri=uri,
            digest=digest.strip('"'),
            context="evaluation" if key.startswith("evaluate.") else context,
        )


def tell_result(
    tracker: Tracker, stage: Stage, result: Manifest, uri: str, folder: Path, inputs: Mapping[str, Manifest],
    uris: Mapping[str, str], read: Mapping[str, Path],
) -> None:  # fmt: skip
    """Name the model that was made, link scores to their models, keep the pages.

    The result lies in `folder` now, and will lie at `uri`. `read` are the local directories of the inputs.
    """
    corpora, outside = [*_corpora(stage, inputs, uris)], [*_outside(stage, result.origin)]
    place = folder if stage.writes == "scores" else read.get("scores")
    scores = place / "scores.json" if place and (place / "scores.json").is_file() else None
    deciding = deciding_scores(json.loads(scores.read_text(encoding="utf-8"))) if scores else {}
    if stage.writes in BY_KIND:
        figures = {
            f"{stage.name}_{name}": float(value)
            for name, value in result.figures.items()
            if name in LEARNT and isinstance(value, int | float)
        }
        data = next(iter([*corpora, *outside]), None)
        tracker.model(
            BY_KIND[stage.writes].name, uri, result.digest, stage.writes, figures, is_new=True, dataset=data
        )
    if scores:
        tracker.files({"scores.json": scores})
        for word, candidate in BY_KIND.items():
            if word in inputs:
                # The corpus holds the held-out text.
                figures = {
                    name: value for name, value in deciding.items() if name.endswith(f"/{candidate.name}")
                }
                dataset = next(iter(corpora), None)
                tracker.model(candidate.name, uris[word], inputs[word].digest, word, figures, dataset=dataset)
    pages = {name: folder / name for name in PAGES if (folder / name).is_file()}
    if stage.writes == "report" and pages:
        tracker.files(pages)
        # The first words of the report: the verdict and the figures before and after.
        text = (
            pages["report.md"].read_text(encoding="utf-8", errors="replace") if "report.md" in pages else ""
        )
        tracker.texts("run tags", {NOTE_TAG: text.partition("\n## ")[0].partition("\n")[2].strip()})
