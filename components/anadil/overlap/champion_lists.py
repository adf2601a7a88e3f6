"""Earlier text of a retraining: what its champion was trained on, and the documents that were left out of it.

An earlier document stays as it was, so that its tokens do. Of documents that are alike the earlier one stays, whatever
the order of the sources is.
"""

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator
from operator import itemgetter

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.uri import join
from anadil.recipe.sections import Recipe

EXCLUDED = "excluded.jsonl"
Row = dict[str, str]
"""Document that is left out: `id`, `reason`, and `of` and `of_id` of the one that it gives way to."""


def num_earlier_files(recipe: Recipe, source: str, ours: Manifest, names: list[str]) -> int:
    """Count the files of a corpus's index that the champion's corpus of the source has, too: the first ones.

    Raises:
        DataError: The champion's corpus is gone.
    """
    if not (uri := _place(recipe, f"corpus.{source}")):
        return 0
    theirs = artifact.finished_manifest(uri, "corpus")
    same = [theirs.files.get(name) == ours.files[name] for name in names]
    return len(list(itertools.takewhile(bool, same)))


def champion_rows(recipe: Recipe, source: str, sources: Iterable[str]) -> list[Row] | None:
    """Rows of the champion's list for a source; None: it has none, and earlier documents are judged anew."""
    uri = _place(recipe, f"overlap.{source}")
    if not uri or artifact.read_manifest(uri) is None:
        return None
    content = storage.store(uri).read(join(uri, EXCLUDED))
    rows: list[Row] = [json.loads(line) for line in content.splitlines()]
    # A document whose counterpart is gone with its source is training text again.
    return [row for row in rows if row["of"] in sources]


def merged(computed: Iterable[Row], stored: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of both by id; of two for a document that of the champion."""
    rows = heapq.merge(stored, computed, key=itemgetter("id"))
    return (next(same) for _, same in itertools.groupby(rows, key=itemgetter("id")))


def _place(recipe: Recipe, word: str) -> str:
    champion = recipe.retrain.champion if recipe.retrain else None
    return champion.artifacts.get(word, "") if champion else ""
