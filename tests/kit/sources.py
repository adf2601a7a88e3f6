"""A recipe with three sources of different sizes, and their corpora."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.runtime.tracking_spool import Tracker
from tests.kit.pretraining import make_corpus, make_job, make_recipe
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

ENGLISH = tuple(
    f"{subject} {verb} near the {place} every morning before the long working day begins."
    for subject in ("The fisherman", "A teacher", "My neighbour", "The old doctor")
    for verb in ("walks", "sits", "reads", "sings")
    for place in ("harbour", "library", "station")
)
CODE = tuple(
    f"def {name}(values):\n    return [{name}_of(value) for value in values if value {sign} 0]\n"
    for name in ("scale", "shift", "round", "clip", "sort")
    for sign in ("<", ">", "!=")
)
TEXTS = {"web": PRETRAINING_TEXTS, "en": ENGLISH, "code": CODE}
MIX = {"web": 0.6, "en": 0.3, "code": 0.1}
PHASES: list[dict[str, Any]] = [
    {"trains": "embeddings", "steps": 4, "lr": 0.01, "mix": {"web": 1}},
    {"trains": "all", "steps": 8, "lr": 0.005, "mix": MIX},
]


def make_sources_recipe(base: Path, sources: Mapping[str, dict[str, Any]] = {}, **pretrain: Any) -> Recipe:
    """Two phases, the first on one source, unless `pretrain` or keys of `sources` say otherwise."""
    plain = make_recipe(base).model_dump(mode="json", exclude_defaults=True)
    own: dict[str, dict[str, Any]] = {"web": {}, "en": {"language": "en"}, "code": {"language": "en"}}
    return Recipe.model_validate(
        plain
        | {
            "pretrain": plain["pretrain"] | {"phases": PHASES} | pretrain,
            "sources": {
                name: {"inputs": [f"{name}.jsonl"], "max_epochs": 50} | keys | sources.get(name, {})
                for name, keys in own.items()
            },
        }
    )


def make_source_corpora(folder: Path) -> None:
    """A corpus artifact of each source, with two held-out documents."""
    for name, texts in TEXTS.items():
        make_corpus(folder / f"corpus.{name}", texts[2:], heldout=texts[:2])


def make_sources_job(tmp_path: Path, recipe: Recipe, name: str = "a", tracker: Tracker | None = None) -> Job:
    """A job that reads the corpora of `make_source_corpora`."""
    job = make_job(tmp_path, recipe, name, tracker)
    words = [f"corpus.{each}" for each in TEXTS]
    inputs = {word: tmp_path / word for word in words} | {"tokenizer": tmp_path / "tokenizer"}
    return replace(job, inputs=inputs)
