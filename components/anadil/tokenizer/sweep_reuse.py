"""Candidates that the pods of a parallel sweep trained before, one size at a time.

A tokenizer artifact of one size and otherwise the same recipe and corpus holds what this run would train for that size,
byte for byte: a smaller vocabulary is the start of a larger one. It is found by its key, as every artifact.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from anadil.artifacts.base_model import read_tokenizer
from anadil.recipe.sections import Strategy
from anadil.runtime.job import Job
from anadil.runtime.planned_artifact import reusable_artifact
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.usage import TokenUsage, usage_in

log = logging.getLogger(__name__)

COUNTS = (
    "train_documents", "train_pretokens", "different_pretokens", "dropped_pretokens", "pruned_pretokens",
)  # fmt: skip
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
        for name, entry in table.items():
            strategy, asked, place = entry["strategy"], entry["asked"], folder / "candidates" / name
            if strategy != "base":
                tokenizer = read_tokenizer(place if place.is_dir() else folder)
                candidates[strategy, asked] = TokenizerCandidate(
                    strategy=strategy,
                    asked=asked,
                    got=entry["got"],
                    tokenizer=tokenizer,
                    usage=usage_in(entry),
                )
        # Equal in all of them: neither depends on the sizes.
        base_usage = usage_in(table["base"])
        counts = {name: manifest.records[name] for name in COUNTS if name in manifest.records}
        log.info("size %d: taken from a run of its own", size)
    return SweepCandidates(candidates=candidates, counts=counts, base_usage=base_usage)
