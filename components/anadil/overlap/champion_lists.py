"""Earlier text of a retraining: what its champion was trained on, and the documents that were left out of it.

An earlier document stays as it was, so that its tokens do. Of documents that are alike the earlier one stays, whatever
the order of the sources is.
"""

import heapq
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import join
from anadil.clean.dedup.sorted_documents import Numbers
from anadil.recipe.sections import Recipe

EXCLUDED, STATS, RUN_COUNTS = "excluded.jsonl", "overlap.json", "run_counts.npy"
"""Documents that are left out, sorted by id, with reason and counterpart; counts of them; and how many documents hold each
run of held-out text, up to 255."""
Row = dict[str, str]
"""Document that is left out: `id`, `reason`, and `of` and `of_id` of the one that it gives way to."""


def num_earlier_files(recipe: Recipe, source: str, ours: Manifest, names: list[str]) -> int:
    """Count the files of a corpus's index that the champion's corpus of the source has, too: the first ones."""
    if not (uri := _place(recipe, f"corpus.{source}")):
        return 0
    theirs = artifact.finished_manifest(uri, "corpus")
    same = [theirs.files.get(name) == ours.files[name] for name in names]
    return len(list(itertools.takewhile(bool, same)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionList:
    """Artifact `overlap` of a source that the champion was made with."""

    rows: list[Row]
    files: frozenset[str]
    """Files of the training part that it was made of."""
    runs: str
    """Digest of the runs of held-out text that were looked for; empty where an earlier release looked."""
    run_counts: Numbers
    """Documents that hold each of them."""
    boilerplate_documents: int
    """Documents that hold such runs only as too many hold."""


def champion_list(recipe: Recipe, source: str, sources: Iterable[str]) -> ChampionList | None:
    """Read the champion's list for a source; None: it has none, and earlier documents are judged anew."""
    uri = _place(recipe, f"overlap.{source}")
    manifest = artifact.read_manifest(uri) if uri else None
    if manifest is None:
        return None
    store = storage.store(uri)
    rows: list[Row] = [json.loads(line) for line in store.read(join(uri, EXCLUDED)).splitlines()]
    stats = json.loads(store.read(join(uri, STATS)))
    counts = io.BytesIO(store.read(join(uri, RUN_COUNTS))) if RUN_COUNTS in manifest.files else None
    corpus = artifact.finished_manifest(_place(recipe, f"corpus.{source}"), "corpus")
    return ChampionList(
        # A document whose counterpart is gone with its source is training text again.
        rows=[row for row in rows if row["of"] in sources],
        files=frozenset(name for name in corpus.files if name.startswith("train/")),
        runs=str(stats.get("runs", "")),
        run_counts=np.load(counts) if counts else np.empty(0, dtype=np.uint8),
        boilerplate_documents=int(stats["boilerplate"]["documents"]),
    )


def merged(computed: Iterable[Row], stored: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of both by id; of two for a document that of the champion."""
    rows = heapq.merge(stored, computed, key=itemgetter("id"))
    return (next(same) for _, same in itertools.groupby(rows, key=itemgetter("id")))


def _place(recipe: Recipe, word: str) -> str:
    champion = recipe.retrain.champion if recipe.retrain else None
    return champion.artifacts.get(word, "") if champion else ""
