"""Candidates that were trained before, one size at a time, by the pods of a parallel sweep.

A tokenizer artifact of one of the sizes and otherwise the same recipe and corpus holds
what this run would train for that size, byte for byte: a smaller vocabulary is the start of a
larger one. It is found as every artifact is, by the key of what decides it.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import join
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Strategy
from anadil.runtime.cache_key import stage_origin
from anadil.runtime.job import Job
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.usage import TokenUsage

log = logging.getLogger(__name__)

COUNTS = (
    "train_documents",
    "train_pretokens",
    "different_pretokens",
    "dropped_pretokens",
    "pruned_pretokens",
)
"""Records of the corpus, which do not depend on the sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCandidates:
    """What need not be trained again."""

    candidates: Mapping[tuple[Strategy, int], TokenizerCandidate] = field(default_factory=dict)
    """Strategy and size asked for -> candidate."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records of the corpus; empty where nothing was found."""
    base_usage: TokenUsage | None = None
    """Of the base's own tokenizer, which every run counts; None where nothing was found."""


def find_sweep_candidates(job: Job) -> SweepCandidates:
    """The candidates of a job that lie under `storage.root` already."""
    sizes = job.recipe.tokenizer.sizes
    corpus = artifact.read_manifest(str(job.inputs["corpus"]))
    if job.recipe.storage.root is None or corpus is None or len(sizes) < 2:
        return SweepCandidates()
    candidates: dict[tuple[Strategy, int], TokenizerCandidate] = {}
    counts: dict[str, int] = {}
    base_usage: TokenUsage | None = None
    for size in sizes:
        found = _artifact_of(job, size, corpus)
        if found is None:
            continue
        folder, manifest = found
        table = json.loads((folder / "fertility.json").read_text(encoding="utf-8"))["candidates"]
        candidates |= {(each.strategy, each.asked): each for each in _candidates_in(folder, table)}
        base_usage = _usage(table["base"])
        counts = {name: manifest.records[name] for name in COUNTS if name in manifest.records}
        log.info("size %d: taken from a run of its own", size)
    return SweepCandidates(candidates=candidates, counts=counts, base_usage=base_usage)


def _artifact_of(job: Job, size: int, corpus: Manifest) -> tuple[Path, Manifest] | None:
    """The artifact of a run with this size only; None where there is none that can be used."""
    recipe = job.recipe
    settings = recipe.tokenizer.model_copy(update={"vocab_sizes": (size,)})
    alone = recipe.model_copy(update={"tokenizer": settings})
    stage = STAGES["tokenizer"]
    origin = stage_origin(stage, alone, {"corpus": corpus}, (), job.side_files)
    uri = join(str(recipe.storage.root), stage.writes, artifact.origin_key(origin))
    try:
        manifest = artifact.read_manifest(uri)
        if manifest is None or manifest.origin != origin:
            return None
        return fetch(uri, stage.writes)
    except IntegrityError as error:
        log.warning("%s; its size is trained again", error)
        return None


def _usage(entry: Mapping[str, Any]) -> TokenUsage:
    return TokenUsage(**{field.name: entry[field.name] for field in fields(TokenUsage)})


def _candidates_in(folder: Path, table: Mapping[str, Any]) -> Iterator[TokenizerCandidate]:
    for name, entry in table.items():
        if entry["strategy"] == "base":
            continue
        place = folder / "candidates" / name
        yield TokenizerCandidate(
            strategy=entry["strategy"],
            asked=entry["asked"],
            got=entry["got"],
            usage=_usage(entry),
            tokenizer=read_tokenizer(place if place.is_dir() else folder),
        )
