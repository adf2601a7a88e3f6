"""Candidates that were trained before, one size at a time, by the pods of a parallel sweep.

A tokenizer artifact of one of the sizes and otherwise the same recipe and corpus holds
what this run would train for that size, byte for byte: a smaller vocabulary is the start of a
larger one. It is found as every artifact is, by the key of what decides it.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anadil.artifacts.base_model import read_tokenizer
from anadil.recipe.sections import Strategy
from anadil.runtime.job import Job
from anadil.runtime.reusable_artifact import reusable_artifact
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.usage import TokenUsage, usage_in

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
    """Candidates and counts that need not be made again."""

    candidates: Mapping[tuple[Strategy, int], TokenizerCandidate] = field(default_factory=dict)
    """Strategy and size asked for -> candidate."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records of the corpus; empty where nothing was found."""
    base_usage: TokenUsage | None = None
    """Usage of the base's own tokenizer, which every run counts; None if nothing was reused."""


def find_sweep_candidates(job: Job) -> SweepCandidates:
    """The candidates of a job that lie under `storage.root` already."""
    sizes = job.recipe.tokenizer.sizes
    if len(sizes) < 2:
        return SweepCandidates()
    candidates: dict[tuple[Strategy, int], TokenizerCandidate] = {}
    counts: dict[str, int] = {}
    base_usage: TokenUsage | None = None
    for size in sizes:
        settings = job.recipe.tokenizer.model_copy(update={"vocab_sizes": (size,)})
        artifact = reusable_artifact(job, "tokenizer", job.recipe.model_copy(update={"tokenizer": settings}))
        if artifact is None:
            continue
        folder, manifest = artifact
        table = json.loads((folder / "fertility.json").read_text(encoding="utf-8"))["candidates"]
        candidates |= {(each.strategy, each.asked): each for each in _candidates_in(folder, table)}
        # Equal in all of them: neither depends on the sizes.
        base_usage = usage_in(table["base"])
        counts = {name: manifest.records[name] for name in COUNTS if name in manifest.records}
        log.info("size %d: taken from a run of its own", size)
    return SweepCandidates(candidates=candidates, counts=counts, base_usage=base_usage)


def _candidates_in(folder: Path, table: Mapping[str, Any]) -> Iterator[TokenizerCandidate]:
    for name, entry in table.items():
        if entry["strategy"] == "base":
            continue
        place = folder / "candidates" / name
        yield TokenizerCandidate(
            strategy=entry["strategy"],
            asked=entry["asked"],
            got=entry["got"],
            usage=usage_in(entry),
            tokenizer=read_tokenizer(place if place.is_dir() else folder),
        )
